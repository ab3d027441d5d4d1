"""estimate: the shape of a model and how it is trained -> bytes on one GPU.

Formulas only, all stated in docstrings; nothing here runs a model, and nothing has been measured on a GPU. Tests hold
the parts beside small real models on a CPU: parameters, optimiser and key-value cache exactly, activations by the
tensors that autograd saves. Not counted: the allocator's gaps, kernels' workspaces, CUDA's own context.

Letters: P parameters, n shards, h hidden size, a = heads x head size, k = key-value heads x head size, i width of the
MLP, V vocabulary, T tokens of a forward pass, S sampled ones among them.
Source: ours; [adamw] for the moments, PyTorch's autocast, DistributedDataParallel and FSDP2 for the copies.

Example:
    >>> shape = KNOWN["Qwen/Qwen2.5-3B-Instruct"]
    >>> f"{shape.parameters:,}", cache_bytes_per_token(shape, itemsize=2)
    ('3,085,938,688', 36864)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Sharding = Literal["none", "fsdp2"]
GB: Final = 10**9

_SOFTMAX_ROWS: Final = 1024
"""Rows of the vocabulary softmax that are worked on at once (`learn.loss`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a decoder with gated MLPs and RMS norms (Llama, Qwen2)."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """Whether the output layer is the embedding."""
    biased: bool
    """Whether queries, keys and values have biases."""

    @property
    def queries(self) -> int:
        """Width of all queries of a token, a."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of all keys of a token, k."""
        return self.kv_heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """2 h (a + k) + 3 h i + 2 h, and a + 2 k biases."""
        weights = 2 * self.hidden * (self.queries + self.keys) + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return weights + self.biased * (self.queries + 2 * self.keys)

    @property
    def root_parameters(self) -> int:
        """Outside of the layers: V h for the embedding, V h for an output layer of its own, h for the last norm."""
        return (2 - self.tied) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return self.layers * self.layer_parameters + self.root_parameters

    @property
    def tensors(self) -> int:
        """Tensors that they lie in."""
        return self.layers * (9 + 3 * self.biased) + 3 - self.tied


def _qwen(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, tied: bool = False) -> Shape:
    return Shape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_size=128,
        vocabulary=151936 if tied else 152064,
        tied=tied,
        biased=True,
    )


KNOWN: Final[Mapping[str, Shape]] = {
    "Qwen/Qwen2.5-3B-Instruct": _qwen(36, 2048, 11008, 16, 2, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(28, 3584, 18944, 28, 4),
    "Qwen/Qwen2.5-32B-Instruct": _qwen(64, 5120, 27648, 40, 8),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(
        layers=30,
        hidden=576,
        intermediate=1536,
        heads=9,
        kv_heads=3,
        head_size=64,
        vocabulary=49152,
        tied=True,
        biased=False,
    ),
}
"""Shapes of the recipes' models, for machines that have no config.json of them."""


def shape_from_config(config: Mapping[str, Any]) -> Shape:
    """The shape that a config.json of a Llama or Qwen2 states.

    Raises:
        ValueError: a size is missing; the message names it.

    Example:
        >>> sizes = dict(num_hidden_layers=2, hidden_size=8, intermediate_size=9, num_attention_heads=2, vocab_size=5)
        >>> shape_from_config(sizes | {"model_type": "qwen2"}).head_size
        4
    """
    try:
        heads = config["num_attention_heads"]
        return Shape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
            biased=config.get("model_type") == "qwen2" or bool(config.get("attention_bias")),
        )
    except KeyError as error:
        raise ValueError(
            f"config.json must state {error.args[0]}, got {sorted(config)}: estimates are for Llama and Qwen2 models"
        ) from error


def cache_bytes_per_token(shape: Shape, itemsize: int) -> int:
    """Keys and values of one token: 2 x layers x k x itemsize.

    The transformers engine keeps 4 bytes a number also with bfloat16 activations, since autocast leaves rotations in
    float32; vllm keeps model.dtype.
    """
    return 2 * shape.layers * shape.keys * itemsize


def moment_bytes(shape: Shape) -> int:
    """AdamW's state: two float32 moments a parameter, and a step count of 4 bytes a tensor."""
    return 8 * shape.parameters + 4 * shape.tensors


def layer_activation_bytes(shape: Shape, tokens: int, *, half: bool) -> int:
    """What autograd saves of one layer for its backward pass.

    Two norms keep input and normalised input (4 h) and two scales. Then in float32: what the linear layers read (2 h,
    and the attention's output with a), queries (a), keys and values (2 k), log-sums (heads), and gate, its SiLU, up and
    their product (4 i); 4 bytes each. With bfloat16 activations the norms stay in float32, the rest takes 2 bytes, and
    each of the five linear layers that read a norm keeps a copy of its own (5 h).

    Source: PyTorch's saved tensors with fused attention, counted in the tests.
    """
    norms = 4 * (4 * shape.hidden + 2)
    rest = 2 * shape.queries + 2 * shape.keys + 4 * shape.intermediate
    if half:
        return tokens * (norms + 4 * shape.heads + 2 * (5 * shape.hidden + rest))
    return tokens * (norms + 4 * shape.heads + 4 * (2 * shape.hidden + rest))


def activation_bytes(shape: Shape, tokens: int, *, half: bool, checkpointing: bool) -> int:
    """What autograd saves below the output layer: all layers, or with checkpointing their inputs and one layer.

    An input is 4 h a token. The last norm (8 h + 4), rotations (8 head sizes) and ids (8) come with either.
    """
    outside = tokens * (8 * shape.hidden + 4 + 8 * shape.head_size + 8)
    layer = layer_activation_bytes(shape, tokens, half=half)
    if checkpointing:
        return outside + shape.layers * tokens * 4 * shape.hidden + layer
    return outside + shape.layers * layer


def logits_bytes(shape: Shape, sampled: int) -> int:
    """Logits of the sampled tokens at the height of the backward pass.

    Float32 logits and their gradient (8 V a token), and six float32 tables of the rows whose softmax is worked on.
    """
    return shape.vocabulary * (8 * sampled + 24 * min(sampled, _SOFTMAX_ROWS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a model is trained and sampled, as far as memory depends on it."""

    processes: int = 1
    """GPUs; each has a process of its own."""
    sharding: Sharding = "none"
    """none: each process has everything; fsdp2: weights, gradients, moments and reference are cut into shards."""
    half: bool
    """Activations in bfloat16."""
    reference: bool
    """Whether there is a KL term."""
    checkpointing: bool
    """Whether activations are computed again in the backward pass."""
    tokens: int
    """Tokens of a forward pass, T."""
    sampled: int
    """Sampled tokens among them, S; at most T."""
    sampler: int
    """Bytes of the engine: the key-value cache, and the weights where it has its own."""
    whole_weights: bool
    """Whether the engine is the policy itself, whose weights must then be whole on every GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on one GPU."""

    weights: int
    """Float32: 4 P / n."""
    gradients: int
    """Float32: 4 P / n, and 4 P in the buckets of data-parallel processes; shards are exchanged in every pass."""
    moments: int
    """AdamW's: 8 P / n, and 4 a tensor."""
    reference: int
    """In model.dtype: 2 P / n or 4 P / n."""
    copies: int
    """Weights in the form of activations, while a pass lasts.

    Without sharding autocast's bfloat16 copies, 2 P; with it what is gathered, twice the root and two layers, once for
    weights and once for gradients.
    """
    activations: int
    """What is saved for the backward pass, and the gradients of the MLP of the layer that it is in (3 i a token)."""
    logits: int
    """Of the sampled tokens, with their gradient."""
    sampler: int
    """Of the engine, as planned."""
    rollout_copies: int
    """As `copies`, in a rollout by the policy itself: the whole model in the form of activations; nothing for vllm."""

    @property
    def state(self) -> int:
        """What is there at any time."""
        return self.weights + self.moments + self.reference

    @property
    def update(self) -> int:
        """At the height of the update: with activations and logits, or AdamW's float32 table of 4 P / n."""
        passing = self.copies + self.activations + self.logits
        return self.state + self.gradients + max(passing, self.weights)

    @property
    def rollout(self) -> int:
        """While trees grow; gradients are gone."""
        return self.state + self.rollout_copies + self.sampler

    @property
    def peak(self) -> int:
        """The larger of the two: they take turns."""
        return max(self.update, self.rollout)


def estimate_memory(shape: Shape, plan: Plan) -> Memory:
    """Bytes on the GPU of one process; see `Memory` for each formula.

    Example:
        >>> plan = Plan(half=True, reference=True, checkpointing=True, tokens=8192, sampled=8192, sampler=0,
        ...             whole_weights=True)
        >>> round(estimate_memory(KNOWN["Qwen/Qwen2.5-3B-Instruct"], plan).state / GB, 1)
        43.2
    """
    parameters = shape.parameters
    shards = plan.processes if plan.sharding == "fsdp2" else 1
    item = 2 if plan.half else 4
    if plan.sharding == "fsdp2":
        copies = 2 * item * (shape.root_parameters + 2 * shape.layer_parameters)
    else:
        copies = 2 * parameters if plan.half else 0
    saved = activation_bytes(shape, plan.tokens, half=plan.half, checkpointing=plan.checkpointing)
    exchanged = 4 * parameters if plan.processes > 1 and shards == 1 else 0
    whole = item * parameters if plan.half or shards > 1 else 0
    return Memory(
        weights=_share(4 * parameters, shards),
        gradients=_share(4 * parameters, shards) + exchanged,
        moments=_share(8 * parameters, shards) + 4 * shape.tensors,
        reference=_share(item * parameters, shards) if plan.reference else 0,
        copies=copies,
        activations=saved + 3 * item * plan.tokens * shape.intermediate,
        logits=logits_bytes(shape, plan.sampled),
        sampler=plan.sampler,
        rollout_copies=whole if plan.whole_weights else 0,
    )


def _share(size: int, shards: int) -> int:
    return -(-size // shards)
