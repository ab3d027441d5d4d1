import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory import (
    GrowthRule,
    NodeStatus,
    PolicyTreeWorld,
    grow,
    multiplicity,
    path_values,
    question_keys,
    random_policy_tree,
    root_to_leaf_paths,
)


@given(seed=st.integers(0, 10**6), answer_rate=st.sampled_from([0.0, 0.3, 1.0]), cap=st.integers(1, 3))
def test_paths_are_the_walks_up_from_the_leaves(seed: int, answer_rate: float, cap: int) -> None:
    policy = random_policy_tree(np.random.default_rng(seed), turns=4, branching=2, answer_rate=answer_rate)
    keys = question_keys(seed, 0, np.arange(3), ["a", "b", "c"])
    rule = GrowthRule(budget=4, cap=cap, turn_limit=4, score_chains=seed % 2 == 0)
    tree = grow(PolicyTreeWorld(policy), [0, 0, 0], keys, rule).tree
    paths = root_to_leaf_paths(tree)
    through = np.zeros(tree.num_nodes, dtype=int)
    parent, values = tree.parent.tolist(), path_values(tree, paths)
    assert paths.leaf.tolist() == sorted(
        np.flatnonzero(tree.status != NodeStatus.ACTIVE), key=lambda n: tree.question[n]
    )
    for path, leaf in enumerate(paths.leaf):
        walk = [int(leaf)]
        while parent[walk[0]] >= 0:
            walk.insert(0, parent[walk[0]])
        through[walk] += 1
        turns = walk[1:]
        assert walk[0] == paths.question[path] == tree.question[leaf]
        assert paths.nodes[path].tolist() == turns + [-1] * (paths.nodes.shape[1] - len(turns))
        assert paths.length[path] == len(turns)
        expected = sum(value for value in tree.value[turns[:-1]] if not np.isnan(value))
        assert abs(values[path] - expected) < 1e-12
    assert multiplicity(tree, paths).tolist() == through.tolist()


def test_the_value_of_a_truncated_leaf_is_not_part_of_its_path_value() -> None:
    policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=3)
    tree = grow(PolicyTreeWorld(policy), [0], np.array([1], dtype=np.uint64), GrowthRule(turn_limit=3)).tree
    paths = root_to_leaf_paths(tree)
    first = (paths.length == 1) & (tree.status[paths.leaf] == NodeStatus.TRUNCATED)
    assert first.any()
    assert not np.isnan(tree.value[paths.leaf[first]]).any()
    assert (path_values(tree, paths)[first] == 0).all()
