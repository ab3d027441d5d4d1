"""ending: sampled ids -> whether the response is over, and why; one rule for every engine.

Example:
    >>> from types import SimpleNamespace
    >>> pieces = ["so ", "</answer", ">.", "<end>"]
    >>> tokenizer = SimpleNamespace(
    ...     batch_decode=lambda rows: ["".join(pieces[i] for i in row) for row in rows],
    ...     decode=lambda row: "".join(pieces[i] for i in row),
    ... )
    >>> ending = Ending(tokenizer, range(4), eos_ids=[3])
    >>> ending.of([0, 1]), ending.of([0, 1, 2]), ending.of([0, 3])
    ('', 'stop', 'eos')
    >>> ending.first([0, 1, 2, 0, 0])
    End(length=3, finish='stop')
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from igrpo_train.search.agent import STOP_STRINGS

_WINDOW = 16
"""Ids decoded to look for a closing tag; a tag is never longer."""


class End(NamedTuple):
    """Where a response ends."""

    length: int
    """Ids of the response, the last one included."""
    finish: str
    """`stop`, `eos` or `length`."""


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end a response, as tokenizer and generation config name them."""
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = {tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])}
    return frozenset(int(token) for token in ids if token is not None)


class Ending:
    """Ends a response at an end-of-sequence id, or with the id that completes a closing tag.

    The id that completes a tag may carry characters behind it: ids are kept whole, and what is trained is what was
    sampled.

    Args:
        tokenizer: decodes ids.
        vocabulary: all of its ids.
        eos_ids: ids that end a response.
    """

    def __init__(self, tokenizer: Any, vocabulary: Iterable[int], eos_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = frozenset(eos_ids)
        texts = tokenizer.batch_decode([[token] for token in vocabulary])
        self._may_close = np.array([">" in text for text in texts], dtype=bool)

    def of(self, token_ids: Sequence[int]) -> str:
        """`eos` or `stop` when the last of these ids ends the response, else empty."""
        last = token_ids[-1]
        if last in self._eos_ids:
            return "eos"
        if last < len(self._may_close) and not self._may_close[last]:
            return ""
        text = self._tokenizer.decode(token_ids[-_WINDOW:])
        assert isinstance(text, str)
        return "stop" if any(stop in text.lower() for stop in STOP_STRINGS) else ""

    def first(self, token_ids: Sequence[int]) -> End:
        """The first end among these ids; all of them and `length` when there is none."""
        for length in range(1, len(token_ids) + 1):
            finish = self.of(token_ids[max(0, length - _WINDOW) : length])
            if finish:
                return End(length, finish)
        return End(len(token_ids), "length")
