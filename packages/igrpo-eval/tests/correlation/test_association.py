"""Statistics within and between questions: slow oracles, scipy, invariances, and what the intervals cover."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

FALSE_ALARM = 1e-6
"""Chance that a correct implementation fails a statistical test; all seeds are fixed."""

PATHS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), st.booleans()), min_size=1, max_size=30
)


def _columns(paths):
    question, values, success = zip(*paths, strict=True)
    return np.array(values), np.array(success), np.array(question)


def _naive(values, success, question):
    """Slow oracle: pairs and deviations by loops; None where a statistic is not defined."""
    pairs = [
        (values[i] > values[j]) + 0.5 * (values[i] == values[j])
        for i, j in itertools.product(range(len(values)), repeat=2)
        if question[i] == question[j] and success[i] and not success[j]
    ]
    covariances, x, y = [], [], []
    for number in sorted(set(question.tolist())):
        own = question == number
        x.extend(values[own] - np.mean(values[own]))
        y.extend(success[own] - np.mean(success[own]))
        if own.sum() > 1:
            covariances.append(np.cov(values[own], success[own].astype(float))[0, 1])
    return (np.mean(pairs) if pairs else None, np.mean(covariances) if covariances else None, np.array(x), np.array(y))


def _totals(values, success, question):
    from igrpo_eval.association import question_sums

    return question_sums(values, success, question, question).sum(axis=0, keepdims=True)


@given(paths=PATHS)
def test_sums_by_question_give_what_loops_over_pairs_give(paths):
    from scipy.stats import pearsonr

    from igrpo_eval.association import auc, covariance, pearson

    values, success, question = _columns(paths)
    area, slope, x, y = _naive(values, success, question)
    totals = _totals(values, success, question)
    assert auc(totals)[0] == pytest.approx(np.nan if area is None else area, nan_ok=True)
    assert covariance(totals)[0] == pytest.approx(np.nan if slope is None else slope, nan_ok=True)
    if np.abs(x).max() > 1e-9 and np.abs(y).max() > 1e-9:
        assert pearson(totals)[0] == pytest.approx(pearsonr(x, y)[0])
    else:
        assert np.isnan(pearson(totals)[0])


def test_the_pairs_of_one_question_are_those_of_mann_and_whitney():
    from scipy.stats import mannwhitneyu

    from igrpo_eval.association import Sums

    rng = np.random.default_rng(0)
    values, success = np.round(rng.random(200), 2), rng.random(200) < 0.4
    totals = _totals(values, success, np.zeros(200, dtype=np.int64))[0]
    assert totals[Sums.CONCORDANT] == mannwhitneyu(values[success], values[~success])[0]
    assert totals[Sums.PAIRS] == success.sum() * (~success).sum()


@given(paths=PATHS, shift=st.lists(st.integers(-8, 8), min_size=5, max_size=5), data=st.data())
def test_what_differs_between_questions_changes_nothing_within(paths, shift, data):
    values, success, question = _columns(paths)
    # Eighths, so that shifted values are exact and ties stay ties.
    values = np.round(values * 8) / 8
    order = np.array(data.draw(st.permutations(range(len(values)))), dtype=np.int64)
    moved = (values + np.array(shift)[question])[order]
    np.testing.assert_allclose(
        _totals(moved, success[order], 100 - question[order]), _totals(values, success, question), atol=1e-12
    )


@given(paths=PATHS)
def test_failures_for_successes_mirror_the_auc_and_rising_transforms_keep_it(paths):
    from igrpo_eval.association import auc

    values, success, question = _columns(paths)
    area = auc(_totals(values, success, question))[0]
    assert auc(_totals(values, ~success, question))[0] == pytest.approx(1 - area, nan_ok=True)
    assert auc(_totals(np.exp(3 * values), success, question))[0] == pytest.approx(area, nan_ok=True)


def test_correlation_between_questions_is_that_of_their_means():
    from igrpo_eval.association import between_pearson, mean_sums

    rng = np.random.default_rng(1)
    question = rng.integers(0, 30, 300)
    values, success = 1e3 + rng.random(300), rng.random(300) < 0.5
    totals = mean_sums(values, success, question, question).sum(axis=0, keepdims=True)
    means = [(values[question == q].mean(), success[question == q].mean()) for q in range(30)]
    assert between_pearson(totals)[0] == pytest.approx(np.corrcoef(np.array(means).T)[0, 1])
    same = mean_sums(np.full(300, 0.1), success, question, question).sum(axis=0, keepdims=True)
    assert np.isnan(between_pearson(same)[0])


def test_a_question_under_two_policies_pairs_apart_and_is_drawn_once():
    from igrpo_eval.association import Sums, question_sums

    values, success = np.array([0.1, 0.9, 0.5, 0.6]), np.array([False, True, True, False])
    sums = question_sums(values, success, np.array([0, 0, 1, 1]), np.array([7, 7, 7, 7]))
    assert len(sums) == 1
    assert sums[0, [Sums.CONCORDANT, Sums.PAIRS]].tolist() == [1, 2]


def test_resampled_totals_have_the_exact_bootstrap_law():
    from igrpo_eval.association import auc, resampled_totals

    sums, resamples = np.random.default_rng(2).random((4, 7)), 20_000
    law = auc(np.array([sums[list(drawn)].sum(axis=0) for drawn in itertools.product(range(4), repeat=4)]))
    drawn = auc(resampled_totals(sums, seed=3, resamples=resamples))
    points = np.unique(law)[:, None] + 1e-9
    distance = np.abs((drawn <= points).mean(axis=1) - (law <= points).mean(axis=1)).max()
    # Dvoretzky-Kiefer-Wolfowitz with Massart's constant.
    assert distance <= np.sqrt(np.log(2 / FALSE_ALARM) / (2 * resamples)), distance


def test_neither_memory_blocks_nor_the_order_of_questions_change_the_intervals(monkeypatch):
    from igrpo_eval import association

    sums = np.random.default_rng(0).random((41, 7))
    whole = association.resampled_totals(sums, seed=1, resamples=100)
    monkeypatch.setattr(association, "_BLOCK_NUMBERS", 300)
    np.testing.assert_allclose(association.resampled_totals(sums[::-1], seed=1, resamples=100), whole, rtol=1e-12)
    without = np.concatenate([sums, np.zeros((9, 7))])
    np.testing.assert_allclose(association.resampled_totals(without, seed=1, resamples=100), whole, rtol=1e-12)


@pytest.mark.parametrize(("num_questions", "effect"), [(60, 1.0), (150, 0.0)])
def test_a_95_percent_interval_covers_the_truth_as_often_as_it_says(num_questions, effect):
    from scipy.stats import binom, norm

    from igrpo_eval.association import auc, estimate, question_sums

    trials, samples = 300, 6
    rng = np.random.default_rng(5)
    question = np.repeat(np.arange(num_questions), samples)
    truth = norm.cdf(effect / np.sqrt(2))
    covered = 0
    for trial in range(trials):
        ease = rng.random(num_questions)
        success = rng.random(len(question)) < ease[question]
        values = 5 * ease[question] + effect * success + rng.standard_normal(len(question))
        sums = question_sums(values, success, question, question)
        (interval,) = estimate(sums, (auc,), seed=trial, resamples=500)
        covered += interval.low <= truth <= interval.high
    # The percentile bootstrap is known to cover a little less than it says at this size.
    low, high = binom.ppf(FALSE_ALARM / 2, trials, 0.92), binom.isf(FALSE_ALARM / 2, trials, 0.96)
    assert low <= covered <= high, f"covered {covered} of {trials}, standard error {np.sqrt(trials * 0.05 * 0.95):.1f}"


def test_what_is_not_defined_is_none_and_one_question_has_no_interval():
    from igrpo_eval.association import Estimate, auc, covariance, estimate, pearson, question_sums

    statistics = (auc, pearson, covariance)
    nothing = Estimate(None, None, None)
    question = np.repeat(np.arange(3), 2)
    won = question_sums(np.arange(6.0), np.ones(6, dtype=bool), question, question)
    assert estimate(won, statistics, seed=0, resamples=9) == (nothing, nothing, Estimate(0.0, 0.0, 0.0))
    empty = question_sums(np.zeros(0), np.zeros(0, dtype=bool), question[:0], question[:0])
    assert estimate(empty, statistics, seed=0, resamples=9) == (nothing, nothing, nothing)
    one = question_sums(np.array([0.2, 0.1]), np.array([True, False]), question[:2], question[:2])
    assert estimate(one, (auc,), seed=0, resamples=9) == (Estimate(1.0, None, None),)


def test_shares_by_column_are_ratios_of_totals():
    from igrpo_eval.association import Estimate, ratio_estimates

    above, below = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[2.0, 0.0], [4.0, 0.0]])
    assert ratio_estimates(above, below, seed=0, resamples=9) == [Estimate(0.5, 0.5, 0.5), Estimate(None, None, None)]


def test_one_question_with_both_outcomes_gives_no_interval():
    from igrpo_eval.association import auc, estimate, question_sums

    question = np.repeat(np.arange(100), 5)
    success = np.arange(500) < 2
    value = np.random.default_rng(0).normal(size=500)
    found = estimate(question_sums(value, success, question, question), (auc,), seed=0, resamples=50)[0]
    assert found.value is not None
    assert found.low is found.high is None
