"""build: a world and a seed -> a small policy that has seen demonstrations, as ordinary transformers files.

`python -m igrpo_train.miniature.build --world leak --seed 0 --out DIR` takes a few minutes on one core. The same call
gives the same weights on the same machine and versions.

Source: ours.
"""

import json
import logging
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from igrpo_theory.randomness import text_key
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from igrpo_train.learn.supervised import SupervisedRow, SupervisedSettings, bucket_batches, train_supervised
from igrpo_train.miniature.demonstrations import CLEAN, CLEAN_WITH_GUESSES, NOISY, Noise, demonstrate, encode_row
from igrpo_train.miniature.retriever import FactSearch
from igrpo_train.miniature.tokenizer import MAX_TOKENS, build_tokenizer
from igrpo_train.miniature.world import DEPTH, Route, build_world

logger = logging.getLogger(__name__)
_POOL_ROWS = 600
"""Rows that are sorted by length at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """How a miniature policy is made."""

    world: Literal["leak", "plain"] = "leak"
    """Whether names tell something about the entities above them."""
    seed: int = 0
    """Seeds the weights and the demonstrations."""
    num_worlds: int = 30
    """Worlds that the demonstrations come from; many, so that no fact can be learnt by heart."""
    one_hop_share: float = 0.12
    """First share of the steps: one-hop questions without mistakes."""
    clean_share: float = 0.5
    """Share of the steps after which the mistakes begin."""
    batch_tokens: int = 1280
    """Tokens a batch, padding included."""
    noise: Noise = field(default_factory=Noise)
    """The mistakes."""
    optimiser: SupervisedSettings = field(
        default_factory=lambda: SupervisedSettings(learning_rate=4e-3, steps=3000)
    )
    """How to optimise."""


def build_model(num_words: int, seed: int) -> Qwen2ForCausalLM:
    """A transformer of about 130 thousand parameters with weights drawn from a seed of its own.

    Args:
        num_words: size of the vocabulary.
        seed: of the weights.
    """
    config = Qwen2Config(
        vocab_size=num_words,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Qwen2ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if weights.dim() == 2:
                weights.normal_(std=0.05, generator=generator)
            else:
                weights.fill_(0.0 if name.endswith("bias") else 1.0)
    return model


def demonstration_batches(settings: WarmStart, index: dict[str, int]) -> Iterator[list[SupervisedRow]]:
    """Batches of the curriculum, without end: one hop, several hops, then mistakes.

    Args:
        settings: how the policy is made.
        index: word -> id.
    """
    leak = settings.world == "leak"
    rng = np.random.default_rng([settings.seed, text_key("demonstrations")])
    worlds = [build_world("warm", leak=leak, seed=seed) for seed in range(settings.num_worlds)]
    searches = [FactSearch(world) for world in worlds]
    routes: list[list[list[Route]]] = [[world.routes(hops) for hops in range(1, DEPTH + 1)] for world in worlds]
    steps, done = settings.optimiser.steps, 0
    while True:
        share = done / steps
        noise = NOISY_STAGES[(share >= settings.one_hop_share) + (share >= settings.clean_share)] or settings.noise
        longest = 1 if share < settings.one_hop_share else DEPTH
        rows: list[SupervisedRow] = []
        while len(rows) < _POOL_ROWS:
            world, hops = rng.integers(len(worlds)), rng.integers(longest)
            choices = routes[world][hops]
            episode = demonstrate(searches[world], choices[rng.integers(len(choices))], noise, rng)
            rows += [encode_row(row, index) for row in episode]
        batches = bucket_batches(rows, settings.batch_tokens, rng)
        done += len(batches)
        yield from batches


NOISY_STAGES: tuple[Noise | None, ...] = (CLEAN, CLEAN_WITH_GUESSES, None)
