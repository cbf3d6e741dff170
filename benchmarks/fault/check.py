"""Is the corpus itself right? Without compare, bit for bit: a fault changes numbers, and from its place on only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fault.dump import Dump, load_tensor
from fault.truth import Truth

LARGEST_NOISE = 1e-4
"""Of one step in float32."""


def find_first_differences(reference: Dump, candidate: Dump) -> list[str]:
    """The first record of the reference that the candidate has not or has otherwise, and the first that only it has."""
    cache: dict[Path, np.ndarray] = {}
    found = []
    for name, record in reference.records.items():
        other = candidate.records.get(name)
        if other is None or not is_same(record, other, reference, candidate, cache):
            found.append(name)
            break
    return found + [name for name in candidate.names if name not in reference.records][:1]


def is_same(left: Any, right: Any, reference: Dump, candidate: Dump, cache: dict[Path, np.ndarray]) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        if "data_name" in left and "data_name" in right:
            files = [
                dump.folder / "dump_tensor_data" / leaf["data_name"]
                for dump, leaf in ((reference, left), (candidate, right))
            ]
            if files[0].read_bytes() == files[1].read_bytes():
                return True
            first, second = (load_tensor(file, cache) for file in files)
            return left["dtype"] == right["dtype"] and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
        keys = (left.keys() | right.keys()) - {"source"}
        return all(is_same(left.get(key), right.get(key), reference, candidate, cache) for key in keys)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(
            is_same(one, other, reference, candidate, cache) for one, other in zip(left, right, strict=True)
        )
    return left == right or (left != left and right != right)


def find_objection(truth: Truth, reference: Dump, candidate: Dump) -> str | None:
    """What is wrong with a planted fault; None when the runs part at its place."""
    firsts = find_first_differences(reference, candidate)
    if not firsts:
        return "nothing differs"
    accepted = truth.names | truth.receivers
    if not accepted.intersection(firsts):
        return f"the runs part at {' or '.join(firsts)}, and the truth is {', '.join(sorted(accepted))}"
    return None


def measure_noise(reference: Dump, candidate: Dump) -> float:
    """The largest relative error of all results of the forward; some gradients are nothing but cancelled rounding."""
    cache: dict[Path, np.ndarray] = {}
    largest = 0.0
    for name in reference.names:
        if name in candidate.records and "forward" in name:
            for left, right in zip(reference.outputs_of(name), candidate.outputs_of(name), strict=True):
                first = load_tensor(reference.folder / "dump_tensor_data" / left["data_name"], cache)
                second = load_tensor(candidate.folder / "dump_tensor_data" / right["data_name"], cache)
                largest = max(largest, relative_error(first, second))
    return largest


def relative_error(first: np.ndarray, second: np.ndarray) -> float:
    """Infinities at the same places are no error: a mask has them."""
    first, second = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.linalg.norm(np.where(first == second, 0.0, first - second).ravel())
    scale = np.linalg.norm(np.where(np.isfinite(first), first, 0.0).ravel())
    return float(difference / scale) if scale else float(difference)


def find_unfaulted_objection(reference: Dump, candidate: Dump, *, is_noisy: bool) -> str | None:
    """What is wrong with a pair that should differ by rounding, or not at all."""
    noise = measure_noise(reference, candidate)
    if noise > LARGEST_NOISE:
        return f"differs by {noise:.1e}, which is more than rounding"
    return "nothing differs" if is_noisy and not noise else None


def find_rewrite_objection(reference: Dump, candidate: Dump) -> str | None:
    """Calls are others, so only the last result of the forward is held against the other's."""
    losses = []
    for dump in (reference, candidate):
        name = next(
            name for name in reversed(dump.names) if "forward" in name and not dump.outputs_of(name)[0]["shape"]
        )
        losses.append(dump.outputs_of(name)[0]["Mean"])
    if not abs(losses[0] - losses[1]) <= LARGEST_NOISE * abs(losses[0]):
        return f"the losses are {losses[0]} and {losses[1]}"
    return None
