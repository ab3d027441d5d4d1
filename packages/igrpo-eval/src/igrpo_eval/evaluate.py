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

from igrpo_eval.records import Record
from igrpo_theory.randomness import question_keys
from igrpo_train.question import Question
from igrpo_train.rewards import f1
from igrpo_train.rollout import Rollout, chain_rule, collect
from igrpo_train.search.agent import ActionKind
from igrpo_train.search.session import Turn, turn_record
from igrpo_train.search.world import SearchAgent
from igrpo_train.setup import check_prompts
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
    batch_questions: int = 64,
    phases: Phases | None = None,
    on_progress: OnProgress | None = None,
) -> list[Record]:
    """Let the agent answer every question and grade its answers.

    Args:
        agent: engine, prompts and retriever; its scorer is not used.
        questions: with unique ids.
        turn_limit: turns an episode may have; a search in the last one is not carried out.
        temperature: of sampling; 0 is greedy.
        seed: with a question's id, fixes what is drawn for it.
        samples: episodes a question.
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
        turns = _turns(rollout, int(path))
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
                response_tokens=sum(len(turn.response_ids) for turn in turns),
                transcript=tuple(turn_record(turn) for turn in turns),
                seconds=seconds / len(predictions),
            )
        )
    return records


def _turns(rollout: Rollout, path: int) -> list[Turn]:
    nodes = rollout.paths.nodes[path, : rollout.paths.length[path]]
    turns = [rollout.tree.payload[node] for node in nodes]
    return [turn for turn in turns if isinstance(turn, Turn)]
