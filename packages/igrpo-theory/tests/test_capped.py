from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from theory_oracles import multinomial_law, sequential_law

from igrpo_theory import capped_law, capped_mean, capped_rate, elasticity, expected_counts, finite_elasticity

CAPS = st.integers(1, 12)
RATES = st.floats(0, 200)


# F_c


@given(rate=RATES, cap=CAPS)
def test_three_closed_forms_of_the_capped_mean_agree(rate: float, cap: int) -> None:
    ours = float(capped_mean(np.array([rate]), cap)[0])
    tails = sum(stats.poisson.sf(k - 1, rate) for k in range(1, cap + 1))
    missing = sum((cap - k) * stats.poisson.pmf(k, rate) for k in range(cap))
    assert ours == pytest.approx(tails, rel=1e-12, abs=1e-12)
    assert ours == pytest.approx(cap - missing, rel=1e-12, abs=1e-12)
    if cap == 1:
        assert ours == pytest.approx(-np.expm1(-rate), rel=1e-13)
    if cap == 2:
        assert ours == pytest.approx(2 - (2 + rate) * np.exp(-rate), rel=1e-12, abs=1e-12)


@given(rates=st.lists(RATES, min_size=3, max_size=3, unique=True).map(sorted), cap=CAPS)
def test_the_capped_mean_is_rising_concave_and_below_both_bounds(rates: list[float], cap: int) -> None:
    low, middle, high = capped_mean(np.array(rates), cap)
    assert low <= middle + 1e-12 <= high + 2e-12
    assert middle <= min(cap, rates[1]) * (1 + 1e-12)
    share = (rates[1] - rates[0]) / (rates[2] - rates[0])
    assert middle >= (1 - share) * low + share * high - 1e-9
    assert capped_mean(np.array(rates), cap + 1)[1] >= middle - 1e-12  # a looser cap never gives fewer


@given(rate=st.floats(1e-4, 1e-2), cap=st.integers(1, 4))
def test_the_cap_is_felt_at_order_c_plus_one(rate: float, cap: int) -> None:
    loss = (rate - float(capped_mean(np.array([rate]), cap)[0])) * float(np.prod(np.arange(1.0, cap + 2)))
    assert loss == pytest.approx(rate ** (cap + 1), rel=cap * rate, abs=1e-14)


@given(means=st.lists(st.floats(0, 15), min_size=1, max_size=5), cap=CAPS)
def test_the_inverse_gives_the_mean_back(means: list[float], cap: int) -> None:
    rate = capped_rate(np.array(means), cap)
    assert (np.isinf(rate) == (np.array(means) >= cap)).all()
    assert np.allclose(capped_mean(rate, cap), np.minimum(means, cap), rtol=1e-14, atol=0)


# Effective gamma


def test_the_share_of_gamma_that_a_cap_leaves() -> None:
    """Numbers worked out beforehand by another program; three decimals are all that was kept."""
    ratios = (0.5, 0.8, 1.0, 1.25, 1.5, 5 / 3, 1.9, 2.5)
    table = {
        2: (0.937, 0.854, 0.782, 0.671, 0.531, 0.413, 0.181, 0.0),
        3: (0.989, 0.964, 0.938, 0.895, 0.839, 0.794, 0.721, 0.454),
        4: (0.999, 0.993, 0.985, 0.970, 0.947, 0.928, 0.895, 0.773),
        5: (1.000, 0.999, 0.997, 0.993, 0.985, 0.978, 0.964, 0.906),
    }
    for cap, shares in table.items():
        assert [elasticity(ratio, cap) for ratio in ratios] == pytest.approx(shares, abs=5.1e-4)
    assert float(capped_rate(np.array([1.0]), 2)[0]) == pytest.approx(1.14619, abs=5e-6)
    assert [elasticity(0.5, 1), elasticity(0.8, 1), elasticity(1.0, 1)] == pytest.approx([0.693, 0.402, 0], abs=5.1e-4)


@given(ratio=st.floats(1e-3, 12), cap=CAPS)
def test_the_share_is_the_logarithmic_slope_of_the_capped_mean(ratio: float, cap: int) -> None:
    share = elasticity(ratio, cap)
    assert 0 <= share <= 1
    if ratio < 0.999 * cap:
        rate = float(capped_rate(np.array([ratio]), cap)[0])
        down, up = capped_mean(rate * np.exp([-1e-5, 1e-5]), cap)
        assert share == pytest.approx(np.log(up / down) / 2e-5, abs=1e-5)
    else:
        assert share <= 0.05 or cap > 1


@pytest.mark.parametrize(
    ("budget", "cap", "nodes", "shares"),
    [
        (5, 2, (2, 3, 4, 5), (0.0, 0.364, 0.706, 0.824)),  # full mode as nodes answer
        (5, 3, (2, 3, 4, 5), (0.375, 0.856, 0.944, 0.973)),
        (8, 2, (4, 5, 6, 7, 8), (0.0, 0.457, 0.644, 0.745, 0.806)),
        (3, 2, (2, 3), (0.5, 0.861)),  # mid of two, low of three
        (4, 2, (3, 4), (0.681, 0.840)),  # mid of three, low of four
        (2, 2, (2,), (1.0,)),  # low of two: the cap cannot bind
    ],
)
def test_the_response_of_a_small_stage(budget: int, cap: int, nodes: tuple[int], shares: tuple[float]) -> None:
    ours = [finite_elasticity(num_active, budget, cap) for num_active in nodes]
    assert ours == pytest.approx(shares, abs=6e-4)


def test_the_small_stage_tends_to_the_large_one() -> None:
    gaps = [abs(finite_elasticity(nodes, nodes, 2) - elasticity(1.0, 2)) for nodes in (5, 20, 40)]
    assert gaps[2] < 0.6 * gaps[1] < 0.2 * gaps[0]


# The exact law


@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=4), budget=st.integers(1, 5), cap=st.integers(1, 6))
def test_the_law_is_the_one_at_a_time_recursion(weights: list[int], budget: int, cap: int) -> None:
    law = capped_law(weights, budget, cap)
    assert law == sequential_law([Fraction(weight) for weight in weights], budget, cap)
    assert sum(law.values()) == 1
    if cap >= budget:
        assert law == multinomial_law([Fraction(weight) for weight in weights], budget)
    if budget >= cap * len(weights):
        assert law == {(cap,) * len(weights): 1}  # saturated: the weights have no say


@given(weights=st.lists(st.integers(1, 20), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_relabelling_nodes_relabels_the_law(weights: list[int], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(weights)).tolist()
    law = capped_law(weights, 4, 2)
    moved = capped_law([weights[node] for node in order], 4, 2)
    assert moved == {tuple(counts[node] for node in order): mass for counts, mass in law.items()}


# Means


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=5),
    budget=st.integers(1, 7),
    cap=st.integers(1, 4),
)
def test_expected_counts_are_the_means_of_the_exact_law(weights: list[float], budget: int, cap: int) -> None:
    law = capped_law(weights, budget, cap)
    exact = [float(sum(mass * counts[node] for counts, mass in law.items())) for node in range(len(weights))]
    ours = expected_counts(np.array(weights), np.zeros(len(weights), dtype=int), np.array([budget]), cap)
    assert ours == pytest.approx(exact, rel=1e-11)


@given(num_nodes=st.integers(1, 12), budget=st.integers(1, 30), cap=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_expected_counts_add_up_rise_with_the_weight_and_stay_below_the_cap(
    num_nodes: int, budget: int, cap: int, seed: int
) -> None:
    weights = np.sort(np.random.default_rng(seed).dirichlet(np.full(num_nodes, 0.2)))
    counts = expected_counts(weights, np.zeros(num_nodes, dtype=int), np.array([budget]), cap)
    assert counts.sum() == pytest.approx(min(budget, cap * num_nodes), rel=1e-10)
    assert (np.diff(counts) >= -1e-10).all()
    assert counts.min() >= 0
    assert counts.max() <= cap + 1e-10


def test_expected_counts_of_weights_hundreds_of_decades_apart() -> None:
    weights = np.exp(-100.0 * np.arange(5))
    counts = expected_counts(weights, np.zeros(5, dtype=int), np.array([5]), 2)
    assert counts[:3].tolist() == pytest.approx([2.0, 2.0, 1.0])
    assert (counts > 0).all()  # the least of them is a denominator elsewhere
    none = expected_counts(np.array([1.0, 0.0, 0.0]), np.zeros(3, dtype=int), np.array([3]), 2)
    assert none.tolist() == pytest.approx([2.0, 0.5, 0.5])  # drawn only because the cap forces it


def test_a_large_stage_has_the_mean_field_counts() -> None:
    base = np.array([0.5, 1.0, 2.0])
    counts = expected_counts(np.tile(base, 20), np.zeros(60, dtype=int), np.array([60]), 2)[:3]
    rate = optimize.brentq(lambda rate: capped_mean(rate * base, 2).mean() - 1, 0.1, 10)
    assert counts == pytest.approx(capped_mean(rate * base, 2), abs=0.01)


# Errors


def counts_of(rates: list[float], budget: int) -> np.ndarray:
    return expected_counts(np.array(rates), np.zeros(len(rates), dtype=int), np.array([budget]), 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: capped_mean(np.array([1.0]), 0), "cap must be at least 1, got 0: 1 is a chain"),
        (lambda: capped_mean(np.array([1.0, np.nan]), 2), "rate must be at least 0, got nan"),
        (lambda: capped_rate(np.array([-0.5]), 2), "mean must be at least 0, got -0.5"),
        (lambda: capped_rate(np.array([np.nan]), 2), "mean must be at least 0, got nan"),
        (lambda: elasticity(0.0, 2), "children_per_node must be above 0, got 0.0"),
        (lambda: finite_elasticity(1, 5, 2), "num_active must be at least 2, got 1: a lone node competes with nobody"),
        (lambda: finite_elasticity(3, 0, 2), "budget must be at least 1, got 0"),
        (lambda: capped_law([1, 2], 0, 2), "budget must be at least 1, got 0"),
        (lambda: capped_law([], 3, 2), "weights must hold at least one node, got none"),
        (lambda: counts_of([1.0, np.nan], 3), "rates must be at least 0, got nan: they are weights of nodes"),
        (lambda: counts_of([1.0, -2.0], 3), "rates must be at least 0, got -2.0"),
        (lambda: counts_of([1.0, 2.0], 0), r"budget must be at least 1 where nodes are active, got \[0\]"),
        (lambda: capped_law([1, 0], 3, 2), r"weights must be positive and finite, got \[1, 0\]: drop nodes"),
        (lambda: capped_law([1, float("nan")], 3, 2), "weights must be positive and finite"),
        (lambda: capped_law([1] * 20, 20, 2), "few enough to enumerate, got 20 at cap 2 and budget 20: use expected"),
    ],
)
def test_input_without_meaning_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_rates_far_apart_or_at_the_edge_of_floats_have_means() -> None:
    question = np.zeros(3, dtype=np.int64)
    assert expected_counts(np.array([3.0, 3.0, 0.0]), question, np.array([5]), 2).round(6).tolist() == [2.0, 2.0, 1.0]
    huge = expected_counts(np.full(3, 1e308), question, np.array([2]), 2)
    assert np.allclose(huge, 2 / 3)


def test_stages_that_are_too_much_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"budget times active nodes must be at most 20,000 .* got 1000 draws for 999"):
        expected_counts(np.ones(999), np.zeros(999, dtype=np.int64), np.array([1000]), 2)
