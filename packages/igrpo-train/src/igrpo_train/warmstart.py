"""warmstart: a recipe and questions with gold passages -> a policy that keeps to the search protocol.

A small model does not find the protocol by chance, and a reward that is always 0 teaches nothing. A short supervised
start on demonstrations (see `demonstrations`) gets it to searches and answers; what it finds out from there is up to
the run.

In: the recipe's model, data and protocol. Out: a folder for `model.path`, with `warmstart.json` beside the weights.
Source: ours.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from igrpo_theory.randomness import text_key
from igrpo_train.checks import check_fields, count, natural, positive
from igrpo_train.config import Recipe
from igrpo_train.data import batch_indices, load_questions, load_retriever
from igrpo_train.demonstrations import Demonstrations, Manner, demonstrate
from igrpo_train.folders import new_folder
from igrpo_train.learn.supervised import SupervisedRow, SupervisedSettings, bucket_batches, train_supervised
from igrpo_train.policy import find_device, load_policy
from igrpo_train.question import Question
from igrpo_train.recipes import to_dict
from igrpo_train.search.prompting import Prompting
from igrpo_train.setup import set_threads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStart:
    """How long the supervised start is, and what it shows."""

    steps: int = 120
    """Optimiser steps."""
    learning_rate: float = 1e-4
    """Peak learning rate."""
    warmup_steps: int = 5
    """Steps in which the learning rate rises."""
    tokens_per_batch: int = 1024
    """Tokens of one step, padding included."""
    questions: int = 1000
    """Most questions to demonstrate, taken from those that training comes to last; 0 takes all."""
    manner: Manner = field(default_factory=Manner)
    """What demonstrations look like."""

    def __post_init__(self) -> None:
        check_fields("warm.", self, "steps tokens_per_batch", count, "at least 1")
        check_fields("warm.", self, "warmup_steps questions", natural, "at least 0")
        check_fields("warm.", self, "learning_rate", positive, "finite and above 0")


def warm_start(
    recipe: Recipe,
    out: Path,
    settings: WarmStart,
    on_step: Callable[[int, Mapping[str, float]], None] | None = None,
) -> Path:
    """Train the recipe's model on demonstrations of its training questions.

    Args:
        recipe: model, data, protocol and seed; training settings are not used.
        out: new folder; it appears when everything is in it.
        settings: how long, and what is shown.
        on_step: told the number of steps done and figures to show.

    Returns:
        `out`, which `AutoModelForCausalLM.from_pretrained` and `model.path` load.

    Raises:
        ValueError: no question can be demonstrated, or recipe, data and model do not fit together.
        FileNotFoundError: data or model do not exist.
        FileExistsError: `out` holds something.
    """
    start = time.perf_counter()
    set_threads(recipe)
    with new_folder(out) as folder:
        questions = _chosen(load_questions(recipe.data.train, recipe.data.hops), settings.questions, recipe.seed)
        retriever = load_retriever(recipe.data.corpus, recipe.retrieval, top_k=recipe.agent.top_k)
        policy = load_policy(recipe.model)
        prompting = Prompting(policy.tokenizer, recipe.agent, recipe.scoring, policy.context_limit)
        shown = demonstrate(questions, prompting, retriever, settings.manner, recipe.seed)
        policy.model.to(find_device(recipe.model.device))  # type: ignore[arg-type]  # transformers narrows nn.Module.to
        logger.info("%d questions in %d rows; skipped: %s", shown.used, len(shown.rows), shown.skipped or "none")
        losses = train_supervised(
            policy.model,
            _batches(shown.rows, settings.tokens_per_batch, recipe.seed),
            SupervisedSettings(
                learning_rate=settings.learning_rate, steps=settings.steps, warmup_steps=settings.warmup_steps
            ),
            policy.pad_id,
            on_step=None if on_step is None else lambda step, loss: on_step(step, {"loss": loss}),
        )
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        record = _record(recipe, settings, shown, losses) | {"seconds": round(time.perf_counter() - start, 1)}
        (folder / "warmstart.json").write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
    return out


def _chosen(questions: Sequence[Question], most: int, seed: int) -> list[Question]:
    """The end of training's own first pass: what is learnt by heart here should not be what training starts on."""
    order = batch_indices(len(questions), len(questions), seed=seed, step=0)
    return [questions[i] for i in np.sort(order[-most:])]


def _batches(rows: Sequence[SupervisedRow], tokens: int, seed: int) -> Iterator[list[SupervisedRow]]:
    """Batches without end, each pass in a new order."""
    rng = np.random.default_rng([seed, text_key("warm start")])
    while True:
        yield from bucket_batches(rows, tokens, rng)


def _record(recipe: Recipe, settings: WarmStart, shown: Demonstrations, losses: Sequence[float]) -> dict[str, object]:
    return {
        "settings": asdict(settings),
        "questions": shown.used,
        "skipped": shown.skipped,
        "rows": len(shown.rows),
        "tokens": sum(row.num_tokens for row in shown.rows),
        "losses": [round(loss, 4) for loss in losses],
        "recipe": to_dict(recipe),
    }
