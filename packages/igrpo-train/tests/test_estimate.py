"""test_estimate: formulas beside real models, exactly where they are exact, else within a stated factor."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from tiny_models import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, PreTrainedModel

from igrpo_train.estimate import (
    KNOWN,
    Plan,
    activation_bytes,
    cache_bytes_per_token,
    estimate_memory,
    logits_bytes,
    moment_bytes,
    shape_from_config,
)
from igrpo_train.learn.batch import collate
from igrpo_train.learn.loss import token_logprobs
from igrpo_train.learn.packing import TurnRow

FAMILIES = pytest.mark.parametrize("family", ["qwen2", "llama"])
PLAN: dict[str, Any] = {
    "half": True,
    "reference": True,
    "checkpointing": False,
    "tokens": 100,
    "sampled": 100,
    "sampler": 0,
    "whole_weights": True,
}


def small_model(family: Any, **sizes: int) -> PreTrainedModel:
    return tiny_model(family, torch.float32, **sizes)


@FAMILIES
def test_parameters_and_tensors_are_those_of_the_model(family: Any) -> None:
    model = small_model(family, num_hidden_layers=3)
    shape = shape_from_config(model.config.to_dict())
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.tensors == len(list(model.parameters()))


@pytest.mark.parametrize("name", ["leak", "plain"])
def test_the_shipped_checkpoints_have_the_parameters_of_their_config(name: str) -> None:
    from safetensors import safe_open

    import igrpo_train.miniature

    folder = Path(igrpo_train.miniature.__file__).parent / "checkpoints" / name
    shape = shape_from_config(json.loads((folder / "config.json").read_text()))
    with safe_open(folder / "model.safetensors", "pt") as weights:
        stored = [weights.get_tensor(key).numel() for key in weights.keys()]  # noqa: SIM118  # no mapping
    assert (shape.parameters, shape.tensors) == (sum(stored), len(stored))


@pytest.mark.parametrize(("size", "published"), [("3B", 3_085_938_688), ("7B", 7_615_616_512), ("32B", 32_763_876_352)])
def test_the_table_has_the_parameters_that_were_published(size: str, published: int) -> None:
    assert KNOWN[f"Qwen/Qwen2.5-{size}-Instruct"].parameters == published


def test_the_table_knows_smollm2(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert shape_from_config(config) == KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"]


@FAMILIES
def test_moments_are_as_large_as_adamw_s_state(family: Any) -> None:
    model = small_model(family)
    optimiser = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimiser.step()
    state = [tensor for values in optimiser.state.values() for tensor in values.values()]
    assert moment_bytes(shape_from_config(model.config.to_dict())) == sum(tensor.nbytes for tensor in state)


@pytest.mark.parametrize(
    ("weights", "autocast", "itemsize"),
    [(torch.float32, False, 4), (torch.bfloat16, False, 2), (torch.float32, True, 4)],
)
def test_a_cached_token_is_as_large_as_in_a_real_cache(weights: torch.dtype, autocast: bool, itemsize: int) -> None:
    model = small_model("qwen2").to(weights)
    cache = DynamicCache()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(input_ids=torch.ones(1, 7, dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert 7 * cache_bytes_per_token(shape_from_config(model.config.to_dict()), itemsize) == held


def saved_bytes(model: PreTrainedModel, tokens: int, *, half: bool) -> int:
    """What autograd keeps for the backward pass of the body, each storage once, without weights in any form."""
    sizes = {tuple(p.shape) for p in model.parameters()} | {tuple(p.shape)[::-1] for p in model.parameters()}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        # Autocast's copies of weights are transposed views.
        if place not in weights and tuple(tensor.shape) not in sizes:
            held[place] = tensor
        return tensor

    ids = torch.ones(1, tokens, dtype=torch.long)
    body = model.get_decoder()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
        output = body(input_ids=ids, use_cache=False).last_hidden_state
    total = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    del output
    return total


@FAMILIES
@pytest.mark.parametrize("half", [False, True])
def test_activations_are_exactly_what_autograd_saves(family: Any, half: bool) -> None:
    model = small_model(family, num_hidden_layers=3)
    shape = shape_from_config(model.config.to_dict())
    assert activation_bytes(shape, 97, half=half, checkpointing=False) == saved_bytes(model, 97, half=half)


@pytest.mark.parametrize("half", [False, True])
def test_checkpointing_saves_the_inputs_of_the_layers(half: bool) -> None:
    counts = []
    for layers in (2, 5):
        model = small_model("qwen2", num_hidden_layers=layers)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        counts.append((saved_bytes(model.train(), 97, half=half), shape_from_config(model.config.to_dict())))
    (few, shallow), (many, deep) = counts
    grown = [activation_bytes(shape, 97, half=half, checkpointing=True) for shape in (shallow, deep)]
    assert many - few == grown[1] - grown[0]
    assert few < grown[0]


class Peak(TorchDispatchMode):
    """Bytes of all tensors that were made inside, at their most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.places: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                place = storage.data_ptr()
                if place and place not in self.places:
                    self.places.add(place)
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self.release, place, storage.nbytes())
        return output

    def release(self, place: int, size: int) -> None:
        self.places.discard(place)
        self.now -= size


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("context", "response", "vocabulary"), [(1100, 20, 50), (50, 1998, 1000)])
def test_a_training_pass_peaks_where_the_estimate_says(
    half: bool, checkpointing: bool, context: int, response: int, vocabulary: int
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 6, "max_position_embeddings": 2100}
    model = small_model("qwen2", vocab_size=vocabulary, **sizes)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    ids = {"context_ids": (5,) * context, "response_ids": (7,) * response, "old_logprobs": (-1.0,) * response}
    batch = collate([TurnRow(question=0, path=0, turn=0, advantage=1.0, **ids)], pad_id=0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    plan = Plan(
        **PLAN | {"half": half, "checkpointing": checkpointing, "tokens": context + response, "sampled": response}
    )
    memory = estimate_memory(shape_from_config(model.config.to_dict()), plan)
    if half:
        # As accelerate prepares a model.
        model.forward = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model.forward))
    with Peak() as peak:
        token_logprobs(model, batch, 1.0).logprobs.mean().backward()
    ratio = (memory.copies + memory.activations + memory.logits) / peak.most
    # Activations and logits are added, though they are not at their most together.
    assert 0.95 < ratio < 1.8, f"estimate over measurement: {ratio:.2f}"


def test_shards_and_exchanges_are_counted() -> None:
    shape = KNOWN["Qwen/Qwen2.5-7B-Instruct"]
    parameters = shape.parameters
    alone, copies, shards = (
        estimate_memory(shape, Plan(processes=processes, sharding=sharding, **PLAN))
        for processes, sharding in ((1, "none"), (8, "none"), (8, "fsdp2"))
    )
    assert (alone.weights, alone.gradients, alone.reference) == (4 * parameters, 4 * parameters, 2 * parameters)
    assert copies.gradients == 8 * parameters
    assert (shards.weights, shards.reference) == (parameters // 2, parameters // 4)
    assert shards.gradients == parameters // 2
    assert alone.moments == moment_bytes(shape) == 8 * parameters + 4 * 339
    assert alone.rollout_copies == copies.rollout_copies == shards.rollout_copies == 2 * parameters
    assert alone.peak == alone.update > alone.rollout > alone.state


def test_logits_are_worked_on_in_parts() -> None:
    shape = KNOWN["Qwen/Qwen2.5-3B-Instruct"]
    assert logits_bytes(shape, 1) == 32 * 151_936
    assert logits_bytes(shape, 2048) - logits_bytes(shape, 1024) == 8 * 1024 * 151_936


def test_a_config_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config.json must state num_hidden_layers, got \['num_attention_heads'\]"):
        shape_from_config({"num_attention_heads": 2})
