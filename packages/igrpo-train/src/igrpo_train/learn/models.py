"""models: a policy and its reference as they were loaded -> ready to be trained and read.

Source: ours; [adamw] for the optimiser.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from igrpo_train.config import Loss, Optimiser


def needed_reference(reference: nn.Module | None, config: Loss) -> nn.Module | None:
    """The reference without gradients where there is a KL term, else None.

    Raises:
        ValueError: there is a KL coefficient and no reference.
    """
    if config.kl_coefficient <= 0:
        return None
    if reference is None:
        raise ValueError(
            f"loss.kl_coefficient must be 0 without a reference model, got {config.kl_coefficient}: "
            "load the starting policy a second time, or set loss.kl_coefficient = 0"
        )
    return reference.requires_grad_(False)


def widened(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that are trained, after those in half precision have become float32 in place."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in parameters):
        parameters = [parameter for parameter in model.float().parameters() if parameter.requires_grad]
    return parameters


def adamw(parameters: Sequence[nn.Parameter], config: Optimiser) -> torch.optim.Optimizer:
    """The optimiser; its learning rate is set anew in every step."""
    return torch.optim.AdamW(parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay)


def recompute_layers(model: Any) -> None:
    """Let the layers of a model of transformers be computed again in backward passes."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def train_layers(model: nn.Module) -> None:
    """Put layers that are computed again into training mode, which their checkpointing asks for.

    Nothing below them is: dropout stays off, as it was in sampling.
    """
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


def hidden_size(model: Any) -> int:
    """Width of a causal language model of transformers."""
    return int(model.get_input_embeddings().embedding_dim)
