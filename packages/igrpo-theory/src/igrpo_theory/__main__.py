"""igrpo-theory: a command line -> claims checked, or the gap of one setting.

    igrpo-theory verify --seed 0 --json verify.json
    igrpo-theory gap --budget 5 --cap 2 --gamma 1

Results go to stdout, progress to stderr. The exit status is 0 when all is well, 1 when a claim fails, and 2 when the
request itself is wrong.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from igrpo_theory.claims import Case, Row
from igrpo_theory.expansion import BudgetMode, Scheme
from igrpo_theory.gap import Method, gap, sums_exactly
from igrpo_theory.gap_report import gap_record, gap_table, gap_title, load_plotting
from igrpo_theory.growth import GrowthRule
from igrpo_theory.policy_files import read_policy_tree
from igrpo_theory.verification import default_cases, table, verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Source: ours.

    Example:
        >>> main(["verify", "--tree", "nowhere.json"])
        2
    """
    options = _parser().parse_args(arguments)
    try:
        _check(options)
        return int(options.run(options))
    except (ValueError, OSError, ImportError) as error:
        _say(f"igrpo-theory: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="igrpo-theory", description="Check the theory, or measure what practice costs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("verify", help="check every claim; exits 1 when one fails")
    _add_shared(check)
    check.add_argument("--gamma", type=float, help="strength of the tilt on --tree; 1 when left out")
    check.set_defaults(run=_verify)
    measure = commands.add_parser("gap", help="measure how far grown paths are from the teacher law")
    _add_shared(measure)
    measure.add_argument("--budget", type=int, default=5, help="children of the root and of a stage")
    measure.add_argument("--cap", type=int, default=2, help="most children of a node; the budget is no cap")
    measure.add_argument("--gamma", type=float, default=1.0, help="strength of the tilt")
    measure.add_argument("--mode", choices=get_args(BudgetMode), default="full", help="children a stage")
    measure.add_argument("--scheme", choices=get_args(Scheme), default="capped", help="how counts are drawn")
    measure.add_argument("--method", choices=get_args(Method), default="auto", help="auto: exact where that is quick")
    measure.add_argument("--replicates", type=int, default=4000, help="independent trees, where trees are grown")
    measure.add_argument("--figure", type=Path, metavar="FILE", help="where to draw the laws; needs matplotlib")
    measure.set_defaults(run=_gap)
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal numbers")
    parser.add_argument("--tree", type=Path, metavar="FILE", help="a policy tree in JSON; random ones when left out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers")


def _check(options: argparse.Namespace) -> None:
    """Refuse what would only fail after the work is done."""
    if options.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {options.seed}: choose another")
    for flag in ("json", "figure"):
        file = getattr(options, flag, None)
        if file is None:
            continue
        if not file.parent.is_dir():
            raise ValueError(f"--{flag} must be in a folder that exists, got {file}: make {file.parent}")
        if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ValueError(f"--{flag} must be a file that can be written, got {file}: choose another")


def _verify(options: argparse.Namespace) -> int:
    start, rows, seen = time.perf_counter(), list[Row](), ""
    if options.tree:
        gamma = 1.0 if options.gamma is None else options.gamma
        cases = [Case(options.tree.stem, read_policy_tree(options.tree), gamma, options.seed)]
    elif options.gamma is not None:
        raise ValueError(
            f"--gamma must come with --tree, got {options.gamma}: the random trees have gammas of their own; leave it "
            "out"
        )
    else:
        cases = default_cases(options.seed)
    for row in verify(cases, hard_worlds=not options.tree):
        if row.case != seen:
            _say(f"[{time.perf_counter() - start:5.1f} s] {row.case}")
            seen = row.case
        rows.append(row)
    failed = [row for row in rows if not row.holds]
    sys.stdout.write(table(rows) + "\n")
    sys.stdout.write(f"{len(rows) - len(failed)} of {len(rows)} claims hold\n")
    if options.json:
        _write(options.json, {"seed": options.seed, "rows": [{**row._asdict(), "holds": row.holds} for row in rows]})
    return 1 if failed else 0


def _gap(options: argparse.Namespace) -> int:
    draw = load_plotting(options.figure) if options.figure else None
    # Refuses settings without meaning before it says that trees are grown.
    GrowthRule(budget=options.budget, cap=options.cap, gamma=options.gamma, scheme=options.scheme)
    policy = read_policy_tree(options.tree) if options.tree else default_cases(options.seed)[1].policy
    name = options.tree.stem if options.tree else default_cases(options.seed)[1].name
    settings = {
        key: getattr(options, key)
        for key in ("budget", "cap", "gamma", "mode", "scheme", "seed", "replicates", "method")
    }
    exact = sums_exactly(policy, budget=options.budget, cap=options.cap, scheme=options.scheme, method=options.method)
    _say(f"summing over all ways to grow on {name}" if exact else f"growing {options.replicates} trees on {name}")
    measured = gap(policy, **settings)
    sys.stdout.write(gap_table(measured, gap_title(name, settings)) + "\n")
    if options.json:
        _write(options.json, {"tree": name, **settings, "gap": gap_record(measured)})
    if draw is not None:
        draw(policy, measured, settings, gap_title(name, settings), options.figure)
        _say(f"wrote {options.figure}")
    return 0


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"--json must be a file that can be written, got {path} ({error.strerror}): name another"
        ) from error
    _say(f"wrote {path}")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
