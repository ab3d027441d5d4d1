"""command: `igrpo-eval run RECIPE.toml --out FOLDER [--key value ...]` -> records, a summary and a table.

Source: ours.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Final

from rich.console import Console

from igrpo_eval.metrics import summarise
from igrpo_eval.records import RECORDS, Record, check_questions, open_folder
from igrpo_eval.report import report_json, summary_table
from igrpo_eval.selection import limit_questions
from igrpo_eval.settings import USAGE, Evaluation, load_evaluation, record_settings
from igrpo_train.data import load_questions
from igrpo_train.errors import run_command
from igrpo_train.interrupt import Interrupt
from igrpo_train.progress import Progress
from igrpo_train.question import Question
from igrpo_train.tracking import JsonLines, Phases, write_text

SUMMARY: Final = "summary.json"


def main(args: Sequence[str] | None = None) -> None:
    """Answer a command line; errors that a person can put right end with code 2."""
    words = sys.argv[1:] if args is None else list(args)
    run_command(lambda: _dispatch(words))


def _dispatch(words: Sequence[str]) -> None:
    if words and words[0] in ("-h", "--help"):
        Console().print(f"usage: {USAGE}\nigrpo-eval run --help lists the keys.", markup=False, highlight=False)
        return
    if words and words[0] == "correlate":
        _correlate(words[1:])
        return
    if not words or words[0] != "run":
        given = repr(words[0]) if words else "nothing"
        raise ValueError(f"command must be run, got {given}: {USAGE}")
    run(load_evaluation(words[1:]))


def _correlate(args: Sequence[str]) -> None:
    from igrpo_eval.correlate import correlate, load_correlation

    correlate(load_correlation(args))


def run(evaluation: Evaluation) -> None:
    """Evaluate what is not yet recorded, then write and show the summary of all chosen questions.

    Raises:
        ValueError, FileNotFoundError, DiskError: see `open_folder`, `load_questions` and `load_agent`.
        KeyboardInterrupt: the user stopped it; finished batches are recorded.
    """
    recipe, folder = evaluation.recipe, evaluation.folder
    questions = limit_questions(load_questions(recipe.data.validation, recipe.data.hops), evaluation.limit)
    settings = record_settings(evaluation)
    records = open_folder(folder, settings, samples=evaluation.samples, resume=evaluation.resume)
    check_questions(records, questions, folder)
    done = {record.id for record in records}
    remaining = [question for question in questions if question.id not in done]
    phases = Phases()
    if remaining:
        records += _evaluate(evaluation, remaining, len(questions), phases)
    chosen = {question.id for question in questions}
    summaries = summarise([record for record in records if record.id in chosen])
    report = report_json(summaries, settings, phases.take())
    write_text(folder / SUMMARY, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    # Elsewhere rich takes 80 columns, which cut the table.
    Console(width=None if sys.stdout.isatty() else 120).print(summary_table(summaries))


def _evaluate(evaluation: Evaluation, questions: list[Question], total: int, phases: Phases) -> list[Record]:
    """Evaluate and record the questions that are left of `total`."""
    # Late: torch and transformers take seconds to import, and a wrong flag is answered before.
    from igrpo_eval.agent import load_agent
    from igrpo_eval.evaluate import evaluate

    agent = load_agent(evaluation.recipe)
    fresh: list[Record] = []
    message = "finishing this batch; --resume goes on after it, interrupt again to stop at once"
    with (
        closing(JsonLines(evaluation.folder / RECORDS)) as file,
        Progress(total, done=total - len(questions), unit="question") as progress,
        Interrupt(message) as interrupt,
    ):

        def keep(batch: Sequence[Record]) -> None:
            for record in batch:
                file.append(asdict(record))
            fresh.extend(batch)
            left = len(questions) - len(fresh) // evaluation.samples
            progress.update(total - left, {"exact match": sum(r.exact_match for r in fresh) / len(fresh)})
            if interrupt.requested and left:
                raise KeyboardInterrupt

        return evaluate(
            agent,
            questions,
            turn_limit=evaluation.recipe.agent.max_turns,
            temperature=evaluation.sampling_temperature,
            seed=evaluation.recipe.seed,
            samples=evaluation.samples,
            batch_questions=evaluation.batch_questions,
            phases=phases,
            on_progress=keep,
        )


if __name__ == "__main__":
    main()
