"""Attention written out element by element in numpy, as its documentation has it: what meanings are held against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensorprobe.replay.meaning.registry import find_kernel_meaning

Sees = Callable[[int, int], bool]
Change = Callable[[float, int, int, int, int], float]


def attend_slowly(
    query: Any, key: Any, value: Any, scale: float, sees: Sees = lambda i, j: True,
    change: Change = lambda score, b, h, i, j: score,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """[batch, length, heads, size]: one query after the other; `change` is what happens to a score."""
    query, key, value = (np.asarray(item) for item in (query, key, value))
    group = query.shape[2] // key.shape[2]
    result = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, i, h in np.ndindex(*query.shape[:3]):
        places = [j for j in range(key.shape[1]) if sees(i, j)]
        if not places:
            continue
        scores = [change(scale * float(query[b, i, h] @ key[b, j, h // group]), b, h, i, j) for j in places]
        weights = np.exp(np.array(scores) - max(scores))
        result[b, i, h] = weights / weights.sum() @ value[b, places, h // group]
    return result


def call_meaning(name: str, *args: Any, **kwargs: Any) -> Any:
    """What tensorprobe says that a call computes."""
    prefix, _, op = name.partition(".")
    found = find_kernel_meaning(prefix, op)
    assert found is not None and found.is_built_in
    return found.function(*args, **kwargs)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def is_near(found: torch.Tensor, expected: Any) -> bool:
    return bool(np.allclose(found.detach().numpy(), np.asarray(expected), rtol=1e-12, atol=1e-12))
