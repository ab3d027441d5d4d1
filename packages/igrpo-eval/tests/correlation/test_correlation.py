"""Studies: V, the guards against what only looks like a correlation, verdicts, calibration and cumulative gains."""

import numpy as np
import pytest

CAUTION = "but paths of equal length do not show it"


def _only(paths, **settings):
    from igrpo_eval.correlation import study

    (one,) = study(paths, resamples=300, **settings)
    return one


def _row(rows, label):
    return next(row for row in rows if row.label == label)


def _says_nothing(auc):
    """Whether an AUC is within 5 standard errors of one half: false of a true half once in 2 million seeds."""
    return abs(auc.value - 0.5) < 5 * (auc.high - auc.low) / 3.92


def _chains(num_questions, samples, seed):
    rng = np.random.default_rng(seed)
    return rng, np.repeat(np.arange(num_questions), samples), rng.random(num_questions)


def test_v_adds_the_mean_of_score_and_gain_and_counts_unscored_paths_as_zero(make_paths):
    from igrpo_eval.correlation import path_values

    nan = np.nan
    paths = make_paths([0, 0, 0], [1, 0, 0], [[0.5, 0.75], [0.25, nan], [nan, nan]], root=np.full(3, 0.5))
    assert np.nansum(path_values(paths), axis=1).tolist() == [0.5 + 0.5, 0.25, 0.0]
    assert np.nansum(path_values(paths, "evaluate"), axis=1).tolist() == [0.25 + 0.5, 0.0, 0.0]
    with pytest.raises(ValueError, match="root_score must be zero where roots were not scored, got 'evaluate'"):
        path_values(make_paths([0], [1], [[0.5]]), "evaluate")


def test_a_value_that_tells_right_from_wrong_is_supported(make_paths):
    rng, question, ease = _chains(150, 6, 0)
    success = rng.random(len(question)) < ease[question]
    score = rng.beta(2 + 3 * success, 4)[:, None]
    one = _only(make_paths(question, success, score))
    (verdict,) = one.verdicts
    assert (verdict.source, verdict.judgement) == ("nq", "supported")
    assert verdict.reason == "the AUC of V lies above 0.6"
    assert verdict.auc == verdict.equal_length == verdict.before
    assert one.values[0].covariance.low > 0


def test_a_value_that_only_tells_easy_from_hard_questions_is_refuted(make_paths):
    """Refuted by all but one seed in a million: the bar is more than 5 standard errors above the interval's place."""
    rng, question, ease = _chains(800, 6, 1)
    success = rng.random(len(question)) < ease[question]
    score = np.clip(ease[question] + 0.05 * rng.standard_normal(len(question)), 0, 1)[:, None]
    one = _only(make_paths(question, success, score))
    assert one.between.low > 0.8
    assert one.verdicts[0].judgement == "refuted"
    auc = one.values[0].auc
    assert _says_nothing(auc)
    assert (5 + 1.96) * (auc.high - auc.low) / 3.92 < 0.6 - 0.5
    # Over all pairs, of whatever question, it would have looked like a success.
    wins, losses = score[success, 0], score[~success, 0]
    assert np.mean(wins[:500, None] > losses[None, :500]) > 0.75


def test_longer_paths_that_succeed_more_often_fake_a_correlation_which_the_table_by_length_shows(make_paths):
    """The caution is an interval of 95% that holds .5: one seed in 40 would miss it."""
    rng, question, _ = _chains(200, 8, 2)
    length = rng.integers(1, 4, len(question))
    success = rng.random(len(question)) < length / 4
    score = np.full((len(question), 3), np.nan)
    for turn in range(3):
        score[:, turn] = np.where(length > turn, rng.uniform(0.4, 0.6, len(question)), np.nan)
    one = _only(make_paths(question, success, score))
    assert one.verdicts[0].judgement == "supported"
    assert CAUTION in one.verdicts[0].reason
    for label in ("2 turns", "3 turns", "4 turns", "pairs of equal length"):
        assert _says_nothing(_row(one.by_length, label).auc)
    assert _row(one.by_length, "all lengths").auc.low > 0.6


def test_a_score_that_tells_only_what_was_found_is_told_apart_by_view(make_paths):
    """As above, one seed in 40 would miss the caution."""
    rng, question, _ = _chains(150, 6, 3)
    success = rng.random(len(question)) < 0.5
    score = np.stack([rng.random(len(question)) / 10, 0.8 * success + rng.random(len(question)) / 10], axis=1)
    seen = np.stack([np.zeros_like(success), success, success], axis=1)
    one = _only(make_paths(question, success, score, seen=seen))
    first = _row(one.by_view, "s after turn 1, before")
    assert _says_nothing(first.auc)
    assert (first.num_paths, _row(one.by_view, "s after turn 2, after").success) == (900, 1.0)
    assert one.verdicts[0].judgement == "supported"
    assert "but nodes before the find do not show it" in one.verdicts[0].reason


def test_paths_without_a_scored_node_are_zero_and_can_be_left_out(make_paths):
    nan = np.nan
    paths = make_paths([0, 0, 0, 0], [1, 0, 0, 1], [[0.5], [nan], [0.25], [nan]])
    one = _only(paths)
    assert one.num_unscored == 2
    everything, scored = (_row(one.values, label) for label in ("V", "V, paths with a scored node"))
    assert (everything.num_paths, everything.auc.value) == (4, (1 + 1 + 0.5 + 0) / 4)
    assert (scored.num_paths, scored.auc.value) == (2, 1.0)


@pytest.mark.parametrize("outcome", [True, False])
def test_all_successes_or_failures_leave_the_verdict_open(outcome, make_paths):
    one = _only(make_paths(np.repeat(np.arange(40), 5), np.full(200, outcome), np.full((200, 1), 0.5)))
    assert one.verdicts[0].judgement == "undecided"
    assert one.verdicts[0].reason == "0 questions have both outcomes, 30 are needed"
    assert one.verdicts[0].auc.value is None


def test_verdicts_follow_the_interval():
    from igrpo_eval.association import Estimate
    from igrpo_eval.correlation import judge

    assert judge(Estimate(0.7, 0.61, 0.8), 30, 99)[0] == "supported"
    assert judge(Estimate(0.5, 0.4, 0.59), 30, 99)[0] == "refuted"
    assert judge(Estimate(0.6, 0.6, 0.7), 30, 99) == ("undecided", "the interval of the AUC of V holds 0.6")
    assert judge(Estimate(1.0, 1.0, 1.0), 29, 99) == ("undecided", "29 questions have both outcomes, 30 are needed")
    assert judge(Estimate(0.5, 0.5, 0.5), 99, 0) == ("undecided", "no path has a scored node")


def test_truncated_paths_are_left_out_and_counted(make_paths):
    complete = np.array([True, True, False])
    one = _only(make_paths([0, 0, 0], [1, 0, 1], [[0.5], [0.25], [0.0]], complete=complete))
    assert (one.num_paths, one.num_truncated, one.values[0].auc.value) == (2, 1, 1.0)
    assert _only(make_paths([0], [0], [[0.5]], complete=np.zeros(1, dtype=bool))).num_paths == 0


def test_policies_are_never_pooled_and_trees_get_no_verdict(make_paths):
    from igrpo_eval.correlation import study
    from igrpo_eval.trajectories import Policy

    policies = (Policy("a", None, 5, 1.0, False, 0), Policy("a", None, None, 1.0, True, 0))
    policy = np.array([0, 0, 1, 1])
    step = np.array([5, 5, 1, 2])
    paths = make_paths([0, 0, 0, 0], [1, 0, 0, 1], [[0.5], [0.2], [0.5], [0.2]], policy=policy, unit=policy, step=step,
                       policies=policies)  # fmt: skip
    chains, trees = study(paths, resamples=9)
    assert (chains.values[0].auc.value, trees.values[0].auc.value) == (1.0, 0.0)
    assert (len(chains.verdicts), len(trees.verdicts)) == (1, 0)
    assert [row.label for row in trees.by_group] == ["step 1", "step 2"]


def test_many_steps_are_put_into_ranges(make_paths):
    step = np.arange(14)
    one = _only(make_paths(step, step % 2, np.full((14, 1), 0.5), step=step))
    labels = [row.label for row in one.by_group]
    assert labels == ["steps 0-2", "steps 3-5", "steps 6-7", "steps 8-9", "steps 10-11", "steps 12-13"]


def test_groups_are_rows_of_their_own(make_paths):
    rng, question, _ = _chains(4, 5, 0)
    success = rng.random(20) < 0.5
    source, hops = question % 2, question // 2
    one = _only(
        make_paths(question, success, rng.random((20, 1)), source=source, hops=hops, sources=("", "nq")),
    )
    assert [row.label for row in one.by_group] == ["source=unnamed", "source=nq", "hops=0", "hops=1"]
    assert [verdict.source for verdict in one.verdicts] == ["unnamed", "nq"]


def test_calibration_counts_nodes_by_bin(make_paths):
    one = _only(make_paths([0, 0, 1], [1, 0, 1], [[0.05, 1.0], [0.06, np.nan], [0.95, np.nan]]))
    bins = {(b.low, b.num_nodes): (b.mean_score, b.success.value) for b in one.calibration if b.view == "all"}
    assert bins[0.0, 2] == (pytest.approx(0.055), 0.5)
    assert bins[0.9, 2] == (pytest.approx(0.975), 1.0)
    assert bins[0.5, 0] == (None, None)


def test_cumulative_gain_is_the_distance_from_the_root(make_paths):
    score = [[0.5, 0.75], [0.25, np.nan], [0.75, 0.25]]
    paths = make_paths([0, 0, 1], [1, 0, 1], score, root=np.full(3, 0.125), step=np.full(3, 7))
    gains = {(g.success, g.turn): (g.num_paths, g.gain.value) for g in _only(paths, root_score="evaluate").gains}
    assert gains == {(True, 1): (2, 0.5), (True, 2): (2, 0.375), (False, 1): (1, 0.125)}
    assert {gain.steps for gain in _only(paths).gains} == {"step 7"}


def test_names_and_order_of_paths_change_nothing(make_paths):
    rng, question, ease = _chains(40, 5, 4)
    success = rng.random(200) < ease[question]
    score = rng.random((200, 2))
    order = rng.permutation(200)
    first = _only(make_paths(question, success, score))
    second = _only(make_paths(99 - question[order], success[order], score[order]))
    for row, other in zip((*first.by_length, *first.values), (*second.by_length, *second.values), strict=True):
        assert row[:5] == other[:5]
        for name in ("auc", "pearson", "covariance"):
            assert tuple(getattr(row, name)) == pytest.approx(tuple(getattr(other, name)))
