"""What the vLLM engine is told, without an engine: settings, seeds, scoring requests, errors."""

import builtins
from types import SimpleNamespace

import numpy as np
import pytest

from igrpo_train.config import Agent, Model, Sampling


def test_the_engine_has_room_for_a_full_prompt_with_a_response_or_a_forced_answer():
    from igrpo_train.search.vllm_requests import engine_limit

    long, short = Agent(max_prompt_tokens=1000, max_response_tokens=512), Agent(max_prompt_tokens=1000)
    assert engine_limit(long, None) == 1513
    assert engine_limit(Agent(max_prompt_tokens=100, max_response_tokens=24), None) == 357
    assert engine_limit(short, 1200) == 1200


@pytest.mark.parametrize("on_cpu", [True, False])
def test_settings_become_arguments(on_cpu):
    from igrpo_train.search.vllm_requests import engine_arguments

    sampling = Sampling(engine="vllm", memory_share=0.4, block_tokens=64)
    arguments = engine_arguments(sampling, Model(dtype="float32"), 5000, on_cpu=on_cpu)
    assert arguments["dtype"] == "float32"
    assert arguments["max_model_len"] == 5000
    assert arguments["block_size"] == 64
    assert arguments["gpu_memory_utilization"] == 0.4
    assert arguments["enable_prefix_caching"]
    assert arguments["logprobs_mode"] == "processed_logprobs"
    assert "kv_cache_memory_bytes" not in arguments
    # Chunks and seeds do not go together on CPUs, and a prompt that is not cut must fit one pass.
    assert arguments.get("enforce_eager", False) == on_cpu
    assert on_cpu == ("enable_chunked_prefill" in arguments)
    assert not on_cpu or arguments["max_num_batched_tokens"] >= 5000
    assert arguments.get("enable_sleep_mode", False) != on_cpu
    fixed = engine_arguments(Sampling(cache_gib=1.5), Model(), 5000, on_cpu=on_cpu)
    assert fixed["kv_cache_memory_bytes"] == 3 * 2**29


def test_seeds_of_siblings_are_far_apart_and_fit_every_generator():
    """Engines give child i of n the seed plus i: the smallest gap of 20,000 seeds must be larger than any n.

    20,000 uniform seeds of 63 bits have a gap below 2**16 with probability 2e8 * 2**17 / 2**63, about 3e-6; fixed keys.
    """
    from igrpo_train.search.vllm_requests import seeds

    drawn = np.sort(np.array(seeds(np.arange(20_000, dtype=np.uint64)), dtype=np.int64))
    assert drawn[0] >= 0
    assert np.diff(drawn).min() > 2**16
    # torch's CPU generator keeps the low 32 bits: 2e8 pairs over 2**32 values, 0.05 collisions are expected.
    assert len(np.unique(drawn & 0xFFFFFFFF)) == len(drawn)


def test_a_draw_is_one_request_with_its_own_seed():
    from igrpo_train.search.vllm_requests import generation_parameters

    asked = generation_parameters(5, temperature=0.7, max_tokens=9, eos_ids={4, 2})
    assert (asked["n"], asked["seed"], asked["temperature"], asked["max_tokens"]) == (1, 5, 0.7, 9)
    assert {"</search>", "</answer>", "</SEARCH>", "</Answer>"} <= set(asked["stop"])
    assert asked["include_stop_str_in_output"]
    assert asked["stop_token_ids"] == [2, 4]
    # Whether a tag is complete must be read from all ids, as `Ending` reads them.
    assert not asked["skip_special_tokens"]


def test_scoring_reads_the_cache_and_never_the_text_of_rows_that_were_not_computed():
    from igrpo_train.search.vllm_requests import tail_parameters

    on_cpu, on_gpu = (tail_parameters((5, 6, 7), (8, 9), on_cpu=where) for where in (True, False))
    for asked in (on_cpu, on_gpu):
        assert asked["skip_reading_prefix_cache"] is False
        assert asked["detokenize"] is False
        assert asked["max_tokens"] == 1
    assert on_cpu["prompt_logprobs"] == 0
    assert on_gpu["prompt_logprob_token_ids"] == [[8], [9]]
    # Row i predicts token start + i + 1: the row of the context's last id predicts the first one.
    assert on_gpu["prompt_logprob_start"] == 2


@pytest.mark.parametrize(("cached", "valid"), [(0, True), (2, True), (3, False), (4, False)])
def test_rows_count_only_when_the_cache_ends_before_the_row_that_predicts_them(cached, valid):
    from igrpo_train.search.vllm_sampler import tail_rows

    garbage = {-7: SimpleNamespace(logprob=float("nan"))}
    table = [None, garbage, garbage, {8: SimpleNamespace(logprob=-1.0)}, {9: SimpleNamespace(logprob=-2.0)}]
    output = SimpleNamespace(num_cached_tokens=cached, prompt_logprobs=table)
    assert tail_rows(output, (5, 6, 7), (8, 9)) == ([-1.0, -2.0] if valid else None)


def test_weights_go_by_their_checkpoint_names_and_a_tied_head_once(toy_model):
    import copy

    from igrpo_train.search.vllm_engine import named_weights

    names = dict(named_weights(toy_model))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" in names
    tied = copy.deepcopy(toy_model)
    tied.config.tie_word_embeddings = True
    assert set(dict(named_weights(tied))) == set(names) - {"lm_head.weight"}


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("To serve at least one request, 0.5 GiB KV cache is needed", r"sampling.cache_gib .* one row of 512 tokens"),
        (
            "Available memory 1 GiB is less than desired CPU memory",
            r"memory_share must fit .* got '.*': lower them, or",
        ),
        ("DefaultCPUAllocator: can't allocate memory: you tried", r"cache_gib and .* must fit into the device's free"),
        ("CUDA out of memory. Tried to allocate 20 GiB", r"cache_gib and .* must fit into the device's free memory"),
        ("Unsupported head_dim=8", r"sampling.engine = 'vllm' must be able to run Tiny, got 'Unsupported head_dim=8'"),
    ],
)
def test_a_failed_start_names_the_setting(reason, message):
    import re

    from igrpo_train.search.vllm_engine import start_error

    assert re.search(message, start_error(reason, "Tiny", 512))


def test_without_vllm_the_error_says_how_to_install_it(toy_model, toy_tokenizer, monkeypatch):
    from igrpo_train.errors import MissingExtra
    from igrpo_train.policy import Policy
    from igrpo_train.search.vllm_sampler import VllmSampler

    original = builtins.__import__

    def refuse(name, *rest):
        if name == "vllm":
            raise ModuleNotFoundError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"vllm is needed for sampling.engine = 'vllm': pip install .*\[vllm\]"):
        VllmSampler(Policy(toy_model, toy_tokenizer), Model(), Sampling(engine="vllm"), Agent(max_prompt_tokens=100))


def test_an_engine_with_weights_of_its_own_sleeps_through_the_update_and_wakes_with_the_new_ones():
    from igrpo_train.search.sampling import updating

    calls = []

    class Plain:
        def prefill(self):
            raise NotImplementedError

        generate = score = take_recomputed = prefill

    class Colocated(Plain):
        def sleep(self):
            calls.append("sleep")

        def wake(self, model):
            calls.append(("wake", model))

    with updating(Colocated(), "policy"):
        calls.append("update")
    with updating(Plain(), "policy"):
        calls.append("update")
    assert calls == ["sleep", "update", ("wake", "policy"), "update"]
