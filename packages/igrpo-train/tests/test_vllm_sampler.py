"""The vLLM engine against the transformers sampler, for real, on tiny random models; the silent bugs one by one."""

import copy
import importlib.util

import numpy as np
import pytest

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: make test-vllm"),
    # vLLM imports deprecated parts of torch: torch.jit.script_method, torch.distributed.reduce_op.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

TOLERANCE = 1e-4
"""Nats, float32: two engines, two orders of summation."""
BLOCK = 32


def _make_policy(tokenizer, kind):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    from igrpo_train.policy import Policy

    torch.manual_seed(0)
    # Heads of 32: the smallest that the CPU engine has kernels for.
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if kind == "tied qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    return Policy(model.eval(), tokenizer)


def _start(policy, **settings):
    from igrpo_train.config import Agent, Model, Sampling
    from igrpo_train.search.vllm_sampler import VllmSampler

    sampling = Sampling(**({"engine": "vllm", "cache_gib": 0.05, "block_tokens": BLOCK} | settings))
    return VllmSampler(policy, Model(dtype="float32"), sampling, Agent(max_prompt_tokens=200, max_response_tokens=40))


class Pair:
    """One policy in both engines."""

    def __init__(self, tokenizer, kind):
        from igrpo_train.search.transformers_sampler import TransformersSampler

        self.policy = _make_policy(tokenizer, kind)
        self.vllm = _start(self.policy)
        self.reference = TransformersSampler(self.policy.model, tokenizer)

    def prefill(self, contexts):
        rows = np.arange(len(contexts))
        tails = [()] * len(contexts)
        return self.vllm.prefill(None, rows, contexts, tails), self.reference.prefill(None, rows, contexts, tails)

    def difference(self, contexts, continuations):
        """Largest difference between the scores of the two engines, nats."""
        ours, theirs = self.prefill(contexts)
        rows = np.arange(len(contexts))
        pairs = zip(
            self.vllm.score(ours, rows, continuations),
            self.reference.score(theirs, rows, continuations),
            strict=True,
        )
        return max(float(np.abs(a - b).max()) for a, b in pairs)


@pytest.fixture(scope="module", params=["tied qwen2", "untied llama"])
def pair(request, toy_tokenizer):
    """One engine a kind for all tests of this file: it takes seconds to start."""
    tokenizer = copy.deepcopy(toy_tokenizer)
    tokenizer.add_tokens([">."])
    return Pair(tokenizer, request.param)


@pytest.fixture
def original_weights(pair):
    """Gives both engines their weights back after a test that changes them."""
    kept = copy.deepcopy(pair.policy.model.state_dict())
    yield
    pair.policy.model.load_state_dict(kept)
    pair.vllm.wake(pair.policy.model)


@pytest.fixture
def poison(monkeypatch):
    """Fills the table that vLLM leaves uninitialised, so that reading it is never right by luck."""
    from vllm.v1.outputs import LogprobsTensors

    original = LogprobsTensors.empty_cpu

    def poisoned(*sizes):
        table = original(*sizes)
        table.logprobs.fill_(float("nan"))
        table.logprob_token_ids.fill_(-1)
        return table

    monkeypatch.setattr(LogprobsTensors, "empty_cpu", staticmethod(poisoned))


def _ids(rng, low, high):
    return tuple(int(token) for token in rng.integers(3, 350, size=rng.integers(low, high)))


_SHAPES = ((30, 80, 3), (1, 40, 3), (1, 4, 4), (1, 40, 5))
"""Shortest and longest, and how many: roots, then the tails of three generations."""


def _three_generations(sampler, rng):
    """Contexts of a small tree: three roots, four children, five grandchildren, with empty and long segments."""
    roots, *tails = ([_ids(rng, low, high) for _ in range(size)] for low, high, size in _SHAPES)
    first = sampler.prefill(None, np.arange(3), roots, tails[0])
    steps = [_ids(rng, 0, 3), _ids(rng, 6, 40), (), _ids(rng, 1, 5)]
    second = sampler.prefill(first, np.array([0, 0, 2, 1]), steps, tails[1])
    return sampler.prefill(second, np.array([3, 1, 1, 0, 2]), [_ids(rng, 0, 40) for _ in range(5)], tails[2])


def _perturb(model):
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("seed", range(3))
def test_scores_on_a_twice_extended_prefix_are_the_transformers_sampler_s(pair, seed):
    ours, theirs = (_three_generations(engine, np.random.default_rng(seed)) for engine in (pair.vllm, pair.reference))
    rng = np.random.default_rng(100 + seed)
    rows = np.array([4, 0, 2, 2, 1])
    continuations = [_ids(rng, 1, 40) for _ in rows]
    scored, expected = pair.vllm.score(ours, rows, continuations), pair.reference.score(theirs, rows, continuations)
    for a, b in zip(scored, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)


@pytest.mark.parametrize("stem_length", [0, 1, 9, BLOCK, 2 * BLOCK])
def test_what_all_continuations_of_a_context_begin_with_is_scored_once(pair, poison, stem_length):
    rng = np.random.default_rng(stem_length)
    prefix, reference = pair.prefill([_ids(rng, BLOCK, BLOCK + 1), _ids(rng, 40, 60)])
    stem, rows = _ids(rng, stem_length, stem_length + 1), np.array([0, 1, 0, 0, 1])
    continuations = [(*stem, *rest) for rest in ((5, 6), (7,), (8, 9, 10), (), (11,))]
    before = pair.vllm.num_scored
    scored = pair.vllm.score(prefix, rows, continuations)
    # Four of the five have something behind the stem; there is one stem a context.
    assert pair.vllm.num_scored == before + 4 + 2 * (stem_length > 0)
    for a, b in zip(scored, pair.reference.score(reference, rows, continuations), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)


def test_contexts_that_stay_in_the_cache_are_computed_once(pair):
    pair.vllm.take_recomputed()
    prefix = _three_generations(pair.vllm, np.random.default_rng(4))
    pair.vllm.score(prefix, np.arange(5), [(5, 6)] * 5)
    pair.vllm.generate(prefix, np.arange(5), np.arange(5, dtype=np.uint64), temperature=1.0, max_tokens=3)
    assert pair.vllm.take_recomputed() == 0
    pair.vllm.engine.forget()
    pair.vllm.score(prefix, np.arange(5), [(5, 6)] * 5)
    # Every context once, in whole blocks; what contexts share counts once.
    blocks = {ids[: BLOCK * (k + 1)] for ids in prefix.ids for k in range((len(ids) - 1) // BLOCK)}
    assert pair.vllm.take_recomputed() == BLOCK * len(blocks)
    assert pair.vllm.take_recomputed() == 0


def test_a_continuation_up_to_the_last_position_is_scored(pair):
    rng = np.random.default_rng(3)
    context, rest = _ids(rng, 100, 101), _ids(rng, pair.vllm.limit - 100, pair.vllm.limit - 99)
    assert pair.difference([context], [rest]) < TOLERANCE
    assert pair.difference([context], [rest[:-1]]) < TOLERANCE


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_samples_carry_the_log_probabilities_of_the_distribution_they_came_from(pair, temperature):
    import torch

    rng = np.random.default_rng(7)
    prefix = _three_generations(pair.vllm, rng)
    rows = np.array([0, 0, 3, 4, 1, 1, 1])
    keys = np.arange(len(rows), dtype=np.uint64)
    drawn = pair.vllm.generate(prefix, rows, keys, temperature=temperature, max_tokens=20)
    for row, completion in zip(rows, drawn, strict=True):
        context = prefix.ids[row]
        with torch.no_grad():
            logits = pair.policy.model(torch.tensor([[*context, *completion.token_ids]])).logits[0]
        table = torch.log_softmax(logits.double() / (temperature or 1.0), dim=-1)[len(context) - 1 : -1]
        expected = table.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(completion.logprobs, expected, atol=TOLERANCE)
        if temperature == 0:
            assert completion.token_ids == tuple(table.argmax(-1).tolist())


def test_a_draw_depends_on_its_key_alone_not_on_the_batch(pair):
    rng = np.random.default_rng(3)
    prefix = _three_generations(pair.vllm, rng)
    keys = np.array([10, 11, 12, 13, 14], dtype=np.uint64)
    together = pair.vllm.generate(prefix, np.arange(5), keys, temperature=1.0, max_tokens=10)
    for row in range(5):
        alone = pair.vllm.prefill(None, np.arange(1), [prefix.ids[row]], [()])
        [single] = pair.vllm.generate(alone, np.array([0]), keys[[row]], temperature=1.0, max_tokens=10)
        assert single.token_ids == together[row].token_ids


def test_siblings_of_neighbouring_keys_follow_the_model(pair):
    """First ids of 2,000 draws against the exact law: chi-square, fixed keys, false-alarm rate 1e-6."""
    import torch
    from scipy import stats

    context = (5, 77, 130)
    prefix = pair.vllm.prefill(None, np.arange(1), [context], [()])
    keys = np.arange(2000, dtype=np.uint64)
    drawn = pair.vllm.generate(prefix, np.zeros(2000, dtype=int), keys, temperature=1.0, max_tokens=1)
    with torch.no_grad():
        logits = pair.policy.model(torch.tensor([context])).logits[0, -1]
    expected = torch.softmax(logits.double(), dim=-1).numpy() * 2000
    observed = np.bincount([completion.token_ids[0] for completion in drawn], minlength=len(expected))
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-6


@pytest.mark.parametrize(
    ("text", "finish"),
    [
        ("<search>Ghent</search>", "stop"),
        ("x</ANSWER>", "stop"),
        # vLLM looks for three spellings and writes on here; the response is cut where the tag is complete.
        ("x</aNsWeR>", "stop"),
        ("a > b </think>", "length"),
        ("end<|im_end|>", "eos"),
        # Its last id runs past the tag; ids are never cut.
        ("<answer>x</answer>.", "stop"),
    ],
)
def test_generation_ends_at_a_closing_tag_an_end_token_or_the_limit(pair, monkeypatch, text, finish):
    from igrpo_train.search import vllm_sampler

    script = tuple(pair.policy.tokenizer(text, add_special_tokens=False)["input_ids"])
    parameters = vllm_sampler.generation_parameters
    force = {"force": [*script, 5, 5, 5, 5, 5], "slot": 0}
    monkeypatch.setattr(
        vllm_sampler,
        "generation_parameters",
        lambda *given, **named: parameters(*given, **named) | {"extra_args": force},
    )
    prefix = pair.vllm.prefill(None, np.arange(1), [(5, 6)], [(7,)])
    limit = len(script) + 5 if finish != "length" else len(script)
    keys = np.zeros(1, dtype=np.uint64)
    [completion] = pair.vllm.generate(prefix, np.array([0]), keys, temperature=1.0, max_tokens=limit)
    assert completion.finish == finish
    assert completion.token_ids == script
    assert len(completion.logprobs) == len(script)


@pytest.mark.parametrize("length", [2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_context_that_fills_its_blocks_is_scored_in_one_pass(pair, poison, length):
    rng = np.random.default_rng(length)
    before = pair.vllm.num_forced
    contexts = [_ids(rng, length, length + 1) for _ in range(3)]
    assert pair.difference(contexts, [_ids(rng, 5, 9) for _ in contexts]) < TOLERANCE
    assert pair.vllm.num_forced == before


def test_where_the_cache_reaches_into_a_continuation_it_is_decoded_by_force(pair, poison, monkeypatch):
    from igrpo_train.search import vllm_sampler

    rng = np.random.default_rng(11)
    contexts = [_ids(rng, 2 * BLOCK, 2 * BLOCK + 1), _ids(rng, 2 * BLOCK - 4, 2 * BLOCK - 3)]
    continuations = [_ids(rng, 6, 7), _ids(rng, 12, 13)]
    prefix, reference = pair.prefill(contexts)
    rows = np.arange(2)
    # A child's first token caches the whole block of its parent; a second alias meets the blocks of the first.
    pair.vllm.generate(prefix, rows, np.arange(2, dtype=np.uint64), temperature=1.0, max_tokens=2)
    pair.vllm.score(prefix, rows, continuations)
    before = pair.vllm.num_forced
    scored = pair.vllm.score(prefix, rows, continuations)
    assert pair.vllm.num_forced == before + 2
    for a, b in zip(scored, pair.reference.score(reference, rows, continuations), strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)
    # Without the rule the same request reads rows that nobody wrote.
    monkeypatch.setattr(vllm_sampler, "tail_rows", lambda output, *pair: _read_anyway(output, *pair))
    blind = pair.vllm.score(prefix, rows, continuations)
    assert all(np.isnan(values[0]) for values in blind)


def _read_anyway(output, context, continuation):
    rows = output.prompt_logprobs
    return [next(iter(rows[len(context) + k].values())).logprob for k in range(len(continuation))]


def test_forced_and_sampled_requests_in_one_batch_do_not_disturb_each_other(pair):
    rng = np.random.default_rng(12)
    contexts = [_ids(rng, 20, 60) for _ in range(6)]
    continuations = [_ids(rng, 1, 12) for _ in contexts]
    forced = pair.vllm.engine.force(contexts, continuations)
    _, reference = pair.prefill(contexts)
    expected = pair.reference.score(reference, np.arange(6), continuations)
    for a, b in zip(forced, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)


def test_equal_continuations_of_equal_contexts_are_computed_once(pair):
    prefix = pair.vllm.prefill(None, np.arange(2), [(5, 6, 7), (5, 6)], [(), (7,)])
    before = pair.vllm.num_scored
    first, second = pair.vllm.score(prefix, np.array([0, 1]), [(8, 9), (8, 9)])
    assert pair.vllm.num_scored == before + 1
    np.testing.assert_array_equal(first, second)


def test_new_weights_reach_every_part_of_the_engine(pair, original_weights):
    rng = np.random.default_rng(5)
    contexts, continuations = [_ids(rng, 40, 90) for _ in range(3)], [_ids(rng, 4, 9) for _ in range(3)]
    assert pair.difference(contexts, continuations) < TOLERANCE
    _perturb(pair.policy.model)
    assert pair.difference(contexts, continuations) > 100 * TOLERANCE
    pair.vllm.wake(pair.policy.model)
    assert pair.difference(contexts, continuations) < TOLERANCE


def test_a_tied_output_layer_is_stale_until_it_is_packed_anew(pair, original_weights, monkeypatch):
    from igrpo_train.search import vllm_engine

    rng = np.random.default_rng(6)
    contexts, continuations = [_ids(rng, 40, 90) for _ in range(3)], [_ids(rng, 4, 9) for _ in range(3)]
    _perturb(pair.policy.model)
    monkeypatch.setattr(vllm_engine, "repack_heads", lambda model: None)
    pair.vllm.wake(pair.policy.model)
    stale = pair.difference(contexts, continuations)
    tied = pair.policy.model.config.tie_word_embeddings
    assert stale > 100 * TOLERANCE if tied else stale < TOLERANCE
    monkeypatch.undo()
    pair.vllm.wake(pair.policy.model)
    assert pair.difference(contexts, continuations) < TOLERANCE


def test_cached_prefixes_of_old_weights_are_used_until_they_are_forgotten(pair, original_weights, monkeypatch):
    rng = np.random.default_rng(8)
    contexts, continuations = [_ids(rng, 80, 90) for _ in range(3)], [_ids(rng, 4, 9) for _ in range(3)]
    pair.prefill(contexts)
    _perturb(pair.policy.model)
    monkeypatch.setattr(pair.vllm.engine, "forget", lambda: None)
    pair.vllm.wake(pair.policy.model)
    assert pair.difference(contexts, continuations) > 100 * TOLERANCE
    monkeypatch.undo()
    pair.vllm.wake(pair.policy.model)
    assert pair.difference(contexts, continuations) < TOLERANCE


def test_a_context_longer_than_the_engine_s_limit_is_refused(pair):
    prefix = pair.vllm.prefill(None, np.arange(1), [(5,) * 198], [(5, 5)])
    message = rf"must fit the engine's {pair.vllm.limit} positions, got 500: raise agent.max_prompt_tokens"
    with pytest.raises(ValueError, match=message):
        pair.vllm.generate(prefix, np.array([0]), np.zeros(1, dtype=np.uint64), temperature=1.0, max_tokens=300)
    with pytest.raises(ValueError, match=message):
        pair.vllm.score(prefix, np.array([0]), [(5,) * 300])


def test_a_cache_that_cannot_hold_one_row_is_refused_by_its_setting(toy_tokenizer):
    with pytest.raises(ValueError, match=r"sampling.cache_gib .* one row of 457 tokens, got .*: raise it, or lower"):
        _start(_make_policy(toy_tokenizer, "untied llama"), cache_gib=1e-4)


def test_a_cache_beyond_the_memory_of_the_machine_is_refused(toy_tokenizer):
    with pytest.raises(
        ValueError, match=r"sampling.cache_gib must be less than the [\d.]+ GiB of cpu, got 1000000000.0"
    ):
        _start(_make_policy(toy_tokenizer, "untied llama"), cache_gib=1e9)


def test_a_model_that_the_engine_has_no_kernel_for_is_refused_at_the_start(toy_tokenizer, toy_model):
    from igrpo_train.policy import Policy

    with pytest.raises(ValueError, match=r"must be able to run Qwen2ForCausalLM, got '.*head_dim=8.*': use 'transfor"):
        _start(Policy(toy_model, toy_tokenizer))


def test_a_small_cache_makes_requests_wait_and_changes_no_result(toy_tokenizer):
    """A cache of one row and a half: requests queue, blocks are dropped and computed again."""
    pair = Pair.__new__(Pair)
    from igrpo_train.search.transformers_sampler import TransformersSampler

    pair.policy = _make_policy(toy_tokenizer, "untied llama")
    # 2 layers x keys and values x 32 floats are 512 bytes a token; 22 blocks of 32 tokens are 0.34 MiB.
    pair.vllm = _start(pair.policy, cache_gib=22 * BLOCK * 512 / 2**30)
    pair.reference = TransformersSampler(pair.policy.model, toy_tokenizer)
    rng = np.random.default_rng(9)
    contexts, continuations = [_ids(rng, 150, 200) for _ in range(12)], [_ids(rng, 4, 9) for _ in range(12)]
    assert pair.difference(contexts, continuations) < TOLERANCE
    assert pair.vllm.take_recomputed() > 0


def test_smollm2_is_the_same_policy_in_both_engines(smollm2):
    from igrpo_train.config import Agent, Model, Sampling
    from igrpo_train.policy import load_policy
    from igrpo_train.search.transformers_sampler import TransformersSampler
    from igrpo_train.search.vllm_sampler import VllmSampler

    policy = load_policy(Model(path=str(smollm2), dtype="float32", device="cpu"))
    pair = Pair.__new__(Pair)
    pair.policy, pair.reference = policy, TransformersSampler(policy.model, policy.tokenizer)
    pair.vllm = VllmSampler(
        policy,
        Model(dtype="float32"),
        Sampling(engine="vllm", cache_gib=0.5),
        Agent(max_prompt_tokens=200, max_response_tokens=40),
    )
    contexts = [tuple(policy.tokenizer(text)["input_ids"]) for text in ("The mayor of Ghent is", "Oslo is the capital")]
    answers = [tuple(policy.tokenizer(text)["input_ids"]) for text in (" Mathias", " of Norway")]
    assert pair.difference(contexts, answers) < TOLERANCE
    policy.model.get_input_embeddings().weight.data.mul_(1.05)
    pair.vllm.wake(policy.model)
    assert pair.difference(contexts, answers) < TOLERANCE
