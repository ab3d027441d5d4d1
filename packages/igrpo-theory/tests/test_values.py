from inspect import unwrap

import numpy as np
import pytest

from igrpo_theory import information_gain, node_value
from igrpo_theory.values import Criterion


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [("mean", [0.3, 0.35]), ("score", [0.4, 0.3]), ("gain", [0.2, 0.4]), ("zero", [0.0, 0.0])],
)
def test_criteria_by_hand(criterion: Criterion, expected: list[float]) -> None:
    values = node_value(np.array([0.4, 0.3]), np.array([0.2, -0.1]), criterion)
    assert np.allclose(values, expected, rtol=0, atol=1e-15)


def test_mean_is_the_mean_of_score_and_gain() -> None:
    score, parent = np.random.default_rng(0).random((2, 50))
    both = (node_value(score, parent, "score") + information_gain(score, parent)) / 2
    assert np.allclose(node_value(score, parent, "mean"), both, rtol=0, atol=1e-15)


def test_no_score_is_no_value_and_an_unknown_criterion_is_refused() -> None:
    assert np.isnan(node_value(np.array([np.nan]), np.array([0.5]), "mean")).all()
    with pytest.raises(ValueError, match="criterion must be one of mean, score, gain, zero, got best: choose one"):
        unwrap(node_value)(np.array([0.4]), np.array([0.2]), "best")
