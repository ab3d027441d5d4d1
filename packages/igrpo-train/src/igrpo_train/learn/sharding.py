"""sharding: models and optimisers of one process -> shards of them, and back.

FSDP2 keeps a part of every weight on each process and puts a layer together where a pass needs it: all processes must
make their passes together. Trees do not grow in step, so a rollout runs on weights that are whole for its length
(`whole`); no pass exchanges anything then. Optimiser states are saved whole and by the places of their parameters, so
a checkpoint of any number of processes, sharded or not, goes on with any other.
Source: [fsdp].
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import fsdp2_prepare_model
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from igrpo_train.weights import whole_tensor


def shard_frozen(accelerator: Accelerator, model: nn.Module) -> Any:
    """Shard a model that is only read, as accelerate shards the one that is trained; every process calls it."""
    sharded: Any = fsdp2_prepare_model(accelerator, model)
    # No backward pass comes that would give up the last layers.
    sharded.set_reshard_after_forward(True)
    return sharded


@contextmanager
def whole(model: nn.Module, *, reshard: bool = True) -> Iterator[None]:
    """Inside, every process has all weights of the model, and passes exchange nothing; all processes enter together.

    Sharded weights take the memory of a whole copy for that time, in the number format of the passes. A model that is
    not sharded is left alone.

    Args:
        model: not wrapped.
        reshard: whether training passes give up whole layers between forward and backward.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(reshard, recurse=False)
            part.reshard()


def whole_state(optimiser: torch.optim.Optimizer, *, keep: bool = True) -> dict[str, Any]:
    """The optimiser's state with whole tensors on the CPU; every process calls it, those that keep it get it."""
    state = optimiser.state_dict()
    entries: dict[int, dict[str, Any]] = {}
    for place, entry in state["state"].items():
        # One parameter at a time: no more than that is whole on the device.
        gathered = {name: whole_tensor(value) if isinstance(value, Tensor) else value for name, value in entry.items()}
        if keep:
            entries[place] = {
                name: value.cpu() if isinstance(value, Tensor) else value for name, value in gathered.items()
            }
    return {"state": entries, "param_groups": state["param_groups"]}


def load_state(optimiser: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over what `whole_state` gave, each process its own part of it."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    entries = {
        place: {name: _like(parameters[place], value) for name, value in entry.items()}
        for place, entry in state["state"].items()
    }
    optimiser.load_state_dict({"state": entries, "param_groups": state["param_groups"]})


def _like(parameter: Tensor, value: Any) -> Any:
    """A moment, sharded as its parameter is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    mesh = parameter.device_mesh
    # Every process has read it all: nothing is sent.
    return distribute_tensor(value.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)
