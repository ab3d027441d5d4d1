"""probe: a model and the packing that was asked for -> the packing that it takes.

In: any causal language model of transformers.
Out: `tree` where tiny rows that share prefixes get the log-probabilities of path rows, else `path` and a warning.
Source: ours. Whether a model lets its attention be replaced, hands arguments through and takes position ids is not
written down anywhere; trying is safe, because a wrong mask shows in any token after a shared prefix. How far it shows
depends on the weights, so the trie is also run with a wrong mask and with wrong positions: what the model gives must be
far nearer to the path rows than to what these errors do.
"""

import logging
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from igrpo_train.config import Packing
from igrpo_train.learn.attention import plan_attention, tree_attention
from igrpo_train.learn.batch import Batch, collate
from igrpo_train.learn.loss import token_logprobs
from igrpo_train.learn.packing import TurnRow

logger: Final = logging.getLogger(__name__)

_TOLERANCE: Final = 0.1
"""Share of what an error does: a model that makes the error is at 1, rounding in float32 below 0.02."""


def usable_packing(
    wanted: Packing,
    model: nn.Module,
    device: torch.device | str,
    *,
    autocast: AbstractContextManager[Any] | None = None,
) -> Packing:
    """`wanted`, or `path` where the model cannot take a trie.

    A model so flat that neither error changes anything gets `path`: nothing can be told of it.

    Args:
        wanted: what the recipe asks for.
        model: in evaluation mode, on `device`, and not wrapped: it is compared in the precision of its weights, since
            half precision rounds away what errors do to a flat model.
        device: of the model.
        autocast: the mixed precision that it will be trained in: there it must run, too.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=20, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3)).eval()
        >>> usable_packing("tree", model, "cpu"), usable_packing("path", model, "cpu")
        ('tree', 'path')
    """
    if wanted == "path":
        return "path"
    reason = _objection(model, device, autocast)
    if reason is None:
        return "tree"
    logger.warning(
        "this model cannot train on packed trees (%s): it trains on path rows, with the same result in more time; "
        "optimiser.packing = 'path' asks for that without this message",
        reason,
    )
    return "path"


def _objection(
    model: nn.Module, device: torch.device | str, autocast: AbstractContextManager[Any] | None
) -> str | None:
    """Why the model cannot take a trie; None when it can."""
    rows = _rows(model)
    tree = collate(rows, 0, device, packing="tree")
    try:
        with torch.no_grad():
            expected = _logprobs(model, collate(rows, 0, device))
            with tree_attention(model):
                got = _logprobs(model, tree)
                wrong = {name: _logprobs(model, batch) for name, batch in _mistakes(tree, device).items()}
                if autocast is not None:
                    with autocast:
                        _logprobs(model, tree)
    except Exception as error:  # whatever a model of somebody else's raises says the same: it does not take this input
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    difference = float((got - expected).abs().max())
    for name, logprobs in wrong.items():
        effect = float((logprobs - expected).abs().max())
        if not difference < _TOLERANCE * effect:
            return f"log-probabilities of the same tokens differ by {difference:.2g} nats, {name} change {effect:.2g}"
    return None


def _logprobs(model: nn.Module, batch: Batch) -> Float[Tensor, "R L"]:
    return token_logprobs(model, batch, 1.0).logprobs


def _mistakes(batch: Batch, device: torch.device | str) -> dict[str, Batch]:
    """The batch as it looks to a model without ears: places in the line for positions, and all earlier tokens seen."""
    assert batch.tree is not None
    num_tokens = batch.num_tokens
    places = torch.arange(num_tokens, device=device)[None]
    causal = plan_attention(np.full(num_tokens, num_tokens), device)
    return {
        "wrong positions": batch._replace(tree=batch.tree._replace(position_ids=places)),
        "wrong masks": batch._replace(tree=batch.tree._replace(tree_plan=causal)),
    }


def _rows(model: nn.Module) -> list[TurnRow]:
    """Three rows: two share a context, the third leaves it in the middle and is longer."""
    inner: Any = model
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
