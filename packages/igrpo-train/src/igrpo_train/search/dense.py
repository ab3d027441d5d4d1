"""dense: queries -> passages whose vectors lie nearest, by faiss.

An index is a folder: `index.faiss` (vectors, memory-mapped), `offsets.npy` (where every passage stands in the corpus
file) and `index.json` (what they belong to). `igrpo_train.search.index` writes it.
Source: [faiss]; inner products of unit vectors, as [searchr1] has them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from igrpo_train.question import Passage
from igrpo_train.search.corpus import CorpusFile, corpus_path, fingerprint
from igrpo_train.search.encoder import TextEncoder
from igrpo_train.search.index_files import load_faiss, read_object, read_places, read_vectors
from igrpo_train.search.index_settings import Encoding, IndexType
from igrpo_train.search.retrieval import Found

MANIFEST: Final = "index.json"
VECTORS: Final = "index.faiss"
OFFSETS: Final = "offsets.npy"
REBUILD: Final = "remove the folder and build it again"
"""What to do about a damaged index."""
PQ_BYTES_PER_DIMENSION: Final = 1 / 8
"""Bytes of an IVF-PQ code for each dimension of a vector."""
SMALLEST_IVFPQ: Final = 39 * 256
"""Fewest passages from which the 256 centroids of a code can be learned."""


def faiss_recipe(kind: IndexType, width: int, num_passages: int) -> str:
    """What faiss's factory makes of a type.

    flat compares with every vector; hnsw walks a graph of 64 links a vector; ivfpq looks into a few of many cells, at
    codes of an eighth of a byte a dimension.

    Raises:
        ValueError: too few passages, or a width that cannot be cut into codes.

    Example:
        >>> faiss_recipe("ivfpq", 768, 21_015_324)
        'IVF18336,PQ96'
    """
    if kind == "flat":
        return "Flat"
    if kind == "hnsw":
        return "HNSW64,Flat"
    if num_passages < SMALLEST_IVFPQ or width % 8:
        raise ValueError(
            f"type must be flat or hnsw for {num_passages} passages in {width} dimensions, got 'ivfpq': it needs "
            f"{SMALLEST_IVFPQ} passages, and dimensions in eights"
        )
    cells = min(4 * math.isqrt(num_passages), num_passages // 39)
    return f"IVF{cells},PQ{int(width * PQ_BYTES_PER_DIMENSION)}"


def index_bytes(kind: IndexType, width: int, num_passages: int) -> int:
    """Size of an index file, but for headers of some kilobytes.

    A vector takes 4 bytes a dimension; hnsw adds 128 links at the ground level and about one above it, 4 bytes each,
    and 12 bytes to find them; ivfpq keeps a code and an id of 8 bytes, and its centroids besides.

    Source: [faiss]. Example:
        >>> [round(index_bytes(kind, 768, 21_015_324) / 1e9, 1) for kind in ("flat", "hnsw", "ivfpq")]
        [64.6, 75.7, 2.2]
    """
    if kind == "flat":
        return 4 * width * num_passages
    if kind == "hnsw":
        return (4 * width + 4 * 129 + 12) * num_passages
    cells = int(faiss_recipe(kind, width, num_passages).partition(",")[0].removeprefix("IVF"))
    return (int(width * PQ_BYTES_PER_DIMENSION) + 8) * num_passages + (4 * width + 8) * cells + 4 * width * 256


def make_index(
    kind: IndexType,
    sample: Callable[[int], Float[np.ndarray, "n width"]],
    shards: Iterable[Float[np.ndarray, "_ width"]],
    *,
    width: int,
    num_passages: int,
    on_progress: Callable[[int], object],
) -> Any:
    """A faiss index over vectors that come shard by shard.

    Args:
        kind: the type.
        sample: gives at most so many vectors to learn cells and codes from.
        shards: all vectors, in the order of their passages.
        width: numbers in a vector.
        num_passages: vectors in all shards.
        on_progress: told the number of vectors that are in.
    """
    faiss = load_faiss()
    index = faiss.index_factory(width, faiss_recipe(kind, width, num_passages), faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        # More than 256 vectors a cell, or a code's centroid, faiss would not use.
        index.train(sample(256 * max(256, index.nlist)))
        # A share of the cells that keeps most of the neighbours; saved with the index.
        index.nprobe = min(64, max(1, index.nlist // 8))
    if kind == "hnsw":
        index.hnsw.efSearch = 128
    for vectors in shards:
        index.add(vectors)
        on_progress(index.ntotal)
    return index


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What an index belongs to."""

    passages: int
    corpus: str
    """Fingerprint of the corpus file."""
    encoding: Encoding
    probe: tuple[float, ...]
    """The encoder's vector of a fixed text."""
    type: IndexType


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished index.

    Raises:
        FileNotFoundError: there is no finished index.
        ValueError: the manifest is damaged.
    """
    path = folder.expanduser() / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"retrieval.index must be a folder with a finished index, got {str(folder)!r}: build it with igrpo-train "
            "index, or give the same command again if it was stopped"
        )
    fields = read_object(path, REBUILD)
    try:
        encoding = Encoding(**fields.pop("encoding"))
        return Manifest(encoding=encoding, probe=tuple(map(float, fields.pop("probe"))), **fields)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} must be as igrpo-train index wrote it, got an error ({error}): {REBUILD}") from error


class DenseRetriever:
    """Searches an index that `igrpo-train index` wrote; vectors and passages stay on the disk until they are needed.

    How queries are pooled and prefixed is the index's own.

    Args:
        folder: of the index.
        corpus: the .jsonl file that it was built from.
        encoder: model for queries; empty takes the one that the index names.
        device: where queries are encoded; on CUDA, a faiss with GPUs searches there too, in float16.
        batch: queries in one forward pass.

    Raises:
        FileNotFoundError: index or corpus do not exist.
        ValueError: corpus or encoder are not those of the index.
        MissingExtra: faiss is not installed.
    """

    def __init__(self, folder: Path, corpus: str, *, encoder: str = "", device: str = "cpu", batch: int = 64) -> None:
        faiss = load_faiss()
        folder = folder.expanduser()
        manifest = read_manifest(folder)
        path = corpus_path(corpus)
        if fingerprint(path) != manifest.corpus:
            raise ValueError(
                f"data.corpus must be the file that {folder} was built from, got {corpus!r}, which differs: give that "
                "file, or build an index for this one"
            )
        self._corpus = CorpusFile(path, read_places(folder / OFFSETS, path, REBUILD))
        index = read_vectors(folder / VECTORS, str(folder / VECTORS), REBUILD)
        if not index.ntotal == len(self._corpus) == manifest.passages:
            raise ValueError(
                f"{folder} must hold {manifest.passages} vectors and places, got {index.ntotal} and "
                f"{len(self._corpus)}: {REBUILD}"
            )
        encoding = manifest.encoding
        if encoder:
            encoding = Encoding(
                encoder=encoder,
                pooling=encoding.pooling,
                query_prefix=encoding.query_prefix,
                passage_prefix=encoding.passage_prefix,
                max_tokens=encoding.max_tokens,
            )
        self._encoder = TextEncoder(encoding, device=device, batch=batch)
        self._encoder.check_probe(manifest.probe, str(folder))
        self._index = _on_device(faiss, index, device)

    def __len__(self) -> int:
        """Number of passages."""
        return len(self._corpus)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """The `top_k` nearest passages a query, best first."""
        return [[found.passage for found in each] for each in self.search_scored(queries, top_k)]

    def search_scored(self, queries: Sequence[str], top_k: int) -> list[list[Found]]:
        """The same with cosines; an approximate index may find fewer, and its scores are estimates."""
        if not queries:
            return []
        scores, rows = self._index.search(self._encoder.queries(queries), min(top_k, len(self)))
        found = []
        for query_scores, query_rows in zip(scores.tolist(), rows.tolist(), strict=True):
            # -1 marks places that stayed empty.
            kept = [(row, score) for row, score in zip(query_rows, query_scores, strict=True) if row >= 0]
            passages = self._corpus.passages([row for row, _ in kept])
            found.append([Found(passage, score) for passage, (_, score) in zip(passages, kept, strict=True)])
        return found


def _on_device(faiss: Any, index: Any, device: str) -> Any:
    """The index on the GPUs of a device, where there are some and faiss can use them; HNSW stays on the CPU."""
    if not device.startswith("cuda") or not hasattr(faiss, "StandardGpuResources") or hasattr(index, "hnsw"):
        return index
    options = faiss.GpuMultipleClonerOptions()
    options.useFloat16, options.shard = True, True
    place = device.partition(":")[2]
    gpus = [int(place)] if place else list(range(faiss.get_num_gpus()))
    return faiss.index_cpu_to_gpus_list(index, options, gpus)
