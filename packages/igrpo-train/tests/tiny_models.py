"""Tiny random policies of both families, for tests of losses, updates and checkpoints."""

from typing import Any, Literal

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

Family = Literal["qwen2", "llama"]
VOCABULARY = 23
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}


def tiny_model(
    family: Family = "qwen2", dtype: torch.dtype = torch.float64, seed: int = 1, **config: Any
) -> PreTrainedModel:
    """Qwen2 with tied, or Llama with untied, output weights; in evaluation mode."""
    sizes = {**SIZES, **config}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel
        if family == "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
        else:
            model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    return (in_double(model) if dtype == torch.float64 else model).train(False)


def in_double(model: PreTrainedModel) -> PreTrainedModel:
    """The model with norms that do not round to float32 on the way, as those of transformers do."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(len(child.weight), eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    return model.double()
