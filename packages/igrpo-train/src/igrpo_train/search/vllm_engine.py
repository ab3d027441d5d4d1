"""vllm engine: prompts and parameters -> outputs of a vLLM engine in this process.

The only module that imports vllm. Weights are handed over in memory; the engine never reads a checkpoint.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from igrpo_train.errors import MissingExtra
from igrpo_train.policy import Policy
from igrpo_train.search.deadline import deadline
from igrpo_train.search.sampling import Tokens
from igrpo_train.weights import whole_weights

# Read by vLLM when it is imported: the engine lives in this process, speaks up only when something fails, and reports
# to nobody.
_ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


# What vLLM and torch say when more was asked for than there is, in small letters.
_TOO_MUCH: Final = ("less than desired", "can't allocate", "out of memory", "not enough gpu memory")


class Engine:
    """A colocated vLLM engine with the policy's weights.

    Args:
        policy: the engine is built from its config and tokenizer.
        arguments: keyword arguments of `vllm.LLM`, see `vllm_requests.engine_arguments`.
        timeout_s: longest time of one `run`, in seconds; 0 is no limit.

    Raises:
        MissingExtra: vllm is not installed.
        ValueError: the key-value cache cannot hold one row, or vLLM cannot run the model.
    """

    def __init__(self, policy: Policy, arguments: Mapping[str, Any], *, timeout_s: float = 0.0) -> None:
        vllm = _import_vllm()
        self._timeout_s = timeout_s
        self.on_cpu = policy.model.device.type == "cpu"
        self._parameters = vllm.SamplingParams
        self._records: dict[int, list[float]] = {}
        own: dict[str, Any] = {}
        if self.on_cpu:
            own["logits_processors"] = [_forced_decoding(self._records)]
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # Processes were numbered by a launcher: an engine takes its number instead of joining the others.
            own["distributed_executor_backend"] = "external_launcher"
        self._llm = _start(vllm, policy, {**arguments, **own})
        self.load(policy.model)

    def run(self, prompts: Sequence[Tokens], parameters: Sequence[Mapping[str, Any]]) -> list[Any]:
        """One `vllm.RequestOutput` a prompt; parameters are keyword arguments of `vllm.SamplingParams`.

        Raises:
            EngineError: it takes longer than `timeout_s`; the engine is of no use after that.
        """
        if not prompts:
            return []
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        chosen = [self._parameters(**given) for given in parameters]
        with deadline(self._timeout_s, "sampling.timeout_s"):
            outputs: list[Any] = self._llm.generate(inputs, chosen, use_tqdm=False)
        return outputs

    def force(self, prompts: Sequence[Tokens], continuations: Sequence[Tokens]) -> list[list[float]]:
        """Log-probability (nats, temperature 1) of every id of a continuation that is decoded by force."""
        common = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
        if self.on_cpu:
            self._records.clear()
            asked = [
                common | {"max_tokens": len(ids), "extra_args": {"force": list(ids), "slot": slot}}
                for slot, ids in enumerate(continuations)
            ]
            self.run(prompts, asked)
            return [self._records[slot] for slot in range(len(continuations))]
        asked = [
            common | {"max_tokens": len(ids), "logprobs": 0, "trace_decode_token_ids": list(ids)}
            for ids in continuations
        ]
        written = [output.outputs[0] for output in self.run(prompts, asked)]
        return [
            [output.logprobs[k][token].logprob for k, token in enumerate(ids)]
            for output, ids in zip(written, continuations, strict=True)
        ]

    def load(self, model: PreTrainedModel) -> None:
        """Take over the weights of `model`, and forget what was computed with others."""
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": named_weights(model)})
        if self.on_cpu:
            self._llm.apply_model(repack_heads)
        self.forget()

    def forget(self) -> None:
        """Empty the prefix cache: keys and values of old weights would go on serving their prefixes."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache: a request is still running")

    def sleep(self) -> None:
        """Free the device's memory; the CPU engine cannot."""
        if not self.on_cpu:
            # Level 2 drops the weights too: new ones come.
            self._llm.sleep(level=2)

    def wake(self, model: PreTrainedModel) -> None:
        """Take the memory back, weights first so that both copies need not fit beside the cache; then `load`."""
        if not self.on_cpu:
            self._llm.wake_up(tags=["weights"])
        self.load(model)
        if not self.on_cpu:
            self._llm.wake_up(tags=["kv_cache"])


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Weights by their names in a checkpoint; an output layer that is tied to the embedding comes with it.

    Args:
        model: the policy; where it is sharded over processes, all of them hand their engines these weights together.
    """
    tied = bool(model.config.tie_word_embeddings)
    return ((name, weight) for name, weight in whole_weights(model) if not (tied and name == "lm_head.weight"))


def _import_vllm() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        command = "pip install 'igrpo-train[vllm]' (on CPUs: make setup-vllm)"
        raise MissingExtra("vllm", "for sampling.engine = 'vllm'", command) from error
    return vllm


def _start(vllm: Any, policy: Policy, arguments: Mapping[str, Any]) -> Any:
    """An engine of the policy's config and tokenizer, with weights that are yet to come."""
    # vLLM's CPU worker replaces this function by one that does nothing, for everybody.
    set_num_threads = torch.set_num_threads
    # FSDP makes a class of its own.
    name = type(policy.model).__name__.removeprefix("FSDP")
    try:
        with tempfile.TemporaryDirectory() as folder:
            settings = policy.model.config.to_dict() | {"architectures": [name]}
            type(policy.model.config).from_dict(settings).save_pretrained(folder)
            policy.tokenizer.save_pretrained(folder)
            llm = vllm.LLM(model=folder, **arguments)
        # The first pass finds out what the device's kernels do not support.
        llm.generate([{"prompt_token_ids": [0]}], vllm.SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
        return llm
    except (ValueError, RuntimeError) as error:
        raise ValueError(start_error(str(error), name, arguments["max_model_len"])) from error
    finally:
        torch.set_num_threads = set_num_threads


def start_error(reason: str, model: str, limit: int) -> str:
    """What to tell a person when vLLM does not start.

    Args:
        reason: vLLM's message.
        model: class of the model.
        limit: positions of one row.

    Example:
        >>> start_error("head_dim=8", "LlamaForCausalLM", 512)
        "sampling.engine = 'vllm' must be able to run LlamaForCausalLM, got 'head_dim=8': use 'transformers'"
    """
    short = " ".join(reason.split())[:400]
    if any(words in reason.lower() for words in _TOO_MUCH):
        return (
            f"sampling.cache_gib and sampling.memory_share must fit into the device's free memory, got {short!r}: "
            "lower them, or end what else runs there"
        )
    if "kv cache" in reason.lower() or "memory" in reason.lower():
        return (
            f"sampling.cache_gib or sampling.memory_share must leave a key-value cache for one row of {limit} tokens, "
            f"got {short!r}: raise it, or lower agent.max_prompt_tokens or agent.max_response_tokens"
        )
    return f"sampling.engine = 'vllm' must be able to run {model}, got {short!r}: use 'transformers'"


def repack_heads(model: torch.nn.Module) -> None:
    """Pack tied output layers anew: on CPUs they compute with a packed copy, which a reload leaves behind."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and "cpu_linear" in vars(module):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _forced_decoding(records: dict[int, list[float]]) -> type:
    """A logits processor that makes a request write given ids, and records what the untouched logits gave them.

    The engine reports log-probabilities after all processors, where a forced id has probability one.

    Args:
        records: receives log-probabilities by the request's `slot`; engine and sampler share this process.
    """
    from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

    class ForcedDecoding(LogitsProcessor):  # type: ignore[misc]  # vllm is not there when types are checked
        def __init__(self, *_: Any) -> None:
            self.requests: dict[int, tuple[dict[str, Any], list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            if batch_update is None:
                return
            for row in batch_update.removed:
                self.requests.pop(row, None)
            for row, parameters, _, written in batch_update.added:
                self.requests.pop(row, None)
                if parameters.extra_args and "force" in parameters.extra_args:
                    self.requests[row] = (parameters.extra_args, written)
            for source, target, direction in batch_update.moved:
                moved, replaced = self.requests.pop(source, None), self.requests.pop(target, None)
                if moved is not None:
                    self.requests[target] = moved
                if replaced is not None and direction is MoveDirectionality.SWAP:
                    self.requests[source] = replaced

        def apply(self, logits: Tensor) -> Tensor:
            for row, (arguments, written) in self.requests.items():
                if len(written) < len(arguments["force"]):
                    token = arguments["force"][len(written)]
                    logprob = float(torch.log_softmax(logits[row].float(), dim=-1)[token])
                    # A request that was put back is computed again: its record ends where its text does.
                    kept = records.setdefault(arguments["slot"], [])[: len(written)]
                    records[arguments["slot"]] = [*kept, logprob]
                    logits[row] = -torch.inf
                    logits[row, token] = 0.0
            return logits

    return ForcedDecoding
