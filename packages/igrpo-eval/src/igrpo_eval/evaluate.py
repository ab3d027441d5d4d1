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
from dataclasses import replace
from itertools import accumulate
from operator import or_
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

from igrpo_eval.records import Record
from igrpo_theory.randomness import question_keys
from igrpo_train.question import Question
from igrpo_train.rewards import f1, normalise_answer
from igrpo_train.rollout import Rollout, chain_rule, collect
from igrpo_train.search.agent import ActionKind
from igrpo_train.search.session import Turn, context_segments, turn_record
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
        agent: engine, prompts, retriever and, where scores are asked for, its scorer.
        questions: with unique ids.
        turn_limit: turns an episode may have; a search in the last one is not carried out.
        temperature: of sampling; 0 is greedy.
        seed: with a question's id, fixes what is drawn for it.
        samples: episodes a question.
        scores: score the bare question and every turn that goes on; it changes nothing that is drawn.
        batch_questions: questions that are in the works together; changes memory and speed only.
        phases: receives seconds and tokens.
        on_progress: called after every batch with its records, for instance to write them down; may raise to stop.

    Returns:
        the records, ordered as the questions, then by sample.

    Raises:
        ValueError: a question does not fit the prompt; found before the first is answered.
    """
    check_prompts(agent.prompting, questions)
    rule = chain_rule(turn_limit, samples)
    if scores:
        check_answers(agent.prompting, questions)
        rule = replace(rule, score_chains=True, root_score="evaluate")
    phases = phases or Phases()
    records: list[Record] = []
    for first in range(0, len(questions), batch_questions):
        batch = questions[first : first + batch_questions]
        start = time.perf_counter()
        keys = question_keys(seed, 0, np.zeros(len(batch), dtype=np.int64), [question.id for question in batch])
        rollout = collect(agent, batch, keys, rule, temperature=temperature, phases=phases)
        graded = grade(rollout, turn_limit, time.perf_counter() - start)
        records.extend(graded)
        if on_progress is not None:
            on_progress(graded)
    return records


def grade(rollout: Rollout, turn_limit: int, seconds: float) -> list[Record]:
    """Records of grown chains, by question, then by sample.

    Args:
        rollout: trees of width one.
        turn_limit: that they were grown under.
        seconds: that growing took.
    """
    paths, predictions = rollout.paths, rollout.predictions()
    # Leaves of one question come in order of their depth; the first turn's number tells the sample.
    samples = rollout.tree.local[paths.nodes[:, 0]] - 1
    records = []
    for path in np.lexsort((samples, paths.question)):
        question = rollout.questions[paths.question[path]]
        prediction = predictions[path]
        nodes = rollout.paths.nodes[path, : rollout.paths.length[path]]
        turns = _turns(rollout, nodes)
        root = int(rollout.tree.question[nodes[0]])
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
                invalid_turns=int((~rollout.valid[path]).sum()),
                tool_calls_official=len(turns) - 1,
                truncated_turns=sum(turn.finish in ("length", "context") for turn in turns),
                response_tokens=sum(len(turn.response_ids) for turn in turns),
                prompt_tokens=sum(
                    sum(map(len, context_segments(rollout.tree, int(rollout.tree.parent[node])))) for node in nodes
                ),
                root_score=_score(rollout, root),
                scores=tuple(_score(rollout, node) for node in nodes.tolist()),
                answer_seen=tuple(accumulate((_shows(turn, question.answers) for turn in turns), or_)),
                transcript=tuple(turn_record(turn) for turn in turns),
                seconds=seconds / len(predictions),
            )
        )
    return records


def _turns(rollout: Rollout, nodes: Int[np.ndarray, " D"]) -> list[Turn]:
    turns = [rollout.tree.payload[node] for node in nodes]
    return [turn for turn in turns if isinstance(turn, Turn)]


def _score(rollout: Rollout, node: int) -> float | None:
    """A node's answer score; the tree holds NaN where there is none."""
    score = float(rollout.tree.score[node])
    return None if np.isnan(score) else score


def _shows(turn: Turn, answers: Sequence[str]) -> bool:
    """Whether an accepted answer stands in a turn's documents."""
    text = f" {normalise_answer(turn.observation)} "
    return any(gold and f" {gold} " in text for gold in map(normalise_answer, answers))
