"""weights: a model as it is trained -> whole tensors by their names in a checkpoint.

Shards are put together and low-rank adapters are added to what they adapt; a tensor with two names (an output layer
that is tied to the embedding) comes once.

Example:
    >>> [name for name, _ in whole_weights(nn.Linear(2, 1))]
    ['weight', 'bias']
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_BASE: Final = ".base_layer."
_ADAPTER: Final = ".lora_"


def whole_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or all shards of one that is sharded; then every process calls it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and weights one by one, so that only one is whole in memory at a time.

    Args:
        model: not wrapped; where it is sharded, every process takes all weights.
    """
    seen: set[int] = set()
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) in seen or _ADAPTER in name:
                continue
            seen.add(id(tensor))
            whole = whole_tensor(tensor).detach()
            if _BASE in name:
                layer, _, kind = name.partition(_BASE)
                name, whole = f"{layer}.{kind}", _merged(model.get_submodule(layer), whole, kind)
            yield name, whole


def adapter_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The low-rank factors alone, by their names in the model; every process calls it."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if _ADAPTER in name:
                yield name, whole_tensor(tensor).detach()


def _merged(layer: Any, weight: Tensor, kind: str) -> Tensor:
    """The adapted weight, in float32: half precision would round small changes away."""
    if kind != "weight":
        return weight
    merged = weight.float()
    for name in layer.active_adapters:
        down, up = (whole_tensor(factors[name].weight).float() for factors in (layer.lora_A, layer.lora_B))
        merged = merged + layer.scaling[name] * (up @ down)
    return merged
