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
from typing import Any

from igrpo_train.errors import MissingExtra

_HUB = "hf://"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
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


def hub_file(spec: str, folder: Path | None = None) -> Path:
    """Fetch a file of the hub unless it is there; its size is checked by the hub's client.

    Args:
        spec: `hf://datasets/OWNER/REPO/FILE`.
        folder: where to put it; the hub's cache when None.

    Raises:
        ValueError: the specification has another form.
        FileNotFoundError: it is not there and cannot be fetched.
    """
    found = _HUB_FILE.fullmatch(spec)
    if found is None:
        raise ValueError(f"hub file must be written hf://datasets/OWNER/REPO/FILE, got {spec!r}")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(
            hf_hub_download(repo_id=found["repo"], filename=found["file"], repo_type="dataset", local_dir=folder)
        )
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        command = f"hf download {found['repo']} {found['file']} --repo-type dataset"
        raise FileNotFoundError(
            f"hub file must be in the cache or reachable, got {spec!r} ({reason}): fetch it where there is a "
            f"network with '{command}', or name a local copy"
        ) from error


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
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        raise ValueError(f"{spec} must be a parquet file, got an error after row {number}: {error}") from error
