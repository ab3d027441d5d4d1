"""pass@k against counting all subsets."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_it_is_the_share_of_subsets_that_hold_a_right_sample(case):
    from igrpo_eval.passk import pass_at_k

    n, c, k = case
    graded = [place < c for place in range(n)]
    subsets = [any(subset) for subset in combinations(graded, k)]
    assert pass_at_k(np.array([n]), np.array([c]), k)[0] == pytest.approx(sum(subsets) / len(subsets), abs=1e-12)


def test_questions_may_have_different_numbers_of_samples_and_large_ones_do_not_overflow():
    from igrpo_eval.passk import pass_at_k

    values = pass_at_k(np.array([2, 2000]), np.array([1, 1000]), 2)
    assert values == pytest.approx([1.0, 1 - 1000 * 999 / (2000 * 1999)])


def test_k_must_fit_every_question():
    from igrpo_eval.passk import pass_at_k

    for samples, k in (([3, 2], 3), ([3], 0), ([], 1)):
        counts = np.array(samples, dtype=np.int64)
        with pytest.raises(ValueError, match="k must be between 1 and the samples of every question"):
            pass_at_k(counts, np.zeros_like(counts), k)
