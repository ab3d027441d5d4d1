"""encoder: texts -> unit vectors, by any sentence-embedding model of the hub or a folder.

Source: [e5] for the prefixes; mean and first-token pooling as in sentence-transformers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from igrpo_train.checks import check
from igrpo_train.policy import find_device
from igrpo_train.search.index_settings import Encoding

_PROBE: Final = "Ghent\nGhent is a city in Belgium; its mayor lives in 1 of 7 houses."


class TextEncoder:
    """A model that encodes texts; float32 on CPUs, float16 on accelerators.

    Args:
        encoding: model, pooling and prefixes.
        device: a torch device, or auto.
        batch: texts in one forward pass.

    Raises:
        ValueError: the model cannot be loaded, or reads fewer tokens than `encoding.max_tokens`.
    """

    def __init__(self, encoding: Encoding, *, device: str = "cpu", batch: int = 64) -> None:
        transformers_logging.disable_progress_bar()
        self._encoding, self._batch, self._device = encoding, batch, find_device(device, "device")
        source = str(Path(encoding.encoder).expanduser()) if encoding.encoder.startswith("~") else encoding.encoder
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(source)
            dtype = torch.float32 if self._device.type == "cpu" else torch.float16
            self._model = AutoModel.from_pretrained(source, dtype=dtype).to(self._device).eval()
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise ValueError(
                f"encoder must be a text model with its tokenizer, got {source!r} ({reason}): give a whole local "
                "folder, or the id of a hub model that is in the cache or reachable"
            ) from error
        self._check_vocabulary(source)
        limit = min(self._tokenizer.model_max_length, getattr(self._model.config, "max_position_embeddings", 10**9))
        fits = encoding.max_tokens <= limit
        check("max_tokens", encoding.max_tokens, fits, f"at most {limit}", f"{source} reads no more")
        prefixes = (encoding.query_prefix, encoding.passage_prefix)
        least = 1 + max(len(self._tokenizer(prefix)["input_ids"]) for prefix in prefixes)
        fits = encoding.max_tokens >= least
        check("max_tokens", encoding.max_tokens, fits, f"at least {least}", "prefixes and special tokens take the rest")

    def _check_vocabulary(self, source: str) -> None:
        """Refuse a tokenizer that the model cannot read."""
        if self._tokenizer.pad_token_id is None:
            raise ValueError(
                f"encoder must have a tokenizer with a padding token, got {source!r} without one: name a pad_token in "
                "its tokenizer_config.json"
            )
        known, used = self._model.get_input_embeddings().num_embeddings, max(self._tokenizer.get_vocab().values())
        if used >= known:
            raise ValueError(
                f"encoder must know every token of its tokenizer, got {source!r} with {known} embeddings for ids up to "
                f"{used}: give the tokenizer that the model was trained with"
            )

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(self._model.config.hidden_size)

    def queries(self, texts: Sequence[str]) -> Float[np.ndarray, "n width"]:
        """Unit vectors of queries, in float32."""
        return self._encode([self._encoding.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Float[np.ndarray, "n width"]:
        """Unit vectors of passages, in float32."""
        return self._encode([self._encoding.passage_prefix + text for text in texts])

    def probe(self) -> Float[np.ndarray, " width"]:
        """The vector of a fixed passage; tells one encoder from another."""
        return self.passages([_PROBE])[0]

    def check_probe(self, saved: Sequence[float], place: str) -> None:
        """Refuse to mix encoders.

        Args:
            saved: the `probe` of the encoder that is needed.
            place: what holds it.

        Raises:
            ValueError: this encoder gives another vector; float16 against float32 does not matter.
        """
        probe = self.probe()
        cosine = float(probe @ np.asarray(saved, dtype=np.float32)) if len(saved) == len(probe) else float("nan")
        # Half precision moves it by about 1e-6, another model or pooling by far more.
        same = cosine > 0.995
        encoding = self._encoding
        remedy = f"it encodes a test text differently (cosine {cosine:.3f}); name the model that built the index"
        check("encoder", encoding.encoder, same, f"the one of {place}", remedy)

    @torch.inference_mode()
    def _encode(self, texts: Sequence[str]) -> Float[np.ndarray, "n width"]:
        # Texts of one length together, so that little is padded.
        order = np.argsort([len(text) for text in texts], kind="stable")
        vectors = np.empty((len(texts), self.width), dtype=np.float32)
        for first in range(0, len(texts), self._batch):
            rows = order[first : first + self._batch]
            inputs = self._tokenizer(
                [texts[row] for row in rows],
                truncation=True,
                max_length=self._encoding.max_tokens,
                padding=True,
                return_tensors="pt",
            ).to(self._device)
            vectors[rows] = self._pool(inputs).float().cpu().numpy()
        return vectors

    def _pool(self, inputs: Any) -> torch.Tensor:
        states = self._model(**inputs).last_hidden_state
        if self._encoding.pooling == "cls":
            pooled = states[:, 0]
        else:
            # Sums of many float16 numbers overflow.
            mask = inputs["attention_mask"].unsqueeze(-1).float()
            pooled = (states.float() * mask).sum(1) / mask.sum(1).clamp(min=1)
        return torch.nn.functional.normalize(pooled.float(), dim=-1)
