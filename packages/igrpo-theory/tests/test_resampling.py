import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from igrpo_theory import draw_expansions, fold, resampling
from igrpo_theory.expansion import Scheme

WEIGHTS = np.array([0.07, 0.41, 0.02, 0.27, 0.23])


def counts_of(weights: np.ndarray, budget: int, scheme: Scheme, repeats: int, seed: int = 0) -> np.ndarray:
    """Counts of one stage, drawn for many questions in one call."""
    keys = fold(np.arange(repeats, dtype=np.uint64), seed)
    question = np.repeat(np.arange(repeats), len(weights))
    budgets = np.full(repeats, budget)
    drawn = draw_expansions(np.tile(weights, repeats), question, budgets, budget, keys, scheme)
    return drawn.reshape(repeats, len(weights))


@given(
    num_nodes=st.integers(1, 9),
    budget=st.integers(1, 60),
    seed=st.integers(0, 10**6),
    scheme=st.sampled_from(["residual", "stratified", "systematic"]),
)
def test_counts_spend_the_budget_and_stay_near_the_share(
    num_nodes: int, budget: int, seed: int, scheme: Scheme
) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(num_nodes, 0.5))
    counts = counts_of(weights, budget, scheme, 1, seed)[0]
    share = budget * weights
    assert counts.sum() == budget
    assert (counts >= 0).all()
    if scheme == "stratified":
        assert (np.abs(counts - share) < 2 + 1e-9).all()
    else:
        assert (counts >= np.floor(share - 1e-9)).all()
    if scheme == "systematic":
        assert (counts <= np.ceil(share + 1e-9)).all()


@pytest.mark.parametrize("scheme", ["residual", "stratified", "systematic"])
@given(shares=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), seed=st.integers(0, 99))
def test_whole_shares_are_handed_out_for_sure(scheme: Scheme, shares: list[int], seed: int) -> None:
    budget = sum(shares)
    weights = np.array(shares) / budget
    counts = counts_of(weights, budget, scheme, 1, seed)[0]
    # Rounding may move the last child between neighbours of stratified and systematic draws: probability about 1e-15.
    assert counts.tolist() == shares


@pytest.mark.parametrize("scheme", ["residual", "stratified", "systematic"])
@pytest.mark.parametrize("budget", [2, 5, 9])
def test_mean_counts_are_the_shares(scheme: Scheme, budget: int, alpha: float) -> None:
    counts = counts_of(WEIGHTS, budget, scheme, 40_000)
    error = counts.std(axis=0, ddof=1) / np.sqrt(len(counts))
    z = (counts.mean(axis=0) - budget * WEIGHTS) / error
    assert np.abs(z).max() < stats.norm.isf(alpha / 2 / len(z)), z.round(2)


@pytest.mark.parametrize("scheme", ["residual", "stratified"])
def test_sums_over_nodes_vary_no_more_than_under_independent_draws(scheme: Scheme, alpha: float) -> None:
    """Douc, Cappe and Moulines: never a larger conditional variance than multinomial; here with exact variances."""
    rng = np.random.default_rng(3)
    for number in range(10):
        weights, f = rng.dirichlet(np.ones(5)), rng.normal(size=5)
        sums = counts_of(weights, 6, scheme, 20_000, number) @ f
        multinomial = 6 * (weights @ f**2 - (weights @ f) ** 2)
        # The variance of a sample variance from its fourth moment; one-sided z-bound.
        squares = (sums - sums.mean()) ** 2
        error = squares.std(ddof=1) / np.sqrt(len(sums))
        assert squares.mean() < multinomial + stats.norm.isf(alpha / 10) * error


def test_residual_leftovers_are_independent_draws(alpha: float) -> None:
    # Shares 2.5, 1.5, 1: the two leftover children go to nodes 0 and 1 like two fair coins.
    counts = counts_of(np.array([0.5, 0.3, 0.2]), 5, "residual", 40_000)
    assert (counts[:, 2] == 1).all()
    seen = np.bincount(counts[:, 0] - 2, minlength=2)
    assert stats.binomtest(int(seen[1]), 40_000, 0.5).pvalue > alpha
    # Shares 1.5, 1.5, 1.5, .5: both leftover children may go to one node, which systematic draws never do.
    four = np.array([1.5, 1.5, 1.5, 0.5]) / 5
    assert counts_of(four, 5, "residual", 2000).max() == 3
    assert counts_of(four, 5, "systematic", 2000).max() == 2


def test_stratified_draws_can_be_two_away_where_systematic_cannot(alpha: float) -> None:
    counts = counts_of(np.array([0.3, 0.4, 0.3]), 2, "stratified", 20_000)
    assert sorted(set(counts[:, 1].tolist())) == [0, 1, 2]
    both = (counts[:, 1] == 2).mean()  # the last fifth of slice one and the first fifth of slice two... of .4 each
    assert abs(both - 0.4**2) < stats.norm.isf(alpha / 2) * np.sqrt(0.16 * 0.84 / 20_000)


@pytest.mark.parametrize("scheme", ["capped", "systematic"])
def test_large_stages_follow_the_law_of_small_ones(scheme: Scheme, alpha: float) -> None:
    """Above the size at which randomness comes from a generator a question, on 10 nodes of 500 draws each on average.

    Nodes of equal probability are pooled to groups; multinomial group counts by chi-square over replicates, systematic
    ones by their mean, and by the variance that a random order of nodes gives them.
    """
    repeats, num_nodes, budget = 200, 5000, 5000
    weights = np.tile([0.2, 0.5, 1.0, 1.3, 2.0], num_nodes // 5)
    counts = counts_of(weights / weights.sum(), budget, scheme, repeats).reshape(repeats, -1, 5)
    groups, share = counts.sum(axis=1), np.array([0.2, 0.5, 1.0, 1.3, 2.0]) / 5
    assert (groups.sum(axis=1) == budget).all()
    if scheme == "capped":
        expected = budget * share
        statistic = ((groups - expected) ** 2 / expected).sum()
        assert alpha / 4 < stats.chi2.sf(statistic, 4 * repeats) < 1 - alpha / 4
        # Inside a group nodes are alike, and counts of one node are binomial.
        seen = np.bincount(counts[:, :, 4].ravel(), minlength=12)[:12]
        law = stats.binom.pmf(np.arange(12), budget, 2.0 / num_nodes)
        assert stats.chisquare(seen[:10], law[:10] / law[:10].sum() * seen[:10].sum()).pvalue > alpha / 2
    else:
        low = np.floor(weights.reshape(-1, 5) * budget / weights.sum() + 1e-9)
        assert ((counts == low) | (counts == low + 1)).all()
        error = groups.std(axis=0, ddof=1) / np.sqrt(repeats) + 1e-9
        assert (np.abs(groups.mean(axis=0) - budget * share) < stats.norm.isf(alpha / 20) * error + 1e-6).all()
        # In the order given, each block of five nodes would get the same children but one: no spread between places.
        places = counts[:, :, 1].mean(axis=0)
        assert np.abs(places - 0.5).max() < stats.norm.isf(alpha / 4 / len(places)) * 0.5 / np.sqrt(repeats)


def test_nodes_in_a_row_of_a_large_stage_do_not_go_in_step(alpha: float) -> None:
    """Equal shares of a half, where a fixed order of the rows would give all nodes of a row the same count."""
    counts = counts_of(np.full(8192, 1 / 8192), 4096, "systematic", 300)
    families = counts.reshape(300, -1, 8).sum(axis=2).ravel()
    # A family of eight: at most the variance of eight fair coins, as in a uniform order; in step it would be 16.
    squares = (families - 4.0) ** 2
    assert squares.mean() < 2 + stats.norm.isf(alpha) * squares.std() / np.sqrt(len(squares))
    distant = counts[:, ::128] * counts[:, 64::128]  # neighbours of one column, 64 nodes apart or 128
    assert abs(distant.mean() - 0.25) < 0.02


@pytest.mark.parametrize("scheme", ["capped", "systematic"])
def test_large_stages_never_draw_a_node_of_no_weight(scheme: Scheme) -> None:
    for seed in range(20):
        weights = np.random.default_rng(seed).exponential(size=4096 + 100 * seed)
        weights[seed::3] = 0.0
        counts = counts_of(weights / weights.sum(), 5000 + seed, scheme, 1, seed)[0]
        assert counts.sum() == 5000 + seed
        assert (counts >= 0).all()
        assert not counts[seed::3].any()


def test_many_draws_of_few_nodes_are_multinomial(alpha: float) -> None:
    """Means of thousands, which are beyond inversion; covariances against the law, one by one."""
    weights, budget, repeats = np.array([0.5, 0.3, 0.2]), 10_000, 2000
    counts = counts_of(weights, budget, "capped", repeats)
    assert (counts.sum(axis=1) == budget).all()
    deviations = (counts - budget * weights) / np.sqrt(budget)
    law = np.diag(weights) - np.outer(weights, weights)
    for products, exact in (
        (deviations, np.zeros(3)),
        ((deviations[:, :, None] * deviations[:, None, :]).reshape(repeats, 9), law.ravel()),
    ):
        error = products.std(axis=0, ddof=1) / np.sqrt(repeats)
        assert (np.abs(products.mean(axis=0) - exact) < stats.norm.isf(alpha / 24) * error).all()


def test_counts_are_the_same_however_many_questions_are_drawn_together() -> None:
    """Below and above the number of draws at which questions are counted one by one."""
    rng = np.random.default_rng(0)
    for budget in (20, 500, 5000):
        weights = rng.dirichlet(np.ones(300), size=3)
        keys = fold(np.arange(3, dtype=np.uint64), 5)
        together = resampling.multinomial(weights.ravel(), np.repeat(np.arange(3), 300), np.full(3, budget), keys)
        # Node by node in turn, so that no question is a slice.
        mixed = resampling.multinomial(weights.T.ravel(), np.tile(np.arange(3), 300), np.full(3, budget), keys)
        assert mixed.reshape(300, 3).T.ravel().tolist() == together.tolist()
        for slot in range(3):
            one = resampling.multinomial(
                weights[slot], np.zeros(300, dtype=int), np.array([budget]), keys[slot : slot + 1]
            )
            assert one.tolist() == together[300 * slot : 300 * (slot + 1)].tolist()


@pytest.mark.parametrize("scheme", ["capped", "residual", "stratified", "systematic"])
def test_a_small_question_beside_a_large_one_draws_as_it_does_alone(scheme: Scheme) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(6000))
    keys, sizes = fold(np.arange(3, dtype=np.uint64), 5), [6000, 0, 3]
    question, budget = np.repeat(np.arange(3), sizes), np.array([6000, 6000, 4])
    counts = draw_expansions(np.append(weights, WEIGHTS[:3]), question, budget, 6000, keys, scheme)
    assert np.bincount(question, weights=counts).tolist() == [6000, 0, 4]
    small = draw_expansions(WEIGHTS[:3], np.zeros(3, dtype=int), budget[2:], 6000, keys[2:], scheme)
    assert counts[6000:].tolist() == small.tolist()
