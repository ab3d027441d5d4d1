"""hub: the published files of Search-R1 -> files in a folder, whole and checked.

In: a network, or a hub cache with them. Out: `data` (questions), `corpus` (21 million passages of Wikipedia, unpacked)
or `index` (their E5 vectors, joined); what is there already is checked and kept.
Source: [searchr1].
"""

import gzip
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from igrpo_train.errors import DiskError, MissingExtra
from igrpo_train.rows import hub_file

logger = logging.getLogger(__name__)

Download = Callable[[str, Path], Path]

_CHUNK: Final = 2**24
_PASSAGES: Final = 21_015_324
_DIMENSIONS: Final = 768


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A file as it is to lie in the folder."""

    name: str
    """Its name there."""
    parts: tuple[str, ...]
    """Hub files that it is made of, `hf://datasets/OWNER/REPO/FILE`."""
    form: Literal["parquet", "gzip", "split"]
    """parquet stays as it is, gzip is unpacked, split is joined."""
    size: int
    """Rows of a parquet file, lines of an unpacked one, bytes of a joined one."""
    slack: int = 0
    """Bytes that a header may add."""
    room: int = 0
    """Bytes that must be free before it is fetched, about."""


PUBLISHED: Final[Mapping[str, Sequence[Published]]] = {
    "data": (
        Published(
            name="train.parquet",
            parts=("hf://datasets/PeterJinGo/nq_hotpotqa_train/train.parquet",),
            form="parquet",
            size=169_615,
        ),
        Published(
            name="test.parquet",
            parts=("hf://datasets/PeterJinGo/nq_hotpotqa_train/test.parquet",),
            form="parquet",
            size=51_713,
        ),
    ),
    "corpus": (
        Published(
            name="wiki-18.jsonl",
            parts=("hf://datasets/PeterJinGo/wiki-18-corpus/wiki-18.jsonl.gz",),
            form="gzip",
            size=_PASSAGES,
            room=22 * 10**9,
        ),
    ),
    "index": (
        Published(
            name="e5_Flat.index",
            parts=(
                "hf://datasets/PeterJinGo/wiki-18-e5-index/part_aa",
                "hf://datasets/PeterJinGo/wiki-18-e5-index/part_ab",
            ),
            form="split",
            size=_PASSAGES * _DIMENSIONS * 4,
            slack=1024,
            room=130 * 10**9,
        ),
    ),
}


def fetch_published(
    what: str,
    folder: Path,
    *,
    table: Mapping[str, Sequence[Published]] = PUBLISHED,
    download: Download = hub_file,
) -> list[Path]:
    """Fetch, unpack, join and check.

    Args:
        what: a key of `table`.
        folder: made when it does not exist.
        table: what there is.
        download: brings a hub file into a folder and returns its path.

    Raises:
        FileNotFoundError: a file cannot be fetched.
        ValueError: a file has another size than the published one, or is damaged.
        DiskError: no room, or no permission to write.
        MissingExtra: pyarrow is needed for `data` and is not installed.
    """
    folder = folder.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_fetch(file, folder, download) for file in table[what]]
    except OSError as error:
        if isinstance(error, FileNotFoundError | DiskError):
            raise
        raise DiskError(
            f"folder must be writable, got {str(folder)!r} ({error.strerror or error}): free space or name another"
        ) from error


def _fetch(file: Published, folder: Path, download: Download) -> Path:
    target = folder / file.name
    if target.is_file():
        return _checked(file, target, _size(file, target))
    free = shutil.disk_usage(folder).free
    if free < file.room:
        raise DiskError(
            f"folder must have about {file.room / 1e9:.0f} GB free for {file.name}, got {free / 1e9:.0f}: name another"
        )
    parts = []
    for part in file.parts:
        logger.warning("fetching %s", part)
        parts.append(download(part, folder))
    if file.form == "parquet":
        return _checked(file, parts[0], _size(file, parts[0]))
    partial = target.with_name(f".{target.name}.partial")
    size = _unpack(parts[0], partial) if file.form == "gzip" else _join(parts, partial)
    _checked(file, partial, size)
    os.replace(partial, target)
    for part_path in parts:
        part_path.unlink()
    return target


def _checked(file: Published, path: Path, size: int) -> Path:
    if not file.size <= size <= file.size + file.slack:
        unit = {"parquet": "rows", "gzip": "lines", "split": "bytes"}[file.form]
        raise ValueError(
            f"{path} must have {file.size:,} {unit}, got {size:,}: remove it and fetch it again, or use it under "
            "another name if a newer one was published"
        )
    return path


def _size(file: Published, path: Path) -> int:
    if file.form == "split":
        return path.stat().st_size
    if file.form == "gzip":
        with path.open("rb") as unpacked:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: unpacked.read(_CHUNK), b""))
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "to check .parquet files", "pip install 'igrpo-train[parquet]'") from error
    try:
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"{path} must be a parquet file, got an error ({error}): remove it and fetch it again"
        ) from error


def _unpack(packed: Path, partial: Path) -> int:
    """Write the unpacked file; returns its lines."""
    lines = 0
    try:
        with gzip.open(packed) as source, partial.open("wb") as sink:
            for chunk in iter(lambda: source.read(_CHUNK), b""):
                lines += chunk.count(b"\n")
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{packed} must be a whole gzip file, got an error ({error}): remove it and fetch it again"
        ) from error
    return lines


def _join(parts: Sequence[Path], partial: Path) -> int:
    """Write the parts one after the other; returns the bytes."""
    with partial.open("wb") as sink:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, sink, _CHUNK)
        sink.flush()
        os.fsync(sink.fileno())
        return sink.tell()
