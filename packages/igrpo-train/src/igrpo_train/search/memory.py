"""memory: a bound on keys and values, a model and a device -> what it takes, and a word where it cannot be had."""

import logging
import os
from typing import Any, Final

import torch

from igrpo_train.checks import check

logger = logging.getLogger(__name__)

_GIB: Final = 2**30


def token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token.

    Args:
        config: of a decoder of transformers.
        dtype: of its activations.

    Example:
        >>> from transformers import LlamaConfig
        >>> sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        >>> token_bytes(LlamaConfig(**sizes), torch.float32)
        512
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width * dtype.itemsize)


def device_bytes(device: torch.device) -> int:
    """Memory of a GPU, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_cache_tokens(cache_tokens: int, model: Any) -> None:
    """Warn where `sampling.cache_tokens` lets more be kept than the device of a model has."""
    if not cache_tokens:
        return
    per_token, total = token_bytes(model.config, model.dtype), device_bytes(model.device)
    if cache_tokens * per_token > total:
        logger.warning(
            "sampling.cache_tokens = %d are %.1f GiB of keys and values, more than all memory of %s (%.1f GiB): this "
            "bound keeps nothing from running out; %d are half of it",
            cache_tokens,
            cache_tokens * per_token / _GIB,
            model.device,
            total / _GIB,
            total // per_token // 2,
        )


def check_cache_gib(cache_gib: float, device: torch.device) -> None:
    """Refuse a `sampling.cache_gib` beyond the memory of a device, which vLLM would set aside at once.

    Raises:
        ValueError: it is larger.
    """
    total = device_bytes(device) / _GIB
    check("sampling.cache_gib", cache_gib, cache_gib < total, f"less than the {total:.1f} GiB of {device}", "lower it")
