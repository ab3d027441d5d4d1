"""Memory of keys and values: what a token takes, and what cannot be had is told."""

import logging

import pytest
import torch

from igrpo_train.search.memory import check_cache_gib, check_cache_tokens, device_bytes, token_bytes


def test_a_token_takes_what_a_cache_of_the_model_holds(toy_model):
    length = 5
    with torch.no_grad():
        cache = toy_model(torch.arange(3, 3 + length)[None], use_cache=True).past_key_values
    held = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    assert length * token_bytes(toy_model.config, toy_model.dtype) == held


def test_a_bound_beyond_the_memory_of_the_device_is_warned_of(toy_model, caplog):
    per_token = token_bytes(toy_model.config, toy_model.dtype)
    most = device_bytes(toy_model.device) // per_token
    with caplog.at_level(logging.WARNING):
        for bound in (0, 1, most):
            check_cache_tokens(bound, toy_model)
        assert not caplog.text
        check_cache_tokens(2 * most, toy_model)
    assert f"sampling.cache_tokens = {2 * most} are" in caplog.text
    assert "GiB of keys and values, more than all memory of cpu" in caplog.text
    assert f"{most // 2} are half of it" in caplog.text


def test_a_cache_that_vllm_could_not_set_aside_is_refused():
    cpu = torch.device("cpu")
    check_cache_gib(0.0, cpu)
    check_cache_gib(0.5, cpu)
    with pytest.raises(
        ValueError, match=r"sampling.cache_gib must be less than the [\d.]+ GiB of cpu, got 1e\+99: lower"
    ):
        check_cache_gib(1e99, cpu)
