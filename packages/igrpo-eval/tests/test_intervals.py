"""Bootstrap intervals: the exact law, what they cover, and what belongs together."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

FALSE_ALARM = 1e-6
"""Chance that a correct implementation fails a statistical test; all seeds are fixed."""


def _exact_law(values, question):
    """Slow oracle: the means of all Q^Q equally likely resamples of whole questions."""
    groups = [values[question == number] for number in np.unique(question)]
    return np.array([np.concatenate(drawn).mean() for drawn in itertools.product(groups, repeat=len(groups))])


@pytest.mark.parametrize(
    ("values", "question"),
    [
        ([0.0, 1.0, 1.0, 0.0, 1.0], [0, 1, 2, 3, 4]),
        ([0.0, 0.3, 0.9, 1.0], [5, 2, 9, 7]),
        ([0.0, 1.0, 1.0, 1.0, 0.0, 0.5, 0.25], [1, 1, 1, 2, 2, 3, 4]),
    ],
)
def test_resampled_means_have_the_exact_bootstrap_law(values, question):
    from igrpo_eval.intervals import bootstrap_means

    values, question = np.array(values), np.array(question)
    law, resamples = _exact_law(values, question), 20_000
    drawn = bootstrap_means(values, question, np.random.default_rng(1), resamples)
    points = np.unique(law)[:, None] + 1e-9  # after each jump; equal means may differ in their last bits
    distance = np.abs((drawn <= points).mean(axis=1) - (law <= points).mean(axis=1)).max()
    # Dvoretzky-Kiefer-Wolfowitz with Massart's constant.
    assert distance <= np.sqrt(np.log(2 / FALSE_ALARM) / (2 * resamples)), distance


def test_memory_blocks_do_not_change_the_draws(monkeypatch):
    from igrpo_eval import intervals

    rng = np.random.default_rng(0)
    values, question = rng.random(40), np.arange(40)
    whole = intervals.bootstrap_means(values, question, np.random.default_rng(2), 100)
    monkeypatch.setattr(intervals, "_BLOCK_NUMBERS", 300)
    pieces = intervals.bootstrap_means(values, question, np.random.default_rng(2), 100)
    np.testing.assert_array_equal(whole, pieces)


@pytest.mark.parametrize(("num_questions", "truth"), [(200, 0.3), (125, 0.6)])
def test_a_95_percent_interval_covers_the_truth_as_often_as_it_says(num_questions, truth):
    from scipy.stats import binom

    from igrpo_eval.intervals import bootstrap_interval

    trials = 300
    rng = np.random.default_rng(7)
    covered = 0
    for trial in range(trials):
        values = (rng.random(num_questions) < truth).astype(float)
        interval = bootstrap_interval(values, np.arange(num_questions), seed=trial, resamples=2_000)
        covered += interval.low <= truth <= interval.high
    # The percentile bootstrap of a share is known to cover a little less than it says at this size.
    low, high = binom.ppf(FALSE_ALARM / 2, trials, 0.93), binom.isf(FALSE_ALARM / 2, trials, 0.96)
    assert low <= covered <= high, f"covered {covered} of {trials}, standard error {np.sqrt(trials * 0.05 * 0.95):.1f}"


def test_the_interval_of_a_share_is_the_binomial_one():
    from scipy.stats import binom

    from igrpo_eval.intervals import bootstrap_interval

    values = np.repeat([0.0, 1.0], [140, 60])
    interval = bootstrap_interval(values, np.arange(200), resamples=200_000)
    low, high = binom.ppf([0.025, 0.975], 200, 0.3) / 200
    assert (interval.low, interval.high) == pytest.approx((low, high))


@given(
    values=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=30),
    copies=st.integers(2, 5),
    seed=st.integers(0, 100),
)
def test_samples_of_one_question_are_no_further_evidence(values, copies, seed):
    from igrpo_eval.intervals import bootstrap_interval

    single = np.array(values)
    alone = bootstrap_interval(single, np.arange(len(single)), seed=seed, resamples=200)
    together = bootstrap_interval(
        np.repeat(single, copies), np.repeat(np.arange(len(single)), copies), seed=seed, resamples=200
    )
    assert together == pytest.approx(alone)


@given(data=st.data(), size=st.integers(1, 30))
def test_order_and_names_of_questions_change_nothing(data, size):
    from igrpo_eval.intervals import bootstrap_interval

    values = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size)))
    question = np.array(data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size)))
    order = np.array(data.draw(st.permutations(range(size))), dtype=np.int64)
    interval = bootstrap_interval(values, question, resamples=200)
    renamed = bootstrap_interval(values[order], 100 - question[order], resamples=200)
    assert interval == pytest.approx(renamed)
    assert interval.low <= interval.high


def test_the_interval_gets_narrower_with_the_root_of_the_number_of_questions():
    from igrpo_eval.intervals import bootstrap_interval

    widths = []
    for num_questions in (100, 1600):
        values = np.tile([0.0, 1.0], num_questions // 2)
        interval = bootstrap_interval(values, np.arange(num_questions))
        widths.append(interval.high - interval.low)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.1)


def test_settings_out_of_range_are_refused():
    from igrpo_eval.intervals import bootstrap_interval

    one = np.ones(1)
    with pytest.raises(ValueError, match="values must hold at least one record, got none: evaluate a question first"):
        bootstrap_interval(np.zeros(0), np.zeros(0, dtype=np.int64))
    with pytest.raises(ValueError, match=r"level must be between 0 and 1, got 95: 0\.95 is usual"):
        bootstrap_interval(one, np.zeros(1, dtype=np.int64), level=95)
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0: 10000 is usual"):
        bootstrap_interval(one, np.zeros(1, dtype=np.int64), resamples=0)
