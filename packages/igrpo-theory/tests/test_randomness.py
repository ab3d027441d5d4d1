import numpy as np
import pytest
from scipy import stats

from igrpo_theory import Stream, fold, question_keys, text_key, uniforms
from igrpo_theory.randomness import random_bits, spaced_keys


def keys_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint64)


def test_text_key_is_the_same_on_every_machine() -> None:
    assert text_key("nq-17") == 9407157247095550741
    assert text_key("Köln") == text_key("Köln") != text_key("Koln")


def test_same_counters_give_the_same_number_in_any_array() -> None:
    keys = fold(keys_of(*range(12)), Stream.EXPANSION, 3)
    flat = uniforms(keys, 7)
    assert (uniforms(keys.reshape(3, 4), 7).ravel() == flat).all()
    assert (uniforms(keys[::-1], 7)[::-1] == flat).all()
    assert (uniforms(keys[5:6], 7) == flat[5]).all()
    table = uniforms(keys[:, None], np.arange(4)[None, :])
    assert all((table[:, word] == uniforms(keys, word)).all() for word in range(4))


def test_words_matter_one_by_one_and_in_order() -> None:
    key = keys_of(9)
    keys = [fold(key, *words)[0] for words in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (-1,), (2**64 - 2,), (2**70,)]]
    assert len(set(keys)) == len(keys) - 1  # 2**70 is 0 modulo 2**64
    assert fold(key, 2**70) == fold(key, 0)
    assert len({int(fold(key, stream)[0]) for stream in Stream}) == len(Stream)


def test_numbers_and_arrays_of_any_integer_type_mean_the_same_word() -> None:
    keys = keys_of(1, 2, 3)
    for dtype in (np.int8, np.int32, np.int64, np.uint64):
        assert (fold(keys, np.full(3, 5, dtype=dtype)) == fold(keys, 5)).all()
    assert (fold(keys, np.array([-1, -1, -1])) == fold(keys, -1)).all()


def test_question_keys_separate_seed_step_slot_and_id() -> None:
    base = question_keys(0, 0, np.array([0]), ["a"])[0]
    others = [
        question_keys(1, 0, np.array([0]), ["a"])[0],
        question_keys(0, 1, np.array([0]), ["a"])[0],
        question_keys(0, 0, np.array([1]), ["a"])[0],
        question_keys(0, 0, np.array([0]), ["b"])[0],
    ]
    assert len({int(base), *map(int, others)}) == 5
    batch = question_keys(0, 0, np.array([4, 0, 2]), ["x", "a", "y"])
    assert batch[1] == base
    with pytest.raises(AssertionError, match="one slot a question id"):
        question_keys(0, 0, np.array([0]), ["a", "b"])


def test_structured_counters_do_not_collide(alpha: float) -> None:
    keys = fold(keys_of(0), np.arange(32)[:, None, None], np.arange(64)[None, :, None], np.arange(64)[None, None, :])
    assert keys.size**2 / 2**65 < alpha  # the chance that as many random 64-bit numbers collide
    assert len(np.unique(keys)) == keys.size


def test_uniforms_of_spaced_keys_are_the_splitmix64_sequence() -> None:
    """Against the generator as it is published, in Python integers."""
    state, expected, mask = 1234567, [], (1 << 64) - 1
    for _ in range(1000):
        state = (state + 0x9E3779B97F4A7C15) & mask
        bits = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
        expected.append((bits ^ (bits >> 31)) >> 12)
    assert random_bits(spaced_keys(keys_of(1234567), np.arange(1000))).tolist() == expected


NUMBERS = np.arange(200_000)


@pytest.mark.parametrize(
    "draws",
    [
        uniforms(keys_of(1), NUMBERS),
        uniforms(keys_of(1), 5, NUMBERS),
        uniforms(keys_of(1), NUMBERS << 32),
        uniforms(spaced_keys(keys_of(1), NUMBERS)),
        uniforms(spaced_keys(keys_of(1), NUMBERS), 5),
    ],
)
def test_uniforms_are_uniform_and_neighbours_independent(draws: np.ndarray, alpha: float) -> None:
    assert draws.min() > 0
    assert draws.max() < 1
    cells = np.histogram(draws, bins=256, range=(0, 1))[0]
    pairs = np.histogram2d(draws[:-1:2], draws[1::2], bins=16, range=((0, 1), (0, 1)))[0].ravel()
    for observed in (cells, pairs):
        assert stats.chisquare(observed).pvalue > alpha / 2


def test_every_bit_of_a_key_flips_half_of_the_output(alpha: float) -> None:
    keys = fold(keys_of(*range(2000)), 0)
    for bit in range(64):
        flipped = np.unpackbits((fold(keys, 1) ^ fold(keys ^ np.uint64(1 << bit), 1)).view(np.uint8)).sum() / 2000
        # The mean of 2000 sums of 64 fair bits has a standard deviation of 4 / sqrt(2000).
        assert abs(flipped - 32) < stats.norm.isf(alpha / 2 / 64) * 4 / np.sqrt(2000)


def test_uniforms_differ_between_questions_of_neighbouring_keys(alpha: float) -> None:
    table = uniforms(keys_of(*range(400))[:, None], np.arange(500))
    correlation = np.corrcoef(table)
    off_diagonal = correlation[~np.eye(400, dtype=bool)]
    # 79,800 pairs; a correlation of 500 independent numbers has a standard deviation of 1 / sqrt(500).
    assert np.abs(off_diagonal).max() < stats.norm.isf(alpha / 2 / 79_800) / np.sqrt(500)
