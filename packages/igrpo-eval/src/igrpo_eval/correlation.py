"""correlation: scored paths -> whether V(o) tells R(o), by length, turn, view, group and benchmark.

In: `Trajectories`. Out: one `Study` a policy, chains and training trees apart.
V(o) is the sum of val(h) = (s(h) + IG(h)) / 2 over the scored nodes of a path but the last; R(o) its exact match. The
teacher's expected reward has the derivative Cov(V, R) in gamma, inside a question: so everything here compares paths of
one question, and what differs between questions is told apart.

Letters: P paths, T turns.
Source: [igrpo] for V and the information gain; the rest is ours, see docs/correlate.md.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_eval.association import (
    RESAMPLES,
    Estimate,
    Sums,
    auc,
    between_pearson,
    covariance,
    estimate,
    mean_sums,
    pearson,
    question_sums,
    ratio_estimates,
)
from igrpo_eval.study import Bin, Gain, Judgement, Row, Study, Verdict, View
from igrpo_eval.trajectories import Policy, Trajectories
from igrpo_theory.growth import RootScore
from igrpo_theory.values import information_gain, node_value

BAR: Final = 0.6
"""The AUC that a benchmark's interval must lie above, or below, for a verdict."""
LEAST_MIXED: Final = 30
"""Questions with both outcomes that a verdict needs."""
NUM_BINS: Final = 10
"""Of the calibration curve, equally wide."""
MOST_STEPS: Final = 6
"""Training steps that get a row each; more are put into as many ranges."""


def path_values(paths: Trajectories, root_score: RootScore = "zero") -> Float[np.ndarray, "P T"]:
    """val(h) of every scored node; its sum along a path is V(o), that of `igrpo_theory.paths.path_values`.

    Args:
        paths: scored paths.
        root_score: s(h_0) as 0 (the paper), or as it was evaluated.

    Raises:
        ValueError: an evaluated root score is asked for where there is none.
    """
    scores, parents = paths.score, _parents(paths, root_score)
    return node_value(scores.ravel(), parents.ravel(), "mean").reshape(scores.shape)


def study(
    paths: Trajectories,
    *,
    root_score: RootScore = "zero",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Study]:
    """What the paths of each policy say, in the order of `policies`.

    Args:
        paths: of any number of policies.
        root_score: see `path_values`.
        seed: of the intervals; equal seeds give equal intervals.
        resamples: of the intervals.

    Raises:
        ValueError: see `path_values`.
    """
    studies = []
    for number, policy in enumerate(paths.policies):
        own = paths.take(paths.policy == number)
        if len(own.policy):
            studies.append(_Desk(own, policy, root_score, seed, resamples).study())
    return studies


def judge(interval: Estimate, num_mixed: int, num_scored: int) -> tuple[Judgement, str]:
    """The verdict on a within-question AUC, with its reason.

    Example:
        >>> judge(Estimate(0.7, 0.65, 0.75), 100, 400)[0], judge(Estimate(0.7, 0.65, 0.75), 29, 400)[0]
        ('supported', 'undecided')
    """
    if num_scored == 0:
        return "undecided", "no path has a scored node"
    if num_mixed < LEAST_MIXED or interval.low is None or interval.high is None:
        return "undecided", f"{num_mixed} questions have both outcomes, {LEAST_MIXED} are needed"
    if interval.low > BAR:
        return "supported", f"the AUC of V lies above {BAR}"
    if interval.high < BAR:
        return "refuted", f"the AUC of V lies below {BAR}"
    return "undecided", f"the interval of the AUC of V holds {BAR}"


class _Desk:
    """One policy's paths on the way to their study."""

    def __init__(self, every: Trajectories, policy: Policy, root_score: RootScore, seed: int, resamples: int) -> None:
        self.policy, self.root_score, self.seed, self.resamples = policy, root_score, seed, resamples
        self.num_truncated = int((~every.complete).sum())
        self.paths = every.take(every.complete)
        self.val = path_values(self.paths, root_score)
        """val(h), NaN where not scored."""
        self.total = np.nansum(self.val, axis=1)
        """V(o)."""

    def study(self) -> Study:
        """Everything about this policy."""
        scored = np.asarray(self._scored("all").any(axis=1))
        return Study(
            policy=self.policy,
            num_paths=len(self.total),
            num_truncated=self.num_truncated,
            num_unscored=int((~scored).sum()),
            by_length=tuple(self._by_length()),
            values=(
                self._row("V", self.total, np.ones_like(scored)),
                self._row("V, paths with a scored node", self.total, scored),
                *self._turn_rows("all"),
            ),
            by_view=(*self._view_rows("before"), *self._view_rows("after")),
            by_group=tuple(self._row(label, self.total, rows) for label, rows in self._groups()),
            between=self._between(),
            calibration=tuple(bin_ for view in ("all", "before", "after") for bin_ in self._calibration(view)),
            gains=tuple(self._gains()),
            # Trees that V has guided are no draws of the policy: they get no verdict.
            verdicts=() if self.policy.guided else tuple(self._verdicts(scored)),
        )

    def _scored(self, view: View) -> Bool[np.ndarray, "P T"]:
        scored = ~np.isnan(self.val)
        return scored if view == "all" else scored & (self.paths.seen == (view == "after"))

    def _row(
        self,
        label: str,
        values: Float[np.ndarray, " P"],
        rows: Bool[np.ndarray, " P"],
        equal: Int[np.ndarray, " P"] | None = None,
    ) -> Row:
        """Some of the paths; with `equal`, a pair is two paths of one question that agree in it, at most T."""
        paths = self.paths
        unit, success = paths.unit[rows], paths.success[rows]
        if equal is not None:
            unit = unit * (paths.score.shape[1] + 1) + equal[rows]
        sums = question_sums(values[rows], success, unit, paths.question[rows])
        slope, area, correlation = estimate(sums, (covariance, auc, pearson), seed=self.seed, resamples=self.resamples)
        return Row(
            label=label,
            num_paths=len(success),
            num_questions=len(sums),
            num_mixed=int((sums[:, Sums.PAIRS] > 0).sum()),
            success=float(success.mean()) if len(success) else 0.0,
            covariance=slope,
            auc=area,
            pearson=correlation,
        )

    def _by_length(self) -> Iterator[Row]:
        for length in np.unique(self.paths.length).tolist():
            yield self._row(f"{length} turns" if length > 1 else "1 turn", self.total, self.paths.length == length)
        everything = np.ones(len(self.total), dtype=bool)
        yield self._row("pairs of equal length", self.total, everything, self.paths.length)
        yield self._row("all lengths", self.total, everything)

    def _turn_rows(self, view: View) -> Iterator[Row]:
        scored, name = self._scored(view), "" if view == "all" else f", {view}"
        for turn in range(scored.shape[1]):
            if scored[:, turn].any():
                yield self._row(f"s after turn {turn + 1}{name}", self.paths.score[:, turn], scored[:, turn])

    def _view_rows(self, view: View) -> Iterator[Row]:
        scored = self._scored(view)
        if scored.any():
            yield self._view_row(view)
            yield from self._turn_rows(view)

    def _view_row(self, view: View, rows: Bool[np.ndarray, " P"] | bool = True) -> Row:
        """The part of V from these nodes; whoever finds the answer early has fewer of them before, so numbers agree."""
        scored = self._scored(view)
        total, number = np.where(scored, self.val, 0.0).sum(axis=1), scored.sum(axis=1)
        return self._row(f"V of equally many nodes {view}", total, (number > 0) & rows, number)

    def _groups(self) -> Iterator[tuple[str, Bool[np.ndarray, " P"]]]:
        paths = self.paths
        sources, hops, steps = np.unique(paths.source), np.unique(paths.hops), self._steps()
        if len(sources) > 1:
            yield from ((f"source={_named(paths.sources[one])}", paths.source == one) for one in sources.tolist())
        if len(hops) > 1:
            yield from ((f"hops={one}", paths.hops == one) for one in hops.tolist())
        if len(steps) > 1:
            yield from steps

    def _steps(self) -> list[tuple[str, Bool[np.ndarray, " P"]]]:
        """Training steps, or ranges of them."""
        paths, steps = self.paths, np.unique(self.paths.step)
        parts = np.array_split(steps, max(1, min(len(steps), MOST_STEPS)))
        return [
            (_steps_label(int(part[0]), int(part[-1])), (paths.step >= part[0]) & (paths.step <= part[-1]))
            for part in parts
            if len(part)
        ]

    def _between(self) -> Estimate:
        paths = self.paths
        if not len(self.total):
            return Estimate(None, None, None)
        sums = mean_sums(self.total, paths.success, paths.unit, paths.question)
        return estimate(sums, (between_pearson,), seed=self.seed, resamples=self.resamples)[0]

    def _calibration(self, view: View) -> Iterator[Bin]:
        scored = self._scored(view)
        row, turn = np.nonzero(scored)
        if not len(row):
            return
        score = self.paths.score[row, turn]
        bins = np.minimum((score * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        table = partial(self._table, row, bins, NUM_BINS)
        shares = ratio_estimates(
            table(self.paths.success[row]), table(np.ones(len(row))), seed=self.seed, resamples=self.resamples
        )
        count, total = np.bincount(bins, minlength=NUM_BINS), np.bincount(bins, weights=score, minlength=NUM_BINS)
        for number, share in enumerate(shares):
            mean = float(total[number] / count[number]) if count[number] else None
            yield Bin(view, number / NUM_BINS, (number + 1) / NUM_BINS, int(count[number]), mean, share)

    def _gains(self) -> Iterator[Gain]:
        scores, parents = self.paths.score, _parents(self.paths, self.root_score)
        cumulative = np.cumsum(information_gain(scores.ravel(), parents.ravel()).reshape(scores.shape), axis=1)
        turns = scores.shape[1]
        for label, part in self._steps():
            row, turn = np.nonzero(~np.isnan(cumulative) & part[:, None])
            success = self.paths.success[row]
            table = partial(self._table, row, turn + turns * success, 2 * turns)
            count = table(np.ones(len(row)))
            means = ratio_estimates(table(cumulative[row, turn]), count, seed=self.seed, resamples=self.resamples)
            for column, (number, mean) in enumerate(zip(count.sum(axis=0).tolist(), means, strict=True)):
                if number:
                    yield Gain(label, column >= turns, column % turns + 1, int(number), mean)

    def _table(
        self, row: np.ndarray, column: np.ndarray, num_columns: int, weights: np.ndarray
    ) -> Float[np.ndarray, "C K"]:
        """Weights of nodes summed by question of their path (row) and column."""
        names, place = np.unique(self.paths.question[row], return_inverse=True)
        sums = np.bincount(place * num_columns + column, weights=weights, minlength=len(names) * num_columns)
        return sums.reshape(len(names), num_columns)

    def _verdicts(self, scored: Bool[np.ndarray, " P"]) -> Iterator[Verdict]:
        for source in np.unique(self.paths.source).tolist():
            rows = self.paths.source == source
            whole = self._row("", self.total, rows)
            equal = self._row("", self.total, rows, self.paths.length)
            before = self._view_row("before", rows)
            judgement, reason = judge(whole.auc, whole.num_mixed, int(scored[rows].sum()))
            if judgement == "supported" and (equal.auc.low is None or equal.auc.low <= 0.5):
                reason += ", but paths of equal length do not show it: length may be all that V tells"
            elif judgement == "supported" and (before.auc.low is None or before.auc.low <= 0.5):
                reason += ", but nodes before the find do not show it: V may tell only that the answer was found"
            yield Verdict(
                source=_named(self.paths.sources[source]),
                num_mixed=whole.num_mixed,
                auc=whole.auc,
                equal_length=equal.auc,
                before=before.auc,
                judgement=judgement,
                reason=reason,
            )


def _parents(paths: Trajectories, root_score: RootScore) -> Float[np.ndarray, "P T"]:
    """The score that each node's gain is measured from."""
    root = np.zeros(len(paths.root)) if root_score == "zero" else paths.root
    if np.isnan(root).any():
        model = paths.policies[int(paths.policy[np.isnan(root)][0])].model
        raise ValueError(
            f"root_score must be zero where roots were not scored, got {root_score!r} for {model}: leave it out, or "
            "train with tree.root_score = evaluate"
        )
    return np.concatenate([root[:, None], paths.score[:, :-1]], axis=1)


def _named(source: str) -> str:
    return source or "unnamed"


def _steps_label(first: int, last: int) -> str:
    if first < 0:
        return "step unknown"
    return f"step {first}" if first == last else f"steps {first}-{last}"
