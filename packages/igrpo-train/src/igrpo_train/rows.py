"""rows: a file name -> its rows, numbered from 1.

In: a path to .jsonl, .jsonl.gz or .parquet, or `hf://datasets/OWNER/REPO/FILE`, fetched once into the hub's cache.
Out: (number, row) pairs, read one by one, so that a corpus of many gigabytes needs no second copy in memory.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from igrpo_train.errors import MissingExtra

_HUB = "hf://"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PARQUET_ROWS: Final = 1024
"""Rows that are Python objects at once."""
_HUB_FILE = re.compile(r"hf://datasets/(?P<repo>[^/]+/[^/]+)/(?P<file>.+)")


def numbered_rows(spec: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a file; blank lines are skipped but counted, so that numbers match an editor's.

    Raises:
        FileNotFoundError: there is no such file, or a hub file can neither be found nor fetched.
        ValueError: the file is of another kind, or a row is no JSON object.
    """
    path = local_path(spec)
    if path.name.endswith(".parquet"):
        return _parquet_rows(path, spec)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return _json_rows(path, spec)
    raise ValueError(f"data file must end in .jsonl, .jsonl.gz or .parquet, got {spec!r}: convert it")


def local_path(spec: str) -> Path:
    """The file on this machine that a specification names; a hub file is fetched when it is not in the cache."""
    path = hub_file(spec) if spec.startswith(_HUB) else Path(spec).expanduser()
    if not path.is_file():
        what = "a folder" if path.is_dir() else "nothing there"
        raise FileNotFoundError(f"data file must exist, got {spec!r} ({what}): check the path and the current folder")
    return path


def cached_file(spec: str) -> str | None:
    """The specification of what is on this machine: itself, or the hub cache's file; None where there is none yet.

    Raises:
        ValueError: a hub file is not written hf://datasets/OWNER/REPO/FILE.
    """
    if not spec.startswith(_HUB):
        return spec
    from huggingface_hub import try_to_load_from_cache

    repo, file = _hub_names(spec)
    found = try_to_load_from_cache(repo, file, repo_type="dataset")
    return found if isinstance(found, str) else None


def hub_file(spec: str, folder: Path | None = None) -> Path:
    """Fetch a file of the hub unless it is there; its size is checked by the hub's client.

    Args:
        spec: `hf://datasets/OWNER/REPO/FILE`.
        folder: where to put it; the hub's cache when None.

    Raises:
        ValueError: the specification has another form.
        FileNotFoundError: it is not there and cannot be fetched.
    """
    repo, file = _hub_names(spec)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(hf_hub_download(repo_id=repo, filename=file, repo_type="dataset", local_dir=folder))
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        command = f"hf download {repo} {file} --repo-type dataset"
        raise FileNotFoundError(
            f"hub file must be in the cache or reachable, got {spec!r} ({reason}): fetch it where there is a "
            f"network with '{command}', or name a local copy"
        ) from error


def _hub_names(spec: str) -> tuple[str, str]:
    """Repository and file of a hub file."""
    found = _HUB_FILE.fullmatch(spec)
    if found is None:
        raise ValueError(f"hub file must be written hf://datasets/OWNER/REPO/FILE, got {spec!r}")
    return found["repo"], found["file"]


def _json_rows(path: Path, spec: str) -> Iterator[tuple[int, dict[str, Any]]]:
    opener = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        # Bytes, not text: text is decoded many lines ahead, and an error in it would name another row.
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, json_row(line, f"{spec}, row {number}")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{spec} must be a whole gzip file, got an error after row {number} ({error}): copy it again, or name it "
            ".jsonl if it is not packed"
        ) from error


def json_row(line: bytes, place: str) -> dict[str, Any]:
    """Parse one line; raises ValueError, which names `place`, unless it is a JSON object."""
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: row must be UTF-8 text, got {line[:60]!r} ({error}): convert the file") from error
    try:
        row = json.loads(text)
        if _SURROGATE.search(line):
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}: row must be Unicode text, got half of a surrogate pair ({error})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: row must be JSON, got {text[:60]!r}: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: row must be a JSON object with named fields, got {text[:60]!r}")
    return row


def _parquet_rows(path: Path, spec: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "to read .parquet files", "pip install 'igrpo-train[parquet]'") from error
    number = 0
    try:
        # Small batches: rows with ten paragraphs of metadata are large as Python objects.
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=_PARQUET_ROWS):
            for row in _parquet_batch(batch, number, spec):
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        raise ValueError(f"{spec} must be a parquet file, got an error after row {number}: {error}") from error
    # Damaged pages: pyarrow has no exception of its own for them.
    except OSError as error:
        raise ValueError(
            f"{spec} must be a whole parquet file, got an error after row {number} ({error}): copy it again"
        ) from error


def _parquet_batch(batch: Any, before: int, spec: str) -> list[dict[str, Any]]:
    """The rows of a batch behind `before` others."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    except UnicodeDecodeError:
        pass
    for offset in range(len(batch)):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column[offset].as_py()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{spec}, row {before + offset + 1}: {name} must be UTF-8 text, got other bytes ({error}): convert "
                    "the file"
                ) from error
    raise AssertionError("a batch that cannot be read has a row that cannot")
