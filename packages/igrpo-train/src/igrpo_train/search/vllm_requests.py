"""vllm requests: settings, keys, ids -> what the vLLM engine is told; plain values, without vllm itself."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from jaxtyping import UInt64

from igrpo_theory.randomness import fold
from igrpo_train.config import Agent, Model, Sampling
from igrpo_train.search.agent import STOP_STRINGS
from igrpo_train.search.sampling import Tokens

_SCORED_TOKENS: Final = 256
"""Positions kept for a forced answer with its preamble, where responses are shorter."""
_CPU_BATCH_TOKENS: Final = 2048
"""Tokens of one pass of the CPU engine, at least."""


def engine_limit(agent: Agent, context_limit: int | None) -> int:
    """Positions that the engine keeps for one row: a full prompt with a response or a forced answer, and one more.

    Args:
        agent: limits of prompts and responses.
        context_limit: the model's own maximum; None when unknown.

    Example:
        >>> engine_limit(Agent(max_prompt_tokens=4096, max_response_tokens=512), context_limit=32768)
        4609
    """
    wanted = agent.max_prompt_tokens + max(agent.max_response_tokens, _SCORED_TOKENS) + 1
    return wanted if context_limit is None else min(wanted, context_limit)


def engine_arguments(sampling: Sampling, model: Model, limit: int, *, on_cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM`, without the model's folder.

    Args:
        sampling: memory and block size.
        model: number format.
        limit: positions of one row, see `engine_limit`.
        on_cpu: the CPU engine has other needs: see the comments.
    """
    arguments: dict[str, Any] = {
        "dtype": model.dtype,
        "max_model_len": limit,
        "block_size": sampling.block_tokens,
        "enable_prefix_caching": True,
        "gpu_memory_utilization": sampling.memory_share,
        # The log-probabilities of what was sampled from: after temperature.
        "logprobs_mode": "processed_logprobs",
        # Weights are handed over, ends and temperatures given, by us.
        "load_format": "dummy",
        "generation_config": "vllm",
        "disable_log_stats": True,
        "seed": 0,
    }
    if sampling.cache_gib:
        arguments["kv_cache_memory_bytes"] = int(sampling.cache_gib * 2**30)
    if on_cpu:
        # Seeded requests fail there when a prompt is computed in chunks, so every prompt must fit one pass.
        batch = max(limit, _CPU_BATCH_TOKENS)
        arguments |= {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": batch}
    else:
        arguments |= {"enable_sleep_mode": True, "enable_trace_replay": True}
    return arguments


def seeds(keys: UInt64[np.ndarray, " n"]) -> list[int]:
    """A seed of 63 bits a draw, the hash of its key: draws of neighbouring keys have nothing in common.

    Example:
        >>> first, second = seeds(np.array([7, 8], dtype=np.uint64))
        >>> abs(first - second) > 2**32
        True
    """
    return [int(seed) for seed in fold(keys, 0) >> np.uint64(1)]


def generation_parameters(seed: int, *, temperature: float, max_tokens: int, eos_ids: Iterable[int]) -> dict[str, Any]:
    """Keyword arguments of `vllm.SamplingParams` for one completion."""
    return {
        # Never n > 1: child i of n has the seed plus i, which may be another request's.
        "n": 1,
        "seed": seed,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "logprobs": 0,
        # Cases that a policy might write; `Ending` decides, for any other it only cuts later.
        "stop": [form for stop in STOP_STRINGS for form in (stop, stop.upper(), f"</{stop[2:].capitalize()}")],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "stop_token_ids": sorted(eos_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def prefill_parameters() -> dict[str, Any]:
    """Keyword arguments of `vllm.SamplingParams` that compute a prompt; the engine insists on sampling one token."""
    return {"temperature": 0.0, "max_tokens": 1, "detokenize": False}


def tail_parameters(context: Tokens, continuation: Tokens, *, on_cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `vllm.SamplingParams` that score a prompt's last ids on top of its cached prefix.

    Args:
        context: ids before those that are scored, at least one.
        continuation: ids that are scored.
        on_cpu: the CPU's model runner returns a table of the whole prompt, the GPU's exactly the rows asked for.
    """
    # Asking for a prompt's log-probabilities turns the cache off unless told otherwise.
    common = prefill_parameters() | {"skip_reading_prefix_cache": False}
    if on_cpu:
        return common | {"prompt_logprobs": 0, "flat_logprobs": True}
    rows = [[token] for token in continuation]
    return common | {"prompt_logprob_token_ids": rows, "prompt_logprob_start": len(context) - 1}
