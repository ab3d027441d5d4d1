"""policy: a model path or hub id -> model and tokenizer.

Paths of the form `miniature:leak` name the checkpoints that ship with the package.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from igrpo_train.config import Model

_SHIPPED = Path(__file__).parent / "miniature" / "checkpoints"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Policy(NamedTuple):
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def context_limit(self) -> int | None:
        """Positions that the model was made for, None when its config does not say."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return None if limit is None else int(limit)

    @property
    def pad_id(self) -> int:
        """Id that fills padded positions; any id serves where the tokenizer has none, since padding is masked."""
        pad = self.tokenizer.pad_token_id
        return 0 if pad is None else int(pad)


def resolve_model(path: str) -> str:
    """Folder or hub id behind `model.path`.

    Raises:
        FileNotFoundError: a path that looks local does not exist.
    """
    if path.startswith("miniature:"):
        shipped = _SHIPPED / path.removeprefix("miniature:")
        if not shipped.is_dir():
            names = ", ".join(sorted(f"miniature:{folder.name}" for folder in _SHIPPED.iterdir() if folder.is_dir()))
            raise FileNotFoundError(f"model.path must be one of {names}, got {path!r}")
        return str(shipped)
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    folder = Path(path).expanduser()
    if folder.exists() and not (folder / "config.json").exists():
        raise FileNotFoundError(
            f"model.path must be a folder with a config.json, got {path!r}: point it at a saved model"
        )
    if looks_local and not folder.exists():
        raise FileNotFoundError(f"model.path must exist, got {path!r}: give a local folder or a hub id OWNER/NAME")
    return str(folder) if folder.exists() else path


def load_policy(config: Model, folder: Path | None = None) -> Policy:
    """Load a model and its tokenizer on the CPU; accelerate moves it.

    Args:
        config: which model, in which number format.
        folder: a checkpoint to load instead of `config.path`; in float32, as the updater wrote it.

    Raises:
        FileNotFoundError: see `resolve_model`.
        ValueError: transformers cannot load what is there, or cannot get it.
    """
    # Our own progress line is the only one.
    transformers_logging.disable_progress_bar()
    source = resolve_model(config.path) if folder is None else str(folder)
    dtype = _DTYPES[config.dtype] if folder is None else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(source)
        # Some classes make an empty tokenizer where the files are missing.
        if not tokenizer("a", add_special_tokens=False)["input_ids"]:
            raise ValueError("its tokenizer knows no letters: tokenizer.json is missing")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ValueError(
            f"model.path must be a causal language model with its tokenizer, got {source!r} ({reason}): give a whole "
            "local folder, or the id of a hub model that is in the cache or reachable"
        ) from error
    return Policy(model, tokenizer)


def find_device(name: str, setting: str = "model.device") -> torch.device:
    """A device by name; `auto` is the accelerator where there is one. Messages call it `setting`.

    Raises:
        ValueError: torch knows no such device, or this machine has none.

    Example:
        >>> find_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        # An empty tensor tells whether the device is there; without CUDA torch fails an assertion of its own.
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"{setting} must be auto or a torch device of this machine, got {name!r}: give cpu or cuda:0"
        ) from error
