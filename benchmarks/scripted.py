"""scripted sampler: a context -> a think sentence and a search of words in it, without a model.

In: token ids of contexts. Out: completions that never answer, so that trees grow to the turn limit on real passages.
What is measured on such trees needs their shape and their texts, not a policy that found them.

Source: ours. Words are drawn by the same counters as in a real engine, so trees are functions of the seed.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt64
from transformers import PreTrainedTokenizerBase

from igrpo_theory.randomness import uniforms
from igrpo_train.search.sampling import Completion, Tokens

_THOUGHTS = (
    "The question asks about {0}, and nothing found so far settles it. The passages speak of {1} and {2}, so the next "
    "thing to find out is how {1} is connected with {0}; after that the answer should be in reach.",
    "What is known already is {1}. That does not say who or what {0} is yet. Maybe a page about {2} tells more, "
    "because it was named together with {0} in the last results.",
    "To answer this, two facts are needed: one about {0} and one about {1}. The first is still missing. Looking up "
    "{2} and {0} together is more likely to bring it than another general search.",
)
_WORDS = re.compile(r"[A-Z][\w'-]{3,}(?: [A-Z][\w'-]+)*")


class ScriptedSampler:
    """Implements `igrpo_train.search.sampling.Sampler` with a prefix that is a list of token ids a row.

    Args:
        tokenizer: of the policy that will train on the trees.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def prefill(
        self,
        base: list[tuple[int, ...]] | None,
        rows: Int[np.ndarray, " n"],
        segments: Sequence[Tokens],
        tails: Sequence[Tokens],
    ) -> list[tuple[int, ...]]:
        """Contexts, extended; a script does not read their tails."""
        before = [()] * len(rows) if base is None else [base[row] for row in rows.tolist()]
        return [(*context, *segment) for context, segment in zip(before, segments, strict=True)]

    def take_recomputed(self) -> int:
        """Nothing is computed at all."""
        return 0

    def generate(
        self,
        prefix: list[tuple[int, ...]],
        rows: Int[np.ndarray, " n"],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """A thought and a search, of words that the context holds; the later ones are likelier."""
        completions = []
        for row, key in zip(rows.tolist(), keys, strict=True):
            text = self._tokenizer.decode(prefix[row])
            assert isinstance(text, str)
            words = list(dict.fromkeys(_WORDS.findall(text))) or ["nothing"]
            draws = uniforms(np.full(4, key, dtype=np.uint64), np.arange(4))
            chosen = [words[int(len(words) * draw**0.5)] for draw in draws[:3]]
            thought = _THOUGHTS[int(len(_THOUGHTS) * draws[3])].format(*chosen)
            response = f"<think> {thought} </think>\n<search> {chosen[0]} {chosen[2]} </search>"
            ids = tuple(self._tokenizer(response, add_special_tokens=False)["input_ids"])
            assert len(ids) <= max_tokens, f"agent.max_response_tokens must be at least {len(ids)}"
            completions.append(Completion(ids, (-1.0,) * len(ids), "stop"))
        return completions

    def score(
        self, prefix: list[tuple[int, ...]], rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """The same for every node, likely enough that nobody warns of the preamble: expansions are drawn evenly."""
        return [np.full(len(continuation), -1.0) for continuation in continuations]
