"""evaluate: an agent and questions -> graded records.

In: the search agent of training. Out: one `Record` a question-sample.
Evaluation is a tree of width one, grown by the loop, sampler and exact match of training: the root gets as many
children as there are samples, and every later turn exactly one.

What is drawn for a question is a function of seed, question id and number of samples alone, not of its place in the
file, the limit or the batch: its key has step 0 and slot 0, which is safe because ids are unique in a file. (Samples
count, because the later turns of a sample are numbered among all turns of its question.) Probabilities may still differ
in their last bits between batches of other shapes.

Source: ours.
"""

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from igrpo_eval.evidence import answer_seen
from igrpo_eval.records import Record
from igrpo_theory.randomness import question_keys
from igrpo_train.config import Agent
from igrpo_train.question import Question
from igrpo_train.rewards import f1
from igrpo_train.rollout import Rollout, chain_rule, collect
from igrpo_train.search.agent import ActionKind
from igrpo_train.search.session import Prompt, Turn, turn_record
from igrpo_train.search.world import SearchAgent
from igrpo_train.setup import check_answers, check_prompts
from igrpo_train.tracking import Phases

OnProgress: TypeAlias = Callable[[Sequence[Record]], None]


def evaluate(
    agent: SearchAgent,
    questions: Sequence[Question],
    *,
    turn_limit: int,
    temperature: float,
    seed: int,
    samples: int = 1,
    scores: bool = False,
    batch_questions: int = 64,
    phases: Phases | None = None,
    on_progress: OnProgress | None = None,
) -> list[Record]:
    """Let the agent answer every question and grade its answers.

    Args:
        agent: engine, prompts, retriever and scorer; the last is used for `scores` only.
        questions: with unique ids.
        turn_limit: turns an episode may have; a search in the last one is not carried out.
        temperature: of sampling; 0 is greedy.
        seed: with a question's id, fixes what is drawn for it.
        samples: episodes a question.
        scores: also compute the answer score of every state, by the scorer of training; changes no other field.
        batch_questions: questions that are in the works together; changes memory and speed only.
        phases: receives seconds and tokens.
        on_progress: called after every batch with its records, for instance to write them down; may raise to stop.

    Returns:
        the records, ordered as the questions, then by sample.

    Raises:
        ValueError: a question does not fit the prompt, or its answer cannot be scored; found before the first turn.
    """
    check_prompts(agent.prompting, questions)
    if scores:
        check_answers(agent.prompting, questions)
    rule = chain_rule(turn_limit, samples, scores=scores)
    phases = phases or Phases()
    records: list[Record] = []
    for first in range(0, len(questions), batch_questions):
        batch = questions[first : first + batch_questions]
        start = time.perf_counter()
        keys = question_keys(seed, 0, np.zeros(len(batch), dtype=np.int64), [question.id for question in batch])
        rollout = collect(agent, batch, keys, rule, temperature=temperature, phases=phases)
        graded = grade(rollout, agent.prompting.agent, turn_limit, time.perf_counter() - start)
        records.extend(graded)
        if on_progress is not None:
            on_progress(graded)
    return records


def grade(rollout: Rollout, agent: Agent, turn_limit: int, seconds: float) -> list[Record]:
    """Records of grown chains, by question, then by sample.

    Args:
        rollout: trees of width one.
        agent: protocol that they were grown under.
        turn_limit: that they were grown under.
        seconds: that growing took.
    """
    paths, predictions = rollout.paths, rollout.predictions()
    # Leaves of one question come in order of their depth; the first turn's number tells the sample.
    samples = rollout.tree.local[paths.nodes[:, 0]] - 1
    records = []
    for path in np.lexsort((samples, paths.question)):
        slot = int(paths.question[path])
        question, prediction = rollout.questions[slot], predictions[path]
        nodes = paths.nodes[path, : paths.length[path]].tolist()
        turns = [turn for node in nodes if isinstance(turn := rollout.tree.payload[node], Turn)]
        records.append(
            Record(
                id=question.id,
                sample=int(samples[path]),
                question=question.text,
                source=question.source,
                hops=question.hops,
                golds=question.answers,
                prediction=prediction,
                answered=prediction is not None,
                exact_match=float(rollout.grades[path]),
                f1=f1(prediction, question.answers),
                turns=len(turns),
                searches=sum(turn.action.kind is ActionKind.SEARCH for turn in turns[: turn_limit - 1]),
                tool_calls_official=len(turns) - 1,
                invalid_turns=int((~rollout.valid[path]).sum()),
                truncated_turns=sum(turn.finish == "length" for turn in turns),
                prompt_tokens=_prompt_tokens(rollout, slot, turns),
                response_tokens=sum(len(turn.response_ids) for turn in turns),
                root_score=_score(rollout, slot),
                scores=tuple(_score(rollout, node) for node in nodes),
                answer_seen=answer_seen(turns, question.answers, agent),
                transcript=tuple(turn_record(turn) for turn in turns),
                seconds=seconds / len(predictions),
            )
        )
    return records


def _prompt_tokens(rollout: Rollout, root: int, turns: Sequence[Turn]) -> int:
    prompt = rollout.tree.payload[root]
    assert isinstance(prompt, Prompt)
    lengths = [len(prompt.head_ids) + len(prompt.tail_ids), *(len(turn.history_ids) for turn in turns[:-1])]
    return int(np.cumsum(lengths).sum())


def _score(rollout: Rollout, node: int) -> float | None:
    """Answer score of a node; None where it has none."""
    score = float(rollout.tree.score[node])
    return None if np.isnan(score) else score
