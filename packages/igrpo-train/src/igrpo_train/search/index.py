"""index: a corpus and an encoder -> a folder with a dense index.

Vectors are written in shards, each whole or not at all, so that a build that was stopped, however rudely, goes on with
the same command and ends with the same vectors. When all are there, faiss takes them in and the shards are removed.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from igrpo_train.errors import DiskError
from igrpo_train.folders import new_file, writing
from igrpo_train.search.corpus import CorpusFile, corpus_path, fingerprint, row_offsets
from igrpo_train.search.dense import MANIFEST, OFFSETS, REBUILD, VECTORS, faiss_recipe, index_bytes, make_index
from igrpo_train.search.encoder import TextEncoder
from igrpo_train.search.index_files import load_faiss, read_array, read_object, read_places, read_vectors
from igrpo_train.search.index_settings import BuildIndex
from igrpo_train.search.retrieval import contents

_BUILD: Final = "build.json"
_SHARDS: Final = "shards"
_CHECKED: Final = 8
_SAME: Final = 0.98


class IndexBuilder:
    """Builds one index; use it as a context manager, which keeps other builders out of the folder.

    Args:
        settings: what to build.

    Raises:
        FileNotFoundError: there is no such corpus.
        FileExistsError: the folder holds another index, or another process builds in it.
        ValueError: a row of the corpus is no passage or has the id of another, a build of other settings was begun in
            the folder, or what it holds is damaged.
        MissingExtra: faiss is not installed.
        DiskError: the folder cannot be written.
    """

    def __init__(self, settings: BuildIndex) -> None:
        load_faiss()
        self._settings = settings
        self._folder = settings.out.expanduser()
        self._path = corpus_path(settings.corpus)
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self._folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise FileExistsError(f"out must be a folder that nobody writes, got {str(self._folder)!r}: wait") from None
        try:
            self._prepare()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> "IndexBuilder":
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let other builders in."""
        self._corpus.close()
        self._lock.close()

    @property
    def num_passages(self) -> int:
        """Passages of the corpus."""
        return len(self._corpus)

    @property
    def num_encoded(self) -> int:
        """Passages that a build which was stopped has saved."""
        return sum(len(rows) for path, rows in self._shards() if path.is_file())

    def run(self, on_progress: Callable[[int, Mapping[str, float]], object] = lambda done, figures: None) -> Path:
        """Do what is left to do.

        Args:
            on_progress: told the passages that are encoded, and figures to show.

        Returns:
            the folder.

        Raises:
            ValueError: the encoder changed since the build was begun, or vectors are not those of encoder and corpus.
            DiskError: the disk has no room, or is full; the same command goes on.
        """
        if (self._folder / MANIFEST).is_file():
            return self._folder
        settings = self._settings
        encoder = TextEncoder(settings.encoding, device=settings.device, batch=settings.batch)
        faiss_recipe(settings.type, encoder.width, self.num_passages)
        self._check_room(encoder.width)
        published = None if settings.vectors is None else settings.vectors.expanduser()
        if published is not None:
            self._check_published(published, encoder)
        probe = self._begin(encoder)
        if published is None:
            self._encode(encoder, on_progress)
            self._assemble(encoder.width, on_progress)
        else:
            self._link(published)
        manifest = {
            "passages": self.num_passages,
            "corpus": self._spec["corpus"],
            "encoding": self._spec["encoding"],
            "probe": probe,
            "type": settings.type,
        }
        _write_json(self._folder / MANIFEST, manifest)
        shutil.rmtree(self._folder / _SHARDS, ignore_errors=True)
        (self._folder / _BUILD).unlink()
        return self._folder

    def _prepare(self) -> None:
        settings = self._settings
        self._spec: dict[str, Any] = {
            "corpus": fingerprint(self._path),
            "encoding": asdict(settings.encoding),
            "type": settings.type,
            "shard": settings.shard,
            "vectors": None if settings.vectors is None else str(settings.vectors),
        }
        finished = self._folder / MANIFEST
        for path in (finished, self._folder / _BUILD):
            if path.is_file():
                begun = read_object(path, REBUILD)
                changed = [name for name in self._spec if name in begun and begun[name] != self._spec[name]]
                if changed:
                    raise ValueError(
                        f"{changed[0]} must be as in the index that {self._folder} holds, got "
                        f"{self._spec[changed[0]]!r} (was {begun[changed[0]]!r}): give the same settings or a new --out"
                    )
        offsets = self._folder / OFFSETS
        if not offsets.is_file() or not (finished.is_file() or (self._folder / _BUILD).is_file()):
            places = row_offsets(self._path)
            # Before the folder holds anything that ties it to this corpus.
            CorpusFile(self._path, places).check()
            _save(offsets, places)
        self._corpus = CorpusFile(self._path, read_places(offsets, self._path, REBUILD))

    def _check_room(self, width: int) -> None:
        """Refuse to begin what the disk cannot hold: the shards, and the index that is made of them."""
        if self._settings.vectors is not None:
            return
        shards = index_bytes("flat", width, self.num_passages)
        written = sum(path.stat().st_size for path in (self._folder / _SHARDS).glob("*.npy"))
        needed = shards - written + index_bytes(self._settings.type, width, self.num_passages)
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise DiskError(
                f"out must have {needed / 1e9:.1f} GB free to build the index, got {free / 1e9:.1f}: free space or "
                "name another --out"
            )

    def _begin(self, encoder: TextEncoder) -> list[float]:
        """Write down what is built, or check that it is the same encoder that goes on."""
        path = self._folder / _BUILD
        if path.is_file():
            probe: list[float] = read_object(path, REBUILD).get("probe", [])
            encoder.check_probe(probe, str(self._folder))
        else:
            probe = [float(value) for value in encoder.probe()]
            _write_json(path, {**self._spec, "probe": probe})
        return probe

    def _shards(self) -> Iterator[tuple[Path, range]]:
        for number, first in enumerate(range(0, self.num_passages, self._settings.shard)):
            rows = range(first, min(first + self._settings.shard, self.num_passages))
            yield self._folder / _SHARDS / f"{number:06}.npy", rows

    def _encode(self, encoder: TextEncoder, on_progress: Callable[[int, Mapping[str, float]], object]) -> None:
        with writing(self._folder):
            (self._folder / _SHARDS).mkdir(exist_ok=True)
        # Sorting by length works on a window; its size is fixed, so that a build that went on gives the same vectors.
        window = self._settings.batch * 4
        for path, rows in self._shards():
            if not path.is_file():
                parts = []
                for first in range(rows.start, rows.stop, window):
                    window_rows = range(first, min(first + window, rows.stop))
                    texts = [contents(passage) for passage in self._corpus.passages(window_rows)]
                    parts.append(encoder.passages(texts))
                    on_progress(first + len(texts), {})
                _save(path, np.concatenate(parts))
            on_progress(rows.stop, {})

    def _assemble(self, width: int, on_progress: Callable[[int, Mapping[str, float]], object]) -> None:
        done = self.num_passages
        index = make_index(
            self._settings.type,
            lambda size: self._sample(size, width),
            (self._vectors(path, rows, width) for path, rows in self._shards()),
            width=width,
            num_passages=done,
            on_progress=lambda added: on_progress(done, {"in the index": added}),
        )
        partial = self._folder / f".{VECTORS}.partial"
        with writing(partial):
            try:
                load_faiss().write_index(index, str(partial))
            except RuntimeError as error:
                raise OSError(" ".join(str(error).split())[:200]) from error
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, self._folder / VECTORS)

    def _vectors(self, path: Path, rows: range, width: int) -> Float[np.ndarray, "n width"]:
        """A shard that was saved, mapped into memory."""
        remedy = "remove it and give the same command again"
        vectors = read_array(path, "float32", 2, remedy)
        if vectors.shape != (len(rows), width):
            raise ValueError(f"{path} must hold {len(rows)} vectors of width {width}, got {vectors.shape}: {remedy}")
        return vectors

    def _sample(self, size: int, width: int) -> Float[np.ndarray, "n width"]:
        """Vectors spread evenly over the corpus."""
        share = min(1.0, size / self.num_passages)
        parts = []
        for path, rows in self._shards():
            vectors = self._vectors(path, rows, width)
            parts.append(vectors[np.linspace(0, len(rows) - 1, max(1, int(len(rows) * share))).astype(int)])
        return np.concatenate(parts)

    def _check_published(self, file: Path, encoder: TextEncoder) -> None:
        """Refuse a faiss file whose vectors are not this encoder's of this corpus, row by row, for inner products."""
        if not file.is_file():
            raise FileNotFoundError(f"vectors must be a faiss file, got {str(file)!r}: check the path")
        faiss = load_faiss()
        index = read_vectors(file, f"vectors {str(file)!r}", "give a file of faiss.write_index, or leave --vectors out")
        kind = "flat" if isinstance(index, faiss.IndexFlat) else "hnsw" if hasattr(index, "hnsw") else None
        if kind is None:
            # Others keep no vectors, or not in the order of the corpus: whose they are cannot be checked.
            raise ValueError(
                f"vectors must be a flat or hnsw index, got {type(index).__name__} in {str(file)!r}: give another "
                "file, or leave --vectors out"
            )
        if kind != self._settings.type:
            raise ValueError(
                f"type must be {kind!r} for {str(file)!r}, got {self._settings.type!r}: give --type {kind}"
            )
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(
                f"vectors must be compared by inner product (metric 0), got metric {index.metric_type} in "
                f"{str(file)!r}: write the index again with faiss.METRIC_INNER_PRODUCT, or leave --vectors out"
            )
        if (index.ntotal, index.d) != (self.num_passages, encoder.width):
            raise ValueError(
                f"vectors must be {self.num_passages} of width {encoder.width}, got {index.ntotal} of {index.d}: give "
                "the corpus and the encoder that they were made from"
            )
        rows = np.linspace(0, self.num_passages - 1, _CHECKED).astype(int).tolist()
        own = encoder.passages([contents(passage) for passage in self._corpus.passages(rows)])
        cosines = [float(index.reconstruct(row) @ vector) for row, vector in zip(rows, own, strict=True)]
        # A NaN is no cosine either.
        if not min(cosines) >= _SAME:
            raise ValueError(
                f"vectors must be those of the encoder for this corpus, got cosines down to {min(cosines):.3f} over "
                f"{_CHECKED} passages: check encoder, pooling, prefixes and the order of the corpus"
            )

    def _link(self, file: Path) -> None:
        target = self._folder / VECTORS
        with writing(target):
            target.unlink(missing_ok=True)
            target.symlink_to(file.resolve())


def _save(path: Path, array: np.ndarray) -> None:
    with new_file(path) as file:
        np.save(file, array)


def _write_json(path: Path, value: object) -> None:
    with new_file(path) as file:
        file.write(json.dumps(value, indent=1).encode())
