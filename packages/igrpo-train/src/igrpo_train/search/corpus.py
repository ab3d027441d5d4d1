r"""corpus: a .jsonl file of passages -> passages by row, read from where they stand.

A dense index knows a passage by its row. So that 21 million passages need no memory, the file stays on the disk and
only the place of every row is kept, 8 bytes each.

Example:
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "corpus.jsonl"
    >>> _ = path.write_text('{"id": 1, "contents": "Ghent\\nA city."}\n\n{"id": 2, "contents": "Oslo\\nA capital."}\n')
    >>> CorpusFile(path, row_offsets(path)).passages([1])[0].title
    'Oslo'
"""

import hashlib
import os
import weakref
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Int

from igrpo_train.question import Passage, passage_from_row
from igrpo_train.rows import json_row, local_path

_BLOCKS: Final = 4096
_BLOCK_BYTES: Final = 2**14


def corpus_path(spec: str) -> Path:
    """The file behind a specification.

    Raises:
        ValueError: it is no .jsonl file: rows of others cannot be found by their place.
        FileNotFoundError: there is no such file.
    """
    if spec.startswith("miniature:") or not spec.endswith(".jsonl"):
        raise ValueError(
            f"data.corpus must be a .jsonl file for a dense index, got {spec!r}: unpack it with gunzip, or convert it"
        )
    return local_path(spec)


def row_offsets(path: Path) -> Int[np.ndarray, " places"]:
    """First byte of every row that is not blank, and the end of the file: one place more than rows.

    Raises:
        ValueError: there is no row.
    """
    starts, place = [], 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.isspace():
                starts.append(place)
            place += len(line)
    if not starts:
        raise ValueError(f"{path} must hold at least one row, got an empty file: check how it was written")
    return np.array([*starts, place], dtype=np.int64)


def fingerprint(path: Path) -> str:
    """SHA-256 over the size and 4096 blocks of 16 KiB spread evenly: of a file up to 64 MiB, over all of it.

    It takes about a second for any size, and tells one corpus from another; a single byte that was changed in a larger
    file can escape it.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    step = max(_BLOCK_BYTES, -(-size // _BLOCKS))
    with path.open("rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


class CorpusFile:
    """The passages of a file.

    Args:
        path: a .jsonl file.
        offsets: its `row_offsets`; a memory-mapped array does.
    """

    def __init__(self, path: Path, offsets: Int[np.ndarray, " places"]) -> None:
        self._path, self._offsets = path, offsets
        self._file = os.open(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._offsets) - 1

    def passages(self, rows: Sequence[int]) -> list[Passage]:
        """Passages of 0-based rows; may be called from several threads.

        Raises:
            ValueError: a row is no passage; the message says which.
        """
        return [self._passage(row) for row in rows]

    def check(self) -> None:
        """Read every row, before anything is spent on the first.

        Raises:
            ValueError: a row is no passage, or has the id of an earlier one; the message says which.
        """
        # 8 bytes a row; rows whose hashes agree are compared themselves.
        hashes = np.array(array("q", (hash(self._passage(row).id) for row in range(len(self)))))
        order = np.argsort(hashes, kind="stable")
        twins = np.flatnonzero(np.diff(hashes[order]) == 0)
        for place in twins[np.argsort(order[twins + 1])].tolist():
            row, again = int(order[place]), int(order[place + 1])
            first, second = self.passages([row, again])
            if first.id == second.id:
                raise ValueError(
                    f"{self._path}, passage {again + 1}: id must be unique, got {first.id!r} of passage {row + 1} "
                    "again: merge the rows or rename one"
                )

    def _passage(self, row: int) -> Passage:
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        place = f"{self._path}, passage {row + 1}"
        fields = json_row(os.pread(self._file, end - start, start), place)
        try:
            return passage_from_row(fields)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error

    def close(self) -> None:
        """Close the file; done besides when nobody holds it any more."""
        self._close()
