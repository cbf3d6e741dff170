"""What is undefined on the way in is undefined on the way out, until something defined is written into it.

Undefined memory holds NaN here, and the program would be stopped at the first NaN that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, mint, ops

from tensorprobe.errors import NonFiniteError
from tests.capture.mindspore.dump import DumpOnDisk
from tests.capture.mindspore.recording import record

ONES = Tensor(np.ones(4, np.float32))


def poison(tensor: Tensor) -> Tensor:
    tensor.asnumpy().fill(np.nan)  # the memory itself
    return tensor


def results(dump: DumpOnDisk, stem: str) -> list[bool]:
    """Of each call of this name, in order: is what came out undefined?"""
    records = [fields for name, fields in dump.records.items() if name.startswith(f"{stem}.") and "forward" in name]
    return [any("undefined memory" in (leaf.get("note") or "") for leaf in fields["output"]) for fields in records]


MAKERS: dict[str, Callable[[], Tensor]] = {
    "empty": lambda: mint.empty(4),
    "empty_like": lambda: mint.empty_like(ONES),
    "new_empty": lambda: ONES.new_empty((4,)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_computed_from_undefined_memory_is_undefined(tmp_path: Path, make: Callable[[], Tensor]) -> None:
    def run() -> None:
        memory = poison(make())
        mint.exp(mint.add(memory, 1.0))
        mint.add(ONES, 1.0)

    dump = record(tmp_path, run, on_nonfinite="stop")
    assert results(dump, "Mint.add") == [True, False]
    assert results(dump, "Mint.exp") == [True]


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "part": lambda x: x[1:],
    "element": lambda x: x[2],
    "reshaped": lambda x: x.reshape(2, 2),
    "transposed": lambda x: mint.transpose(x.reshape(2, 2), 0, 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_view_is_undefined_until_all_of_the_memory_was_written_to(
    tmp_path: Path, view: Callable[[Tensor], Tensor]
) -> None:
    def run() -> None:
        memory = poison(mint.empty(4))
        mint.exp(view(memory))
        memory[:2] = 1.0
        mint.exp(memory[:2])
        mint.exp(memory)
        memory[2:] = ONES[2:]
        mint.exp(view(memory))
        mint.exp(memory)

    assert results(record(tmp_path, run, on_nonfinite="stop"), "Mint.exp") == [True, False, True, False, False]


def test_memory_that_is_filled_by_a_copy_is_data(tmp_path: Path) -> None:
    def run() -> None:
        memory = poison(mint.empty(4))
        memory.copy_(ONES)
        mint.exp(memory)
        mint.exp(ops.zeros_like(poison(mint.empty(4))))

    assert results(record(tmp_path, run, on_nonfinite="stop"), "Mint.exp") == [False, False]


def test_nan_that_was_written_into_it_is_found(tmp_path: Path) -> None:
    def run() -> None:
        memory = mint.empty(4)
        memory[:] = ONES * float("nan")
        mint.exp(memory)

    with pytest.raises(NonFiniteError, match="NaN"):
        record(tmp_path, run, on_nonfinite="stop")


def test_memory_that_is_used_again_is_data(tmp_path: Path) -> None:
    def run() -> None:
        for _ in range(20):
            mint.empty(4)
            ops.exp(Tensor(np.ones(4, np.float32)))

    assert not any(results(record(tmp_path, run), "Functional.exp"))


def test_it_is_tracked_whether_calls_are_recorded_or_not(tmp_path: Path) -> None:
    def run() -> Any:
        memory = poison(mint.empty(4))
        mint.exp(memory)
        memory[:] = ONES
        return mint.exp(memory)

    dump = record(tmp_path, run, list=["exp"], on_nonfinite="stop")
    assert results(dump, "Mint.exp") == [True, False]
