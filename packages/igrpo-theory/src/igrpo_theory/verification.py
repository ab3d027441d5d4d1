"""verification: a seed, or a tree of one's own -> all claims, checked.

In: nothing but a seed; policy trees to check on may be given. Out: rows with verdicts, and the table that people read.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from igrpo_theory.adversaries import ADVERSARIES, adversarial_policy_tree
from igrpo_theory.claims import Case, Row, exact_claims
from igrpo_theory.growth_claims import answer_claims, finite_claims, growth_claims
from igrpo_theory.worlds import PolicyTree, padded, random_policy_tree

_HEADER = ("claim", "tree", "predicted", "", "measured", "error bar", "verdict")
_READ: Final = {"=": "=", "<=": ">="}
"""A relation of what was measured to what was predicted, read the other way round."""


def default_cases(seed: int) -> list[Case]:
    """Three random trees and one with answers, drawn from the seed, at gammas from mild to strong.

    Source: ours.

    Example:
        >>> [case.name for case in default_cases(0)]
        ['3 turns of 3', '4 turns of 2', '3 turns of 3, gamma 2', '4 turns with answers']
    """
    rng = np.random.default_rng(seed)
    return [
        Case("3 turns of 3", random_policy_tree(rng, turns=3, branching=3), 1.0, seed),
        Case("4 turns of 2", random_policy_tree(rng, turns=4, branching=2), 1.0, seed),
        Case("3 turns of 3, gamma 2", random_policy_tree(rng, turns=3, branching=3), 2.0, seed),
        Case("4 turns with answers", _with_answers(rng), 1.0, seed),
    ]


def verify(cases: Sequence[Case], *, hard_worlds: bool = True) -> Iterator[Row]:
    """Check every claim on every case, a row at a time; on the hard worlds too, and the exact law of a small tree.

    Source: ours, see docs/theory/index.md.

    Example:
        >>> row = next(verify(default_cases(0)))
        >>> row.claim, row.case, row.holds
        ('theorem 1: law by recursion', 'equal values', True)
    """
    if hard_worlds:
        for name in ADVERSARIES:
            yield from exact_claims(Case(name, adversarial_policy_tree(name), 1.0, 0))
        yield from finite_claims(
            Case("3 turns of 2", random_policy_tree(np.random.default_rng(0), turns=3, branching=2), 1.0, 0)
        )
    for case in cases:
        longer = case._replace(policy=padded(case.policy).policy)
        yield from exact_claims(case)
        yield from growth_claims(longer)
        if ends_early(case.policy):
            yield from answer_claims(case)


def ends_early(policy: PolicyTree) -> bool:
    """Whether some paths are shorter than others.

    Source: ours.

    Example:
        >>> ends_early(adversarial_policy_tree("early answers")), ends_early(adversarial_policy_tree("one turn"))
        (True, False)
    """
    return bool((policy.depth[policy.ends] < policy.turns).any())


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text.

    Source: ours.

    Example:
        >>> print(table([Row("one is one", "none", 1.0, "=", 1.0, 1e-12)]))
        claim      tree predicted   measured error bar verdict
        one is one none         1 =        1     1e-12 holds
    """
    lines = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    texts = []
    for line in lines:
        cells = [
            cell.rjust(width) if column in (2, 4, 5) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        texts.append(" ".join(cells).rstrip())
    return "\n".join(texts)


def _cells(row: Row) -> tuple[str, ...]:
    numbers = [f"{number:.4g}" for number in (row.predicted, row.measured, row.error)]
    verdict = "holds" if row.holds else "FAILS"
    # The table reads from left to right: what is predicted stands first.
    return (row.claim, row.case, numbers[0], _READ[row.relation], numbers[1], numbers[2], verdict)


def _with_answers(rng: np.random.Generator) -> PolicyTree:
    """A random tree of four turns on which some paths, but not all, end early."""
    policy = random_policy_tree(rng, turns=4, branching=2, answer_rate=0.35)
    while policy.turns < 4 or not ends_early(policy):
        policy = random_policy_tree(rng, turns=4, branching=2, answer_rate=0.35)
    return policy
