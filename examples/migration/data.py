"""The batches that both frameworks train on, as numpy arrays: the same numbers, whatever their generators do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NETWORKS = ("mlp", "cnn", "lstm", "encoder", "gpt")
BATCH, WORDS, TOKENS, CLASSES = 4, 48, 10, 5

Batch = tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]


def make_batch(network: str, step: int) -> Batch:
    """What goes into the network, and the labels; int64, as PyTorch wants them."""
    random = np.random.default_rng(1000 + step)
    if network == "mlp":
        return random.normal(size=(BATCH, 4, 6)).astype(np.float32), random.integers(CLASSES, size=BATCH)
    if network.startswith("cnn"):
        return random.normal(size=(BATCH, 3, 12, 12)).astype(np.float32), random.integers(CLASSES, size=BATCH)
    tokens = random.integers(WORDS, size=(BATCH, TOKENS + 1))
    if network == "gpt":
        return tokens[:, :-1], tokens[:, 1:]
    return tokens[:, :-1], random.integers(CLASSES, size=BATCH)
