"""launch: how processes were started, and a recipe -> the accelerator that they train on.

Several processes come from `accelerate launch` on GPUs and from `torchrun` on CPUs, where accelerate's own launcher
starts a single one. Weights are sharded by FSDP2 where the recipe (`run.sharding`) or accelerate's configuration asks
for it; otherwise each process has all of them. accelerate honours that configuration on accelerators only: on CPUs it
falls back to data parallelism without a word, so there its state is told what to do.
"""

import os
from datetime import timedelta

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import (
    DistributedType,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
    gather_object,
)
from torch.distributed.fsdp import MixedPrecisionPolicy

from igrpo_train.config import Model, Run
from igrpo_train.policy import find_device
from igrpo_train.processes import Processes


def start(model: Model, run: Run) -> Accelerator:
    """Join the other processes of the launch.

    Raises:
        ValueError: the device, the number of processes or the sharding is not what was asked for.
    """
    cpu = model.device == "cpu" or not torch.accelerator.is_available()
    plugin = _sharding_plugin(run, half=model.dtype == "bfloat16")
    # Weights stay in float32, so that small steps are not rounded away; only activations are in half precision.
    accelerator = Accelerator(
        cpu=cpu,
        mixed_precision="bf16" if model.dtype == "bfloat16" else "no",
        fsdp_plugin=plugin,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=run.process_timeout_s))],
    )
    if plugin is not None and accelerator.distributed_type == DistributedType.MULTI_CPU:
        _shard_on_cpus(plugin)
    # Together: what all refuse is said by one.
    processes_of(accelerator).together(lambda: _check(model, run, accelerator))
    return accelerator


def processes_of(accelerator: Accelerator) -> Processes:
    """The processes of an accelerator."""
    if accelerator.num_processes == 1:
        return Processes()
    return Processes(
        accelerator.process_index, accelerator.num_processes, exchange=lambda value: gather_object([value])
    )


def describe(accelerator: Accelerator) -> str:
    """How many processes train on what, and what each has of the weights."""
    size, kind = accelerator.num_processes, accelerator.device.type
    if size == 1:
        return f"1 process ({kind})"
    share = "FSDP2: each with a part of the weights" if accelerator.is_fsdp2 else "each with all weights"
    return f"{size} processes ({kind}), {share}"


def check_processes(wanted: int, size: int, launched: int) -> None:
    """Refuse a run in which the processes are not those that were asked for.

    Args:
        wanted: `run.processes`; 0 takes any number.
        size: processes that found each other.
        launched: processes that the launcher says it started.

    Raises:
        ValueError: says how to start that many.

    Example:
        >>> check_processes(0, 2, 2)
    """
    if size != launched:
        raise ValueError(
            f"processes must find each other, got {launched} that were launched and {size} in the group of this one: "
            "set model.device to the kind of device that they were launched for"
        )
    if wanted not in (0, size):
        raise ValueError(
            f"run.processes must be the number of processes that were started ({size}), got {wanted}: start so "
            f"many by 'accelerate launch --num_processes {wanted} -m igrpo_train ...' on GPUs, or by "
            f"'torchrun --nproc-per-node {wanted} -m igrpo_train ...' on CPUs, where accelerate launch starts a single "
            "process whatever it is told; run.processes = 0 takes any number"
        )


def _check(model: Model, run: Run, accelerator: Accelerator) -> None:
    """Refuse a launch that is not what was asked for."""
    check_processes(run.processes, accelerator.num_processes, int(os.environ.get("WORLD_SIZE", "1")))
    if run.sharding == "fsdp2" and accelerator.num_processes == 1:
        raise ValueError("run.sharding must be auto in one process, got 'fsdp2': launch several, see docs/processes.md")
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise ValueError(
            "accelerate's configuration must ask for data parallelism or FSDP2, got DeepSpeed: see recipes/accelerate"
        )
    _check_device(model.device, accelerator.device)


def _sharding_plugin(run: Run, *, half: bool) -> FullyShardedDataParallelPlugin | None:
    """FSDP2 as the recipe or accelerate's configuration asks for it; None for none."""
    # accelerate itself leaves this set once it has sharded: the recipe is asked first.
    configured = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if alone or (run.sharding == "auto" and not configured):
        return None
    # Gradients are added up over processes in full precision.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else None
    if run.sharding == "fsdp2":
        return FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=True,
            auto_wrap_policy="transformer_based_wrap",
            cpu_ram_efficient_loading=False,
            mixed_precision_policy=policy,
        )
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=policy)
    if plugin.fsdp_version != 2:
        raise ValueError(
            f"fsdp_version must be 2 in accelerate's configuration, got {plugin.fsdp_version}: set it to 2"
        )
    if plugin.cpu_ram_efficient_loading:
        raise ValueError(
            "fsdp_cpu_ram_efficient_loading must be false in accelerate's configuration, got true: every process "
            "looks at the weights before they are sharded"
        )
    return plugin


def _shard_on_cpus(plugin: FullyShardedDataParallelPlugin) -> None:
    """Make accelerate shard on CPUs, as it does on accelerators."""
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = plugin


def _check_device(name: str, given: torch.device) -> None:
    """Refuse a device other than the one that accelerate trains on."""
    wanted = given if name == "auto" else find_device(name)
    if wanted.type != given.type or wanted.index not in (None, given.index or 0):
        raise ValueError(
            f"model.device must be auto, cpu or the accelerator that this process has ({given}), got {name!r}: "
            "choose another GPU with CUDA_VISIBLE_DEVICES"
        )
