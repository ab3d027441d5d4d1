"""The cached, batched engine against the slow obvious one: one full forward pass a token, no cache, no padding."""

import numpy as np
import pytest

TOLERANCE = 2e-5
"""float32 with two layers: differences of batching only."""


@pytest.fixture(scope="module")
def sampler(toy_model, toy_tokenizer):
    from igrpo_train.search.transformers_sampler import TransformersSampler

    return TransformersSampler(toy_model, toy_tokenizer)


def _random_ids(rng, low, high):
    return tuple(int(token) for token in rng.integers(3, 350, size=rng.integers(low, high)))


def _logprobs(model, ids):
    import torch

    with torch.no_grad():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1).numpy()


def _forced(model, context, continuation):
    table = _logprobs(model, [*context, *continuation])
    return [table[len(context) - 1 + k, token] for k, token in enumerate(continuation)]


def _three_generations(sampler, rng):
    """Contexts of a small tree: three roots, four children, five grandchildren, with empty and long segments."""
    roots = [_random_ids(rng, 3, 12) for _ in range(3)]
    first = sampler.prefill(None, np.arange(3), roots)
    parents, steps = [0, 0, 2, 1], [_random_ids(rng, 0, 3), _random_ids(rng, 6, 15), (), _random_ids(rng, 1, 5)]
    second = sampler.prefill(first, np.array(parents), steps)
    contexts = [roots[p] + s for p, s in zip(parents, steps, strict=True)]
    parents, steps = [3, 1, 1, 0, 2], [_random_ids(rng, 0, 9) for _ in range(5)]
    third = sampler.prefill(second, np.array(parents), steps)
    return third, [contexts[p] + s for p, s in zip(parents, steps, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_forced_scores_on_a_twice_extended_prefix_equal_full_passes(sampler, toy_model, seed):
    rng = np.random.default_rng(seed)
    prefix, contexts = _three_generations(sampler, rng)
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
    tails = [_random_ids(rng, 0, 4) for _ in rows]
    keys = np.arange(len(rows), dtype=np.uint64)
    drawn = sampler.generate(prefix, rows, tails, keys, temperature=temperature, max_tokens=12)
    for row, tail, completion in zip(rows, tails, drawn, strict=True):
        context = (*contexts[row], *tail)
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
    together = sampler.generate(prefix, np.arange(5), [()] * 5, keys, temperature=1.0, max_tokens=10)
    for row in range(5):
        alone = sampler.prefill(None, np.arange(1), [contexts[row]])
        [single] = sampler.generate(alone, np.array([0]), [()], keys[[row]], temperature=1.0, max_tokens=10)
        assert single.token_ids == together[row].token_ids


def test_sampling_follows_the_model(sampler, toy_model):
    """First tokens of 4,000 draws against the exact law: chi-square, fixed keys, false-alarm rate 1e-6."""
    from scipy import stats

    context = (5, 77, 130)
    prefix = sampler.prefill(None, np.arange(1), [context])
    keys = np.arange(4000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    drawn = sampler.generate(prefix, np.zeros(4000, dtype=int), [()] * 4000, keys, temperature=1.0, max_tokens=1)
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
    prefix = sampler.prefill(None, np.arange(1), [(5, 6)])
    keys = np.zeros(1, dtype=np.uint64)
    # Prefilling used up the script's first token.
    scripted.calls = 0
    limit = len(script) + 5 if finish != "length" else len(script)
    [completion] = sampler.generate(prefix, np.array([0]), [(7,)], keys, temperature=0.0, max_tokens=limit)
    assert completion.finish == finish
    assert completion.token_ids == tuple(script)


def test_selecting_rows_leaves_the_base_usable(sampler):
    rng = np.random.default_rng(5)
    prefix, _ = _three_generations(sampler, rng)
    before = sampler.score(prefix, np.arange(5), [(4, 5)] * 5)
    sampler.prefill(prefix, np.array([1, 1, 3]), [(9,), (), (8, 8, 8)])
    sampler.generate(prefix, np.array([2, 2]), [(), ()], np.arange(2, dtype=np.uint64), temperature=1.0, max_tokens=4)
    after = sampler.score(prefix, np.arange(5), [(4, 5)] * 5)
    np.testing.assert_array_equal(np.stack(before), np.stack(after))
