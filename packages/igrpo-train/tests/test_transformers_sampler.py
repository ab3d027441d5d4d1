"""The cached, batched engine against the slow obvious one: one full forward pass a token, no cache, no padding."""

import numpy as np
import pytest

TOLERANCE = 2e-5
"""float32 with two layers: differences of batching only."""


@pytest.fixture(scope="module")
def sampler(toy_model, toy_tokenizer):
    from igrpo_train.search.transformers_sampler import TransformersSampler

    return TransformersSampler(toy_model, toy_tokenizer)


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def samplers(request, toy_model, toy_tokenizer):
    """A model without a bound, and what makes the same model's sampler under one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from igrpo_train.search.transformers_sampler import TransformersSampler

    model = toy_model
    if request.param == "llama":
        torch.manual_seed(1)
        names = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
        sizes = {name: getattr(toy_model.config, name) for name in names.split()}
        model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3)).eval()
    bounded = lambda columns: TransformersSampler(model, toy_tokenizer, cache_tokens=columns)  # noqa: E731
    return bounded(0), bounded


def _random_ids(rng, low, high):
    return tuple(int(token) for token in rng.integers(3, 350, size=rng.integers(low, high)))


def _logprobs(model, ids):
    import torch

    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1).numpy()


def _forced(model, context, continuation):
    table = _logprobs(model, [*context, *continuation])
    return [table[len(context) - 1 + k, token] for k, token in enumerate(continuation)]


def _three_generations(sampler, rng, *, tails=True):
    """Contexts of a small tree: three roots, four children, five grandchildren, with empty and long segments."""
    stems, handle = [(), (), ()], None
    generations = [([0, 1, 2], (3, 12)), ([0, 0, 2, 1], (0, 15)), ([3, 1, 1, 0, 2], (0, 9))]
    for parents, (low, high) in generations:
        segments = [_random_ids(rng, low, high) for _ in parents]
        ends = [_random_ids(rng, 1, 4) if tails else () for _ in parents]
        handle = sampler.prefill(handle, np.array(parents), segments, ends)
        stems = [stems[p] + s for p, s in zip(parents, segments, strict=True)]
    return handle, [stem + end for stem, end in zip(stems, ends, strict=True)]


@pytest.mark.parametrize("tails", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_forced_scores_on_a_twice_extended_prefix_equal_full_passes(sampler, toy_model, seed, tails):
    rng = np.random.default_rng(seed)
    prefix, contexts = _three_generations(sampler, rng, tails=tails)
    rows = np.array([4, 0, 2, 2, 1])
    continuations = [_random_ids(rng, 1, 9) for _ in rows]
    scored = sampler.score(prefix, rows, continuations)
    for row, continuation, values in zip(rows, continuations, scored, strict=True):
        np.testing.assert_allclose(values, _forced(toy_model, contexts[row], continuation), atol=TOLERANCE)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_samples_carry_the_log_probabilities_of_the_distribution_they_came_from(sampler, toy_model, temperature):
    rng = np.random.default_rng(7)
    prefix, contexts = _three_generations(sampler, rng)
    rows = np.array([0, 0, 3, 4, 1, 1, 1])
    keys = np.arange(len(rows), dtype=np.uint64)
    drawn = sampler.generate(prefix, rows, keys, temperature=temperature, max_tokens=12)
    for row, completion in zip(rows, drawn, strict=True):
        context = contexts[row]
        for k, (token, logprob) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
            scaled = _logprobs(toy_model, (*context, *completion.token_ids[:k]))[-1] / (temperature or 1.0)
            scaled -= np.log(np.exp(scaled).sum())
            assert abs(scaled[token] - logprob) < TOLERANCE
            if temperature == 0:
                assert token == scaled.argmax()


def test_a_draw_depends_on_its_key_alone_not_on_the_batch(sampler):
    rng = np.random.default_rng(3)
    prefix, contexts = _three_generations(sampler, rng)
    keys = np.array([10, 11, 12, 13, 14], dtype=np.uint64)
    together = sampler.generate(prefix, np.arange(5), keys, temperature=1.0, max_tokens=10)
    for row in range(5):
        alone = sampler.prefill(None, np.arange(1), [contexts[row]], [()])
        [single] = sampler.generate(alone, np.array([0]), keys[[row]], temperature=1.0, max_tokens=10)
        assert single.token_ids == together[row].token_ids


def test_sampling_follows_the_model(sampler, toy_model):
    """First tokens of 4,000 draws against the exact law: chi-square, fixed keys, false-alarm rate 1e-6."""
    from scipy import stats

    context = (5, 77, 130)
    prefix = sampler.prefill(None, np.arange(1), [context], [()])
    keys = np.arange(4000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    drawn = sampler.generate(prefix, np.zeros(4000, dtype=int), keys, temperature=1.0, max_tokens=1)
    expected = np.exp(_logprobs(toy_model, context)[-1]) * 4000
    observed = np.bincount([completion.token_ids[0] for completion in drawn], minlength=len(expected))
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-6


@pytest.fixture
def scripted(toy_model):
    """A model that always continues with a given text, whatever the context."""
    from transformers import Qwen2ForCausalLM

    class Scripted(Qwen2ForCausalLM):
        script: tuple[int, ...]
        calls = 0

        def forward(self, **inputs):
            output = super().forward(**inputs)
            output.logits[:] = -100.0
            output.logits[:, -1, self.script[min(self.calls, len(self.script) - 1)]] = 100.0
            self.calls += 1
            return output

    return Scripted(toy_model.config).eval()


@pytest.mark.parametrize(
    ("text", "finish"),
    [
        ("<search>Ghent</search>", "stop"),
        ("x</ANSWER>", "stop"),
        ("a > b </think>", "length"),
        ("end<|im_end|>", "eos"),
    ],
)
def test_generation_ends_at_a_closing_tag_an_end_token_or_the_limit(scripted, toy_tokenizer, text, finish):
    from igrpo_train.search.transformers_sampler import TransformersSampler

    script = toy_tokenizer(text, add_special_tokens=False)["input_ids"]
    scripted.script = (*script, 5)
    sampler = TransformersSampler(scripted, toy_tokenizer)
    prefix = sampler.prefill(None, np.arange(1), [(5, 6)], [(7,)])
    keys = np.zeros(1, dtype=np.uint64)
    # Prefilling used up the script's first token; what it said is the first to be drawn.
    scripted.calls = 1
    limit = len(script) + 5 if finish != "length" else len(script)
    [completion] = sampler.generate(prefix, np.array([0]), keys, temperature=0.0, max_tokens=limit)
    assert completion.finish == finish
    assert completion.token_ids == tuple(script)


def test_selecting_rows_leaves_the_base_usable(sampler):
    rng = np.random.default_rng(5)
    prefix, _ = _three_generations(sampler, rng)
    before = sampler.score(prefix, np.arange(5), [(4, 5)] * 5)
    sampler.prefill(prefix, np.array([1, 1, 3]), [(9,), (), (8, 8, 8)], [(7,)] * 3)
    sampler.generate(prefix, np.array([2, 2]), np.arange(2, dtype=np.uint64), temperature=1.0, max_tokens=4)
    after = sampler.score(prefix, np.arange(5), [(4, 5)] * 5)
    np.testing.assert_array_equal(np.stack(before), np.stack(after))


def _grown(sampler):
    """What two generations of a tree give: tokens, log-probabilities, scores, and context tokens run again."""
    rng = np.random.default_rng(11)
    prefix, _ = _three_generations(sampler, rng)
    rows = np.array([0, 0, 1, 2, 3, 3, 4])
    keys = np.arange(len(rows), dtype=np.uint64)
    drawn = sampler.generate(prefix, rows, keys, temperature=1.0, max_tokens=12)
    scores = sampler.score(prefix, np.arange(5), [_random_ids(rng, 1, 9) for _ in range(5)])
    return drawn, scores, sampler.take_recomputed()


@pytest.mark.parametrize("columns", [1, 60, 100, 200, 400])
def test_a_bound_changes_nothing_but_what_is_run_again(samplers, columns):
    free, bounded = samplers
    expected_drawn, expected_scores, nothing = _grown(free)
    drawn, scores, recomputed = _grown(bounded(columns))
    assert [c.token_ids for c in drawn] == [c.token_ids for c in expected_drawn]
    assert [c.finish for c in drawn] == [c.finish for c in expected_drawn]
    for mine, theirs in zip(drawn, expected_drawn, strict=True):
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=TOLERANCE)
    for mine, theirs in zip(scores, expected_scores, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)
    assert nothing == 0
    assert (recomputed > 0) == (columns < 400)


@pytest.mark.parametrize("columns", [150, 200, 300])
def test_no_more_columns_than_the_bound_are_ever_in_use(samplers, columns, monkeypatch):
    """Every block that is kept or worked on is weighed, for as long as anything refers to it."""
    import weakref

    from igrpo_train.search import cache

    weights: dict[int, int] = {}
    most = 0

    def weigh(tensor):
        nonlocal most
        if id(tensor) not in weights:
            weakref.finalize(tensor, weights.pop, id(tensor))
            weights[id(tensor)] = tensor.shape[0] * tensor.shape[2]
            most = max(most, sum(weights.values()))

    for name in ("append", "select", "keep_rows"):
        original = getattr(cache, name)

        def watched(*args, original=original, **kwargs):
            result = original(*args, **kwargs)
            state = result[0] if isinstance(result, tuple) and not isinstance(result, cache.CachedRows) else result
            # One layer's keys stand for all.
            weigh(state.layers[0][0])
            return result

        monkeypatch.setattr(cache, name, watched)
    monkeypatch.setattr(cache, "SPARE_COLUMNS", 1)
    _grown(samplers[1](columns))
    assert 0 < most <= columns
    most = 0
    _grown(samplers[0])
    assert most > 150


def test_rows_at_the_end_are_evicted_and_what_is_run_again_is_counted(samplers):
    """Contexts of 4 + 1 ids under 20 columns: half of it keeps two rows, the third is computed when it is used."""
    sampler = samplers[1](20)
    base = sampler.prefill(None, np.arange(3), [(5, 6, 7, 8)] * 3, [(9,)] * 3)
    assert base.num_held == 2
    sampler.score(base, np.arange(3), [(4,)] * 3)
    assert sampler.take_recomputed() == 0
    sampler.score(base, np.arange(3), [(4,)] * 3)
    assert sampler.take_recomputed() == 5
    sampler.generate(base, np.array([2]), np.arange(1, dtype=np.uint64), temperature=1.0, max_tokens=1)
    assert sampler.take_recomputed() == 5
    child = sampler.prefill(base, np.array([0, 2]), [(3,), (3,)], [(9,), (9,)])
    assert child.num_held == 1
    sampler.score(child, np.array([1]), [(4,)])
    # Six ids, of which the two new ones were not run before.
    assert sampler.take_recomputed() == 4


def test_a_row_beyond_the_bound_is_served_alone(samplers):
    free, bounded = samplers
    context = tuple(range(5, 35))
    values = []
    for sampler in (free, bounded(10)):
        prefix = sampler.prefill(None, np.arange(2), [context, context[1:]], [(), ()])
        values.append(np.stack(sampler.score(prefix, np.arange(2), [(4, 5)] * 2)))
    np.testing.assert_allclose(values[0], values[1], atol=TOLERANCE)


@pytest.mark.parametrize("columns", [0, 120])
def test_continuations_of_one_row_share_what_they_begin_with(samplers, columns, monkeypatch):
    free, bounded = samplers
    rng = np.random.default_rng(2)
    prefix, _ = _three_generations(free, rng)
    stem = _random_ids(rng, 4, 8)
    rows = np.array([0, 0, 0, 1, 3, 3])
    continuations = [(*stem, 9, 8), (*stem, 9), (*stem, 4, 4, 4), (5,), (7, *stem), (8, *stem)]
    apart = [free.score(prefix, np.array([row]), [c])[0] for row, c in zip(rows, continuations, strict=True)]
    sampler = bounded(columns)
    prefix, _ = _three_generations(sampler, np.random.default_rng(2))
    for mine, theirs in zip(sampler.score(prefix, rows, continuations), apart, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)
