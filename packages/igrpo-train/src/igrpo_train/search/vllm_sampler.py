"""vllm sampler: a colocated vLLM engine behind the `Sampler` protocol.

A prefix handle is the token ids of each row, and how many of them are its tail; keys and values are in the engine's
prefix cache, in whole blocks. Contexts are computed without their last id, so that the cache does not hold the row that
predicts a continuation.

Answer scores come from one pass over the continuation on top of the cached prefix. Where the cache reaches into the
continuation (another request wrote the same ids), its first rows are not computed, and the continuation is decoded
by force instead. docs/engines.md says what is exact, and what was not run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int, UInt64
from transformers import PreTrainedModel

from igrpo_train.config import Agent, Model, Sampling
from igrpo_train.policy import Policy
from igrpo_train.search.ending import Ending, eos_ids
from igrpo_train.search.memory import check_cache_gib
from igrpo_train.search.sampling import Completion, Tokens, shared_stems
from igrpo_train.search.vllm_engine import Engine
from igrpo_train.search.vllm_requests import (
    engine_arguments,
    engine_limit,
    generation_parameters,
    prefill_parameters,
    seeds,
    tail_parameters,
)

_Pair: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""A context and its continuation."""


class Contexts(NamedTuple):
    """A handle: R contexts."""

    ids: tuple[tuple[int, ...], ...]
    """Token ids of every row, tail included."""
    tail_lengths: tuple[int, ...]
    """How many of its ids are a row's tail."""

    def stem(self, row: int) -> tuple[int, ...]:
        """A row's ids without its tail."""
        return self.ids[row][: len(self.ids[row]) - self.tail_lengths[row]]


class VllmSampler:
    """Samples and scores with a vLLM engine in this process.

    Args:
        policy: the engine is built from its config and tokenizer, and starts with its weights.
        model: number format.
        sampling: memory and block size.
        agent: limits of prompts and responses.

    Raises:
        MissingExtra: vllm is not installed.
        ValueError: the key-value cache cannot hold one row or be had, or vLLM cannot run the model.
    """

    def __init__(self, policy: Policy, model: Model, sampling: Sampling, agent: Agent) -> None:
        self.limit = engine_limit(agent, policy.context_limit)
        on_cpu = policy.model.device.type == "cpu"
        check_cache_gib(sampling.cache_gib, policy.model.device)
        arguments = engine_arguments(sampling, model, self.limit, on_cpu=on_cpu)
        self.engine = Engine(policy, arguments, timeout_s=sampling.timeout_s)
        self._eos_ids = eos_ids(policy.model, policy.tokenizer)
        self._ending = Ending(policy.tokenizer, range(len(policy.tokenizer)), self._eos_ids)
        self._block = sampling.block_tokens
        self._recomputed = 0
        self.num_scored = 0
        """Scores asked for so far: of continuations, and of what several of a context begin with."""
        self.num_forced = 0
        """Of these, how many were decoded by force, because the cache reached into them."""

    def take_recomputed(self) -> int:
        """See `Sampler.take_recomputed`; counted in whole blocks that a request did not find in the cache."""
        taken, self._recomputed = self._recomputed, 0
        return taken

    def prefill(
        self, base: Contexts | None, rows: Int[np.ndarray, " n"], segments: Sequence[Tokens], tails: Sequence[Tokens]
    ) -> Contexts:
        """See `Sampler.prefill`; the handle is the ids of each row."""
        stems: Sequence[tuple[int, ...]] = [()] * len(rows)
        if base is not None:
            stems = [base.stem(row) for row in rows.tolist()]
        ids = tuple((*stem, *new, *tail) for stem, new, tail in zip(stems, segments, tails, strict=True))
        self._check_lengths([len(context) + 1 for context in ids])
        # Without the last id: what it predicts is asked for later, and must not come out of the cache.
        prompts = {
            row[:-1]: _num_computed(base, at) for row, at in zip(ids, rows.tolist(), strict=True) if len(row) > 1
        }
        self._run(list(prompts), [prefill_parameters()] * len(prompts), list(prompts.values()))
        return Contexts(ids, tuple(map(len, tails)))

    def generate(
        self,
        prefix: Contexts,
        rows: Int[np.ndarray, " n"],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """See `Sampler.generate`; draw k uses the generator that is seeded with the hash of `keys[k]`."""
        prompts = [prefix.ids[row] for row in rows.tolist()]
        self._check_lengths([len(prompt) + max_tokens for prompt in prompts])
        parameters = [
            generation_parameters(seed, temperature=temperature, max_tokens=max_tokens, eos_ids=self._eos_ids)
            for seed in seeds(keys)
        ]
        outputs = self._run(prompts, parameters, [len(prompt) - 1 for prompt in prompts])
        return [self._completion(output.outputs[0]) for output in outputs]

    def score(
        self, prefix: Contexts, rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """See `Sampler.score`; equal continuations of equal contexts are computed once."""
        asked = [(prefix.ids[row], tuple(ids)) for row, ids in zip(rows.tolist(), continuations, strict=True)]
        pairs = list(dict.fromkeys(asked))
        self._check_lengths([len(context) + len(ids) for context, ids in pairs])
        places = {context: k for k, context in enumerate(dict.fromkeys(context for context, _ in pairs))}
        owner = np.array([places[context] for context, _ in pairs], dtype=np.int64)
        stems = dict(zip(places, map(tuple, shared_stems(owner, [ids for _, ids in pairs])), strict=True))
        begun = dict(zip(places, self._score(list(stems.items())), strict=True))
        # A stem is context to what differs behind it.
        rests = [((*context, *stems[context]), ids[len(stems[context]) :]) for context, ids in pairs]
        rest = dict(zip(pairs, self._score(rests), strict=True))
        return [np.array(begun[pair[0]] + rest[pair], dtype=np.float64) for pair in asked]

    def sleep(self) -> None:
        """See `ColocatedEngine.sleep`."""
        self.engine.sleep()

    def wake(self, model: PreTrainedModel) -> None:
        """See `ColocatedEngine.wake`."""
        self.engine.wake(model)

    def _completion(self, output: Any) -> Completion:
        token_ids = tuple(output.token_ids)
        end = self._ending.first(token_ids)
        # What vLLM read as a tag ends the response, also where more ids than our window spell it.
        finish = "stop" if end.finish == "length" and output.finish_reason == "stop" else end.finish
        logprobs = [output.logprobs[k][token].logprob for k, token in enumerate(token_ids[: end.length])]
        return Completion(token_ids[: end.length], tuple(logprobs), finish)

    def _run(
        self, prompts: Sequence[Tokens], parameters: Sequence[Mapping[str, Any]], computed: Sequence[int]
    ) -> list[Any]:
        """Outputs of the engine; what the cache has lost of the first `computed` ids of a prompt is counted."""
        outputs = self.engine.run(prompts, parameters)
        for output, prompt, length in zip(outputs, prompts, computed, strict=True):
            # The cache serves whole blocks, and never the last id of a prompt.
            kept = min(length, len(prompt) - 1) // self._block * self._block
            self._recomputed += max(0, kept - output.num_cached_tokens)
        return outputs

    def _score(self, pairs: Sequence[_Pair]) -> list[list[float]]:
        """Log-probabilities of the second of each pair behind the first; nothing is asked for an empty one."""
        asked = [pair for pair in pairs if pair[1]]
        values = self._score_tails(asked)
        missing = [pair for pair in asked if pair not in values]
        forced = self.engine.force([context for context, _ in missing], [ids for _, ids in missing])
        values |= zip(missing, forced, strict=True)
        self.num_scored += len(asked)
        self.num_forced += len(missing)
        return [values[pair] if pair[1] else [] for pair in pairs]

    def _score_tails(self, pairs: Sequence[_Pair]) -> dict[_Pair, list[float]]:
        """One pass over each continuation, without those that the cache reached into or that fill the limit."""
        on_cpu = self.engine.on_cpu
        # The engine insists on sampling one token behind the prompt.
        fitting = [(context, ids) for context, ids in pairs if len(context) + len(ids) < self.limit]
        parameters = [tail_parameters(*pair, on_cpu=on_cpu) for pair in fitting]
        prompts = [(*context, *ids) for context, ids in fitting]
        outputs = self._run(prompts, parameters, [len(context) - 1 for context, _ in fitting])
        read = tail_rows if on_cpu else _built_in_rows
        rows = {pair: read(output, *pair) for output, pair in zip(outputs, fitting, strict=True)}
        return {pair: values for pair, values in rows.items() if values is not None}

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        longest = max(lengths, default=0)
        if longest > self.limit:
            raise ValueError(
                f"a context with what follows it must fit the engine's {self.limit} positions, got {longest}: raise "
                "agent.max_prompt_tokens or agent.max_response_tokens, which set this limit as far as the model goes, "
                "or shorten scoring.preamble"
            )


def _num_computed(base: Contexts | None, row: int) -> int:
    """Ids of an extension of a row that were computed with it: the row's own, without tail and last id."""
    return 0 if base is None else min(len(base.stem(row)), len(base.ids[row]) - 1)


def tail_rows(output: Any, context: Tokens, continuation: Tokens) -> list[float] | None:
    """Log-probabilities of a continuation at the end of a prompt, None where rows of it were not computed.

    Args:
        output: a `vllm.RequestOutput` with the prompt's log-probabilities; rows below its cached ones are garbage.
        context: ids before the continuation, at least one.
        continuation: the last ids of the prompt.
    """
    # The continuation's first id is predicted by the context's last row.
    if output.num_cached_tokens > len(context) - 1:
        return None
    rows = output.prompt_logprobs
    return [rows[len(context) + k][token].logprob for k, token in enumerate(continuation)]


def _built_in_rows(output: Any, context: Tokens, continuation: Tokens) -> list[float] | None:
    """As `tail_rows`, for a model runner that returns exactly these rows or nothing."""
    table = output.prompt_token_id_logprobs
    return None if table is None else table[:, 0].tolist()
