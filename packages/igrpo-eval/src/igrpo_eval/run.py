"""run: settings of an evaluation -> records, `summary.json` and a table, by one process or several.

Source: ours.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from igrpo_eval.metrics import summarise
from igrpo_eval.processes import Processes
from igrpo_eval.records import (
    RECORDS,
    Record,
    check_questions,
    merge_parts,
    open_folder,
    part_path,
    read_records,
)
from igrpo_eval.report import pass_table, report_json, summary_table
from igrpo_eval.selection import limit_questions
from igrpo_eval.settings import Evaluation, record_settings
from igrpo_eval.suite import check_sources, load_benchmarks
from igrpo_train.data import load_questions
from igrpo_train.interrupt import Interrupt
from igrpo_train.progress import Progress
from igrpo_train.question import Question
from igrpo_train.tracking import JsonLines, Phases, write_text

SUMMARY: Final = "summary.json"


def run(evaluation: Evaluation) -> None:
    """Evaluate what is not yet recorded, then write and show the summary of all chosen questions.

    Raises:
        ValueError, FileNotFoundError, DiskError: see `open_folder`, `load_questions` and `load_agent`.
        KeyboardInterrupt: the user stopped it; finished batches are recorded.
    """
    questions = chosen_questions(evaluation)
    settings = record_settings(evaluation)
    folder = evaluation.folder
    processes = Processes(cpu=evaluation.recipe.model.device == "cpu")
    with processes.main_first():
        if processes.main:
            open_folder(folder, settings, samples=evaluation.samples, resume=evaluation.resume)
        records = read_records(folder / RECORDS) if (folder / RECORDS).exists() else []
    check_questions(records, questions, folder)
    done = {record.id for record in records}
    remaining = [question for question in questions if question.id not in done]
    phases, start = Phases(), time.perf_counter()
    if remaining:
        _evaluate(evaluation, processes.share(remaining), processes, phases)
    processes.meet()
    if processes.main:
        _finish(evaluation, questions, settings, phases, len(remaining) / (time.perf_counter() - start))
    processes.leave()


def chosen_questions(evaluation: Evaluation) -> list[Question]:
    """The questions that are asked: of the benchmarks, or of the recipe's file, each limited by hashes of ids.

    Raises:
        ValueError, FileNotFoundError: see `load_benchmarks` and `load_questions`.
    """
    data = evaluation.recipe.data
    if not evaluation.benchmarks:
        questions = load_questions(data.validation, data.hops)
        check_sources(questions, data.validation)
        return limit_questions(questions, evaluation.limit)
    folder = Path(evaluation.benchmark_folder).expanduser() if evaluation.benchmark_folder else None
    by_source: dict[str, list[Question]] = {}
    for question in load_benchmarks(evaluation.benchmarks, folder):
        by_source.setdefault(question.source, []).append(question)
    return [question for own in by_source.values() for question in limit_questions(own, evaluation.limit)]


def _evaluate(evaluation: Evaluation, questions: list[Question], processes: Processes, phases: Phases) -> None:
    """Evaluate and record the questions that this process has left."""
    # Late: torch and transformers take seconds to import, and a wrong flag is answered before.
    from igrpo_eval.agent import load_agent
    from igrpo_eval.evaluate import evaluate

    agent = load_agent(evaluation.recipe)
    alone = processes.count == 1
    path = evaluation.folder / RECORDS if alone else part_path(evaluation.folder, processes.number)
    right, count = 0.0, 0
    message = "finishing this batch; --resume goes on after it, interrupt again to stop at once"
    with (
        closing(JsonLines(path)) as file,
        Progress(len(questions), unit="question") as progress,
        Interrupt(message) as interrupt,
    ):

        def keep(batch: Sequence[Record]) -> None:
            nonlocal right, count
            for record in batch:
                file.append(asdict(record))
            right += sum(record.exact_match for record in batch)
            count += len(batch)
            done = count // evaluation.samples
            if processes.main:
                progress.update(done, {"exact match": right / count})
            if interrupt.requested and done < len(questions):
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


def _finish(
    evaluation: Evaluation, questions: Sequence[Question], settings: dict[str, object], phases: Phases, rate: float
) -> None:
    """Merge what the processes wrote, and summarise the chosen questions."""
    folder = evaluation.folder
    order = [question.id for question in questions]
    chosen = set(order)
    records = [r for r in merge_parts(folder, evaluation.samples, order) if r.id in chosen]
    summaries = summarise(records)
    measured = phases.take() | {"questions_per_second": rate}
    report = report_json(summaries, settings, measured, records)
    write_text(folder / SUMMARY, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    # Elsewhere rich takes 80 columns, which cut the table.
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(summary_table(summaries, records))
    passes = pass_table(summaries)
    if passes is not None:
        console.print(passes)
