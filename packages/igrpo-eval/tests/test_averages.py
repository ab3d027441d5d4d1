"""Averages over sets: both kinds, with intervals that do not move questions between sets."""

import numpy as np
import pytest


def _parts(*values):
    from igrpo_eval.averages import SetValues

    return [SetValues(np.array(part, dtype=np.float64), np.arange(len(part))) for part in values]


def test_sets_without_spread_leave_no_interval_although_they_differ():
    from igrpo_eval.averages import macro_weights, weighted_estimate

    assert weighted_estimate(_parts([1, 1], [0, 0, 0]), macro_weights(2), resamples=50) == (0.5, 0.5, 0.5)


def test_the_interval_is_that_of_independent_sets():
    from igrpo_eval.averages import macro_weights, weighted_estimate

    # Variances add: two sets of 400 fair coins, each weighted by a half, have the deviation 0.5 / sqrt(800).
    coins = [0.0, 1.0] * 200
    low, high = weighted_estimate(_parts(coins, coins), macro_weights(2))[1:]
    assert (high - low) / 2 == pytest.approx(1.96 * 0.5 / np.sqrt(800), rel=0.05)


def test_weights_by_size_are_those_of_the_whole_sets_where_all_are_known():
    from igrpo_eval.averages import size_weights
    from igrpo_eval.benchmarks import BENCHMARKS

    weights = size_weights(list(BENCHMARKS), [1] * 7)
    assert weights[0] == pytest.approx(3_610 / 51_713)
    assert weights.sum() == pytest.approx(1.0)
    assert size_weights(["nq", "own"], [30, 10]).tolist() == [0.75, 0.25]
