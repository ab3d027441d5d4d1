"""scoring: frontier nodes -> answer scores s(h; a) on their cached prefixes.

`s(h; a) = exp(mean log pi(a_i | h, preamble, a_<i))` over the tokens of the gold answer: its geometric-mean token
probability. Source: [igrpo] section 3; the official scorer takes the first alias only, which is the default here.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from igrpo_train.config import Scoring
from igrpo_train.question import Question
from igrpo_train.search.prompting import ForcedAnswer, Prompting
from igrpo_train.search.sampling import Prefix, Sampler, shared_stems

logger = logging.getLogger(__name__)


class Scores(NamedTuple):
    """Answer scores of n nodes and what they cost."""

    score: Float[np.ndarray, " n"]
    """Geometric-mean token probability of the answer, in [0, 1]."""
    preamble_probability: Float[np.ndarray, " n"]
    """Geometric-mean token probability of the scoring preamble; NaN for an empty preamble."""
    tokens: int
    """Forced tokens that were computed, preambles included; what a node's aliases share counts once."""


class AnswerScorer:
    """Scores answers for one policy.

    Args:
        sampler: the engine that holds the prefixes.
        prompting: writes the forced continuations.
        config: preamble, aliases, warning threshold.
    """

    def __init__(self, sampler: Sampler, prompting: Prompting, config: Scoring) -> None:
        self._sampler = sampler
        self._prompting = prompting
        self._config = config
        self._warned = False

    def score(
        self,
        prefix: Prefix,
        rows: Int[np.ndarray, " n"],
        answers: Sequence[Sequence[str]],
    ) -> Scores:
        """Score the gold answers of n nodes.

        Args:
            prefix: handle that holds the nodes' contexts.
            rows: the row of each node in it.
            answers: gold aliases, a node; only the first counts unless `scoring.aliases` says otherwise.
        """
        aliases = [list(golds) if self._config.aliases != "first" else [golds[0]] for golds in answers]
        owner = np.repeat(np.arange(len(rows)), [len(golds) for golds in aliases])
        forced = [self._prompting.forced_answer(alias) for golds in aliases for alias in golds]
        continuations = [answer.token_ids for answer in forced]
        logprobs = self._sampler.score(prefix, np.asarray(rows)[owner], continuations)
        score = np.zeros(len(owner))
        preamble = np.full(len(owner), np.nan)
        for k, (answer, values) in enumerate(zip(forced, logprobs, strict=True)):
            score[k], preamble[k] = _means(answer, values)
        first = np.searchsorted(owner, np.arange(len(rows)))
        reduce = np.maximum if self._config.aliases == "max" else np.add
        reduced = reduce.reduceat(score, first)
        if self._config.aliases == "mean":
            reduced = reduced / [len(golds) for golds in aliases]
        shared = map(len, shared_stems(owner, continuations))
        repeats = sum(stem * (len(golds) - 1) for stem, golds in zip(shared, aliases, strict=True))
        return Scores(reduced, preamble[first], sum(map(len, continuations)) - repeats)

    def forced_tokens(self, questions: Sequence[Question]) -> Int[np.ndarray, " Q"]:
        """Tokens of the preamble with the first answer of each question."""
        forced = [self._prompting.forced_answer(question.answers[0]) for question in questions]
        return np.array([len(answer.token_ids) for answer in forced], dtype=np.int64)

    def check_preamble(self, probability: float) -> None:
        """Warn, once, when the policy hardly ever writes the preamble; a NaN probability says nothing.

        Args:
            probability: mean over the scored nodes of a batch of questions.
        """
        if self._warned or not probability < self._config.warn_below:
            return
        self._warned = True
        logger.warning(
            "the policy finds scoring.preamble %r very unlikely (geometric-mean token probability %.1e, below "
            "scoring.warn_below = %.1e): answer scores behind an unseen preamble carry no signal; choose one that "
            "the policy writes itself",
            self._config.preamble,
            probability,
            self._config.warn_below,
        )


def _means(answer: ForcedAnswer, logprobs: Float[np.ndarray, " L"]) -> tuple[float, float]:
    before = logprobs[~answer.gold]
    return float(np.exp(logprobs[answer.gold].mean())), float(np.exp(before.mean())) if len(before) else np.nan
