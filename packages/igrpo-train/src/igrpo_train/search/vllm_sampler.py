"""vllm sampler: a colocated vLLM engine behind the `Sampler` protocol.

A prefix handle is the token ids of each row; keys and values are in the engine's prefix cache, in whole blocks.
Contexts are computed without their last id, so that the cache does not hold the row that predicts a continuation.

Answer scores come from one pass over the continuation on top of the cached prefix. Where the cache reaches into the
continuation (another request wrote the same ids), its first rows are not computed, and the continuation is decoded
by force instead. docs/engines.md says what is exact, and what was not run.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int, UInt64
from transformers import PreTrainedModel

from igrpo_train.config import Agent, Model, Sampling
from igrpo_train.policy import Policy
from igrpo_train.search.ending import Ending, eos_ids
from igrpo_train.search.sampling import Completion, Tokens
from igrpo_train.search.vllm_engine import Engine
from igrpo_train.search.vllm_requests import (
    engine_arguments,
    engine_limit,
    generation_parameters,
    prefill_parameters,
    seeds,
    tail_parameters,
)

Contexts: TypeAlias = tuple[tuple[int, ...], ...]


class VllmSampler:
    """Samples and scores with a vLLM engine in this process.

    Args:
        policy: the engine is built from its config and tokenizer, and starts with its weights.
        model: number format.
        sampling: memory and block size.
        agent: limits of prompts and responses.

    Raises:
        MissingExtra: vllm is not installed.
        ValueError: the key-value cache cannot hold one row, or vLLM cannot run the model.
    """

    def __init__(self, policy: Policy, model: Model, sampling: Sampling, agent: Agent) -> None:
        self.limit = engine_limit(agent, policy.context_limit)
        on_cpu = policy.model.device.type == "cpu"
        self.engine = Engine(policy, engine_arguments(sampling, model, self.limit, on_cpu=on_cpu))
        self._eos_ids = eos_ids(policy.model, policy.tokenizer)
        self._ending = Ending(policy.tokenizer, range(len(policy.tokenizer)), self._eos_ids)
        self.num_scored = 0
        """Continuations scored so far."""
        self.num_forced = 0
        """Of these, how many were decoded by force, because the cache reached into them."""

    def prefill(self, base: Contexts | None, rows: Int[np.ndarray, " n"], segments: Sequence[Tokens]) -> Contexts:
        """See `Sampler.prefill`; the handle is the ids of each row."""
        stems: Sequence[tuple[int, ...]] = [()] * len(rows) if base is None else [base[row] for row in rows.tolist()]
        contexts = tuple((*stem, *segment) for stem, segment in zip(stems, segments, strict=True))
        self._check_lengths([len(context) + 1 for context in contexts])
        # Without the last id: what it predicts is asked for later, and must not come out of the cache.
        prompts = list(dict.fromkeys(context[:-1] for context in contexts if len(context) > 1))
        self.engine.run(prompts, [prefill_parameters()] * len(prompts))
        return contexts

    def generate(
        self,
        prefix: Contexts,
        rows: Int[np.ndarray, " n"],
        tails: Sequence[Tokens],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """See `Sampler.generate`; draw k uses the generator that is seeded with the hash of `keys[k]`."""
        prompts = [(*prefix[row], *tail) for row, tail in zip(rows.tolist(), tails, strict=True)]
        self._check_lengths([len(prompt) + max_tokens for prompt in prompts])
        parameters = [
            generation_parameters(seed, temperature=temperature, max_tokens=max_tokens, eos_ids=self._eos_ids)
            for seed in seeds(keys)
        ]
        return [self._completion(output.outputs[0]) for output in self.engine.run(prompts, parameters)]

    def score(
        self, prefix: Contexts, rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """See `Sampler.score`; equal continuations of equal contexts are computed once."""
        asked = [(prefix[row], tuple(ids)) for row, ids in zip(rows.tolist(), continuations, strict=True)]
        pairs = list(dict.fromkeys(asked))
        self._check_lengths([len(context) + len(ids) for context, ids in pairs])
        values = self._score_tails(pairs)
        missing = [pair for pair in pairs if values.get(pair) is None]
        forced = self.engine.force([context for context, _ in missing], [ids for _, ids in missing])
        values |= zip(missing, forced, strict=True)
        self.num_scored += len(pairs)
        self.num_forced += len(missing)
        return [np.array(values[pair], dtype=np.float64) for pair in asked]

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

    def _score_tails(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> dict[tuple[Tokens, Tokens], list[float] | None]:
        """One pass over each continuation; None where the cache reached into it, nothing where it fills the limit."""
        on_cpu = self.engine.on_cpu
        # The engine insists on sampling one token behind the prompt.
        fitting = [(context, ids) for context, ids in pairs if len(context) + len(ids) < self.limit]
        parameters = [tail_parameters(*pair, on_cpu=on_cpu) for pair in fitting]
        outputs = self.engine.run([(*context, *ids) for context, ids in fitting], parameters)
        read = tail_rows if on_cpu else _built_in_rows
        return {pair: read(output, *pair) for output, pair in zip(outputs, fitting, strict=True)}

    def _check_lengths(self, lengths: Sequence[int]) -> None:
        longest = max(lengths, default=0)
        if longest > self.limit:
            raise ValueError(
                f"a context with what follows it must fit the engine's {self.limit} positions, got {longest}: raise "
                "agent.max_prompt_tokens or agent.max_response_tokens, which set this limit as far as the model goes, "
                "or shorten scoring.preamble"
            )


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
