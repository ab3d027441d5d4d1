"""probe: a model and the packing that was asked for -> the packing that it takes.

In: any causal language model of transformers.
Out: `tree` where tiny rows that share prefixes get the log-probabilities of path rows, else `path` and a warning.
Source: ours. Whether a model lets its attention be replaced, hands arguments through and takes position ids is not
written down anywhere; trying is safe, because a wrong mask shows in any token after a shared prefix.
"""

import logging
from typing import Any, Final

import torch
from torch import nn

from igrpo_train.config import Packing
from igrpo_train.learn.attention import tree_attention
from igrpo_train.learn.batch import collate
from igrpo_train.learn.loss import token_logprobs
from igrpo_train.learn.packing import TurnRow

logger: Final = logging.getLogger(__name__)

_TOLERANCE: Final = {False: 1e-3, True: 0.25}
"""Nats, by whether the model computes in half precision; what another mask or position does is far larger."""


def usable_packing(wanted: Packing, model: nn.Module, device: torch.device | str, *, half: bool = False) -> Packing:
    """`wanted`, or `path` where the model cannot take a trie.

    Args:
        wanted: what the recipe asks for.
        model: in evaluation mode; possibly wrapped for data-parallel training.
        device: of the model.
        half: whether activations are in half precision.
    """
    if wanted == "path":
        return "path"
    reason = _objection(model, device, half)
    if reason is None:
        return "tree"
    logger.warning(
        "this model cannot train on packed trees (%s): it trains on path rows, with the same result in more time; "
        "optimiser.packing = 'path' asks for that without this message",
        reason,
    )
    return "path"


def _objection(model: nn.Module, device: torch.device | str, half: bool) -> str | None:
    """Why the model cannot take a trie; None when it can."""
    rows = _rows(model)
    try:
        with torch.no_grad():
            expected = token_logprobs(model, collate(rows, 0, device), 1.0).logprobs
            with tree_attention(model):
                got = token_logprobs(model, collate(rows, 0, device, packing="tree"), 1.0).logprobs
    except Exception as error:  # whatever a model of somebody else's raises says the same: it does not take this input
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    difference = float((got - expected).abs().max())
    if difference <= _TOLERANCE[half]:
        return None
    return f"log-probabilities of the same tokens differ by {difference:.2g} nats"


def _rows(model: nn.Module) -> list[TurnRow]:
    """Three rows: two share a context, the third leaves it in the middle and is longer."""
    inner: Any = getattr(model, "module", model)
    vocabulary = int(inner.get_input_embeddings().num_embeddings)

    def ids(first: int, count: int) -> tuple[int, ...]:
        return tuple((first + 7 * k) % vocabulary for k in range(count))

    def row(path: int, context_ids: tuple[int, ...], response_ids: tuple[int, ...]) -> TurnRow:
        return TurnRow(
            question=0,
            path=path,
            turn=0,
            context_ids=context_ids,
            response_ids=response_ids,
            old_logprobs=(0.0,) * len(response_ids),
            advantage=0.0,
        )

    context = ids(3, 8)
    branch = context[:5] + ids(2, 9)
    return [row(0, context, ids(1, 5)), row(1, context, ids(4, 5)), row(2, branch, ids(5, 5))]
