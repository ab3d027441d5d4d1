"""index_settings: flags of `igrpo-train index` -> what to build; loads no torch, so that --help answers at once."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from igrpo_train.checks import check, check_fields, count

IndexType = Literal["flat", "hnsw", "ivfpq"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """How texts become vectors; queries and passages of one index must agree on it."""

    encoder: str = "intfloat/e5-base-v2"
    """Hub id or folder of the model."""
    pooling: Literal["mean", "cls"] = "mean"
    """What stands for a text: the mean over its tokens (E5, GTE, MiniLM) or its first token (BGE)."""
    query_prefix: str = "query: "
    """Put before a query; empty for models without prefixes."""
    passage_prefix: str = "passage: "
    """Put before a passage; empty for models without prefixes."""
    max_tokens: int = 256
    """Longest text in tokens; the rest is cut off."""

    def __post_init__(self) -> None:
        check("encoder", self.encoder, bool(self.encoder.strip()), "a hub id or a folder")
        check_fields("", self, "max_tokens", count, "at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildIndex:
    """What is indexed, how, and where to."""

    corpus: Annotated[str, tyro.conf.Positional]
    """Passages: a .jsonl file."""
    out: Path
    """Folder for the index: new, or of a build that was stopped."""
    type: IndexType = "flat"
    """flat compares with every vector, hnsw and ivfpq with few: the first needs more memory, the second loses more."""
    encoding: Annotated[Encoding, tyro.conf.arg(name="")] = field(default_factory=Encoding)
    device: str = "auto"
    """Where passages are encoded; auto takes the accelerator where there is one."""
    batch: int = 64
    """Passages in one forward pass."""
    shard: int = 100_000
    """Passages between two saves."""
    vectors: Path | None = None
    """A faiss file to take over, such as Search-R1's e5_Flat.index; only a few passages are encoded, to check it."""

    def __post_init__(self) -> None:
        check_fields("", self, "batch shard", count, "at least 1")
