"""sharding: a launch with FSDP2 -> sharded models, whole weights for a rollout, whole states for a checkpoint.

In: accelerate's settings from its launcher (`accelerate launch --config_file`); on CPUs `run.sharding = "fsdp2"`.
Out: models whose parameters every process holds a part of, whole again where a block needs them.
Source: PyTorch's fully_shard (FSDP2) and torch.distributed.checkpoint.state_dict, through accelerate.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard

from igrpo_train.processes import LONGEST_WAIT

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def make_accelerator(*, cpu: bool, half: bool, shard: bool) -> Accelerator:
    """The accelerator of this process.

    Args:
        cpu: train on CPUs.
        half: activations in bfloat16.
        shard: FSDP2, whatever the launcher says.

    Raises:
        ValueError: there is nothing to shard over.
    """
    precision = "bf16" if half else "no"
    patience = [InitProcessGroupKwargs(timeout=LONGEST_WAIT)]
    if not shard:
        return Accelerator(cpu=cpu, mixed_precision=precision, kwargs_handlers=patience)
    if PartialState(cpu=cpu, timeout=LONGEST_WAIT).num_processes == 1:
        raise ValueError("run.sharding must be auto in one process, got fsdp2: launch several with torchrun")
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="FULL_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=cpu, mixed_precision=precision, fsdp_plugin=plugin, kwargs_handlers=patience)
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        # On CPUs accelerate trains unsharded without a word, though its own code for FSDP2 runs there.
        for state in (AcceleratorState, PartialState):
            state._shared_state["distributed_type"] = DistributedType.FSDP
        AcceleratorState._shared_state["fsdp_plugin"] = plugin
        if half:
            plugin.set_mixed_precision(precision)
    return accelerator


def shard_frozen(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """A model that is not trained, on the device and, under FSDP2, sharded as the policy is."""
    if not accelerator.is_fsdp2:
        return accelerator.prepare_model(model, evaluation_mode=True)
    layers = [module for module in model.modules() if type(module).__name__ in getattr(model, "_no_split_modules", ())]
    for module in (*layers, model):
        fully_shard(module)
    return model


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Keep all weights on every process during a block in which processes run the model at their own pace.

    A sharded model exchanges weights in every pass, which would wait for passes that another process never makes. The
    block needs room for the whole model; without sharding it changes nothing.
    """
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()
            module.set_reshard_after_forward(True, recurse=False)


def optimiser_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """State by parameter names, whole and on the CPU, the same for any number of processes; all of them call it."""
    return get_optimizer_state_dict(model, _inner(optimiser), options=_WHOLE)


def load_optimiser_state(model: nn.Module, optimiser: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over what `optimiser_state` gave, of any number of processes."""
    set_optimizer_state_dict(model, _inner(optimiser), dict(state), options=StateDictOptions(full_state_dict=True))


def _inner(optimiser: Any) -> torch.optim.Optimizer:
    """The optimiser in accelerate's wrapper."""
    inner: torch.optim.Optimizer = getattr(optimiser, "optimizer", optimiser)
    return inner
