"""Questions that are grown apart and joined are, node for node, the forest of one growth."""

from itertools import pairwise

import numpy as np
import pytest

from igrpo_theory import GrowthRule, PolicyTreeWorld, grow, question_keys, random_policy_tree
from igrpo_theory.forests import join

COLUMNS = ("parent", "depth", "question", "local", "score", "value", "status")


@pytest.mark.parametrize("mode", ["full", "low", "mid"])
@pytest.mark.parametrize("cuts", [(3,), (0, 1), (4, 5, 6)])
def test_joined_forests_are_the_forest_of_one_growth(mode, cuts):
    rule = GrowthRule(budget=4, cap=2, gamma=2.0, budget_mode=mode, turn_limit=4)
    policy = random_policy_tree(np.random.default_rng(1), turns=4, branching=3, answer_rate=0.4)
    keys = question_keys(5, 0, np.arange(7), [str(k) for k in range(7)])

    def grown(part):
        return grow(PolicyTreeWorld(policy), np.zeros(len(keys[part]), dtype=np.int64), keys[part], rule).tree

    whole = grown(slice(None))
    bounds = [0, *cuts, 7]
    parts = [slice(a, b) for a, b in pairwise(bounds) if b > a]
    joined = join([grown(part) for part in parts])
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name), err_msg=name)
    assert list(joined.payload) == list(whole.payload)
    assert joined.to_records(int) == whole.to_records(int)
    assert len(joined.stages) == len(whole.stages)
    for one, other in zip(joined.stages, whole.stages, strict=True):
        for name in ("nodes", "probabilities", "counts"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_nothing_to_join_is_refused():
    with pytest.raises(ValueError, match="forests must hold at least one"):
        join([])


def test_forests_of_different_rules_are_refused():
    policy = random_policy_tree(np.random.default_rng(1), turns=3, branching=3)
    keys = question_keys(5, 0, np.arange(1), ["0"])
    roots = np.zeros(1, dtype=np.int64)
    one, other = (
        grow(PolicyTreeWorld(policy), roots, keys, GrowthRule(gamma=gamma, turn_limit=3)).tree for gamma in (1.0, 2.0)
    )
    with pytest.raises(ValueError, match=r"forests must be grown by one gamma, got \[1.0, 2.0\] at depth 1"):
        join([one, other])
