"""index_files: files of an index -> their contents, or one error that says which file is damaged and what to do."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from igrpo_train.errors import MissingExtra


def load_faiss() -> Any:
    """The faiss module; raises MissingExtra with its pip line."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("faiss", "for dense retrieval", "pip install 'igrpo-train[faiss-cpu]'") from error
    return faiss


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: an existing file.
        remedy: what to do when it is damaged.

    Raises:
        ValueError: it holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(_damaged(path, f"an error ({error})", remedy)) from error
    if not isinstance(value, dict):
        raise ValueError(_damaged(path, f"a {type(value).__name__}", remedy))
    return value


def read_array(path: Path, kind: str, num_axes: int, remedy: str) -> np.ndarray:
    """The array in a .npy file, mapped into memory.

    Args:
        path: of the file.
        kind: its numpy dtype.
        num_axes: its axes.
        remedy: what to do when it is damaged.

    Raises:
        ValueError: it is absent, cut short, or holds something else.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(_damaged(path, f"an error ({_one_line(error)})", remedy)) from error
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(kind) or array.ndim != num_axes:
        raise ValueError(_damaged(path, f"{getattr(array, 'dtype', 'an archive')} of {np.shape(array)}", remedy))
    return array


def read_places(path: Path, corpus: Path, remedy: str) -> np.ndarray:
    """The `row_offsets` of a corpus that were saved; raises ValueError where they are not of a file of its size."""
    places = read_array(path, "int64", 1, remedy)
    size = corpus.stat().st_size
    if len(places) < 2 or int(places[-1]) != size:
        end = int(places[-1]) if len(places) else None
        raise ValueError(_damaged(path, f"{len(places)} places up to {end} for a corpus of {size} bytes", remedy))
    return places


def read_vectors(path: Path, name: str, remedy: str) -> Any:
    """A faiss index, mapped into memory; raises ValueError, which calls it `name`, when faiss cannot read it."""
    faiss = load_faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ValueError(f"{name} must be a faiss index, got an error ({_one_line(error)}): {remedy}") from error


def _damaged(path: Path, found: str, remedy: str) -> str:
    return f"{path} must be as igrpo-train index wrote it, got {found}: {remedy}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
