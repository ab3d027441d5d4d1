"""run: a recipe and flags -> records, a summary and a table.

Source: ours.
"""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from igrpo_eval.benchmarks import load_benchmark
from igrpo_eval.finished import SUMMARY
from igrpo_eval.identity import corpus_hash, record_settings
from igrpo_eval.metrics import summarise
from igrpo_eval.processes import join_processes, share
from igrpo_eval.records import (
    RECORDS,
    Record,
    check_questions,
    make_folder,
    open_folder,
    part_path,
    read_records,
    settle_records,
)
from igrpo_eval.report import behaviour_table, report_json, show_table, summary_table
from igrpo_eval.selection import limit_questions
from igrpo_eval.settings import Evaluation
from igrpo_train.data import load_questions
from igrpo_train.interrupt import Interrupt
from igrpo_train.processes import Processes
from igrpo_train.progress import Progress
from igrpo_train.question import Question, select_hops
from igrpo_train.tracking import JsonLines, Phases, lock_folder, write_text


def run(evaluation: Evaluation) -> None:
    """Evaluate what is not yet recorded, then write and show the summary of all chosen questions.

    Of several processes each answers its share and records it apart; the main one merges, which gives the same records.

    Raises:
        ValueError, FileNotFoundError, DiskError: see `open_folder`, `chosen_questions` and `load_agent`.
        KeyboardInterrupt: the user stopped it; finished batches are recorded.
    """
    questions = chosen_questions(evaluation)
    group = join_processes(evaluation.recipe.model.device)
    settings: dict[str, object] = {}
    with ExitStack() as held:
        group.main(lambda: settings.update(_open(evaluation, questions, held)))
        _answer(evaluation, questions, settings, group)
    group.finish()


def _answer(evaluation: Evaluation, questions: list[Question], settings: dict[str, object], group: Processes) -> None:
    """Let each process answer its share of what is not recorded; the main one sums up."""
    folder = evaluation.folder
    path = folder / RECORDS
    done = {record.id for record in read_records(path)} if path.exists() else set()
    remaining = [question for question in questions if question.id not in done]
    if remaining and group.is_main:
        # It marks a finished evaluation.
        (folder / SUMMARY).unlink(missing_ok=True)
    phases, start = Phases(), time.perf_counter()
    if mine := share(group, remaining):
        _evaluate(evaluation, mine, len(questions), group, phases)
    group.wait()
    if group.is_main:
        measured = phases.take()
        if remaining:
            measured |= {"processes": group.size, "questions_per_s": len(remaining) / (time.perf_counter() - start)}
        _summarise(evaluation, questions, settings, measured)


def chosen_questions(evaluation: Evaluation) -> list[Question]:
    """The questions to ask, set by set, `limit` of each.

    Raises:
        ValueError, FileNotFoundError: see `load_benchmark` and `load_questions`.
    """
    recipe = evaluation.recipe
    if not evaluation.benchmarks:
        return limit_questions(load_questions(recipe.data.validation, recipe.data.hops), evaluation.limit)
    folder = Path(evaluation.benchmark_folder).expanduser() if evaluation.benchmark_folder else None
    questions: list[Question] = []
    for name in evaluation.benchmarks:
        kept = select_hops(load_benchmark(name, folder), recipe.data.hops, name)
        questions += limit_questions(kept, evaluation.limit)
    return questions


def _open(evaluation: Evaluation, questions: Sequence[Question], held: ExitStack) -> dict[str, object]:
    """Make or reopen the folder, which `held` keeps others from; returns the settings that are written there."""
    make_folder(evaluation.folder)
    held.callback(lock_folder(evaluation.folder, "out").release)
    settings = record_settings(evaluation) | {"corpus.hash": corpus_hash(evaluation.recipe)}
    records = open_folder(evaluation.folder, settings, samples=evaluation.samples, resume=evaluation.resume)
    check_questions(records, questions, evaluation.folder)
    return settings


def _summarise(
    evaluation: Evaluation, questions: Sequence[Question], settings: dict[str, object], measured: dict[str, float]
) -> None:
    """Merge the parts, write the summary of the chosen questions and show it."""
    order = [question.id for question in questions]
    records = settle_records(evaluation.folder, evaluation.samples, order)
    chosen = set(order)
    summaries = summarise([record for record in records if record.id in chosen], pass_k=evaluation.pass_k)
    report = report_json(summaries, settings, measured)
    write_text(evaluation.folder / SUMMARY, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    show_table(summary_table(summaries), behaviour_table(summaries))


def _evaluate(evaluation: Evaluation, questions: list[Question], total: int, group: Processes, phases: Phases) -> None:
    """Evaluate and record this process's questions; `total` is that of the whole evaluation."""
    # Late: torch and transformers take seconds to import, and a wrong flag is answered before.
    from igrpo_eval.agent import load_agent
    from igrpo_eval.evaluate import evaluate

    agent = load_agent(evaluation.recipe)
    message = "finishing this batch; --resume goes on after it, interrupt again to stop at once"
    unit = "question" if group.size == 1 else f"process {group.rank + 1} of {group.size}, question"
    hidden = None if group.is_main else Console(quiet=True)
    before = total - len(questions) if group.size == 1 else 0
    right = 0.0
    recorded, start = 0, time.perf_counter()
    with (
        closing(JsonLines(part_path(evaluation.folder, group.rank, group.size))) as file,
        Progress(before + len(questions), done=before, unit=unit, console=hidden) as progress,
        Interrupt(message) as interrupt,
    ):

        def keep(batch: Sequence[Record]) -> None:
            nonlocal right, recorded
            for record in batch:
                file.append(asdict(record))
            recorded += len(batch)
            right += sum(record.exact_match for record in batch)
            asked = recorded // evaluation.samples
            speed = asked / (time.perf_counter() - start)
            progress.update(before + asked, {"exact match": right / recorded, "questions/s": speed})
            if interrupt.requested and asked < len(questions):
                raise KeyboardInterrupt

        evaluate(
            agent,
            questions,
            turn_limit=evaluation.recipe.agent.max_turns,
            temperature=evaluation.sampling_temperature,
            seed=evaluation.recipe.seed,
            samples=evaluation.samples,
            scores=evaluation.scores,
            batch_questions=evaluation.batch_questions,
            phases=phases,
            on_progress=keep,
        )
