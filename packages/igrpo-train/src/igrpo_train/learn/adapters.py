"""adapters: a policy -> the same policy with low-rank adapters, of which alone is trained.

The model keeps its class: peft puts adapters into its linear layers in place. What the policy was before training is
the model with its adapters off, so the KL term needs no second model.
Source: [lora]. The draws of the first factor are ours: a function of recipe and seed, so that all processes agree.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from igrpo_train.config import Model
from igrpo_train.errors import MissingExtra

FOLDER: Final = "adapter"
"""Where a checkpoint keeps the adapters, in the format of peft."""
_NAME: Final = "default"
_PREFIX: Final = "base_model.model."
_FILE: Final = "adapter_model.safetensors"


def add_adapters(model: nn.Module, config: Model, seed: int, folder: Path | None = None) -> None:
    """Put adapters into the model in place and freeze the rest; the first policy is the model's own.

    Args:
        model: of transformers, not wrapped.
        config: rank, scale and layers.
        seed: fixes the first factor's draws; the second starts at zero.
        folder: a checkpoint whose adapters to take over.

    Raises:
        MissingExtra: peft is not installed.
        ValueError: the model has no such layers.
    """
    peft = _import_peft()
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(config.lora_targets) or "all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=config.path,
    )
    try:
        peft.inject_adapter_in_model(settings, model, _NAME)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"model.lora_targets must name linear layers of {type(model).__name__}, got {config.lora_targets} "
            f"({reason}): give names such as q_proj, or none for all linear layers"
        ) from error
    generator = torch.Generator().manual_seed(seed)
    for layer in _layers(model):
        down, up = layer.lora_A[_NAME].weight, layer.lora_B[_NAME].weight
        bound = 1 / math.sqrt(down.shape[1])
        down.data = torch.empty(down.shape).uniform_(-bound, bound, generator=generator)
        # In full precision, whatever the base is in: these are what is trained.
        up.data = torch.zeros(up.shape)
    if folder is not None:
        _load(model, folder / FOLDER)


def has_adapters(model: nn.Module) -> bool:
    """Whether the model has adapters.

    Example:
        >>> has_adapters(nn.Linear(2, 2))
        False
    """
    return any(True for _ in _layers(model))


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The policy before training, for forward passes without gradients."""
    layers = list(_layers(model))
    try:
        for layer in layers:
            # Not `enable_adapters`: it also turns gradients off and on, which shards of parameters do not survive.
            layer._disable_adapters = True
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def save_adapters(weights: Mapping[str, Tensor], model: Any, folder: Path) -> None:
    """Write adapters as peft does.

    Args:
        weights: see `weights.adapter_weights`.
        model: whose adapters they are.
        folder: made here.
    """
    folder.mkdir()
    model.peft_config[_NAME].save_pretrained(folder)
    named = {_PREFIX + name.replace(f".{_NAME}.", "."): tensor.contiguous() for name, tensor in weights.items()}
    save_file(named, folder / _FILE, metadata={"format": "pt"})


def _load(model: nn.Module, folder: Path) -> None:
    saved = load_file(folder / _FILE)
    own = {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}
    for name, parameter in own.items():
        parameter.data = saved.pop(_PREFIX + name.replace(f".{_NAME}.", ".")).to(parameter.dtype)
    assert not saved, f"{folder} has more adapters than the model: {sorted(saved)}"


def _layers(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if hasattr(module, "lora_A"))


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "for model.lora_rank", "pip install 'igrpo-train[lora]'") from error
    return peft
