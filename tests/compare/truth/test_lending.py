"""Tensors of one run in the place of those that the other has not kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.truth.lending import Drawer, Lender
from tests.compare.truth.test_drawing import describe

Array = np.ndarray[Any, Any]
WEIGHT = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


class Folder:
    """A dump with these tensors."""

    def __init__(self, folder: Path, *contents: Array) -> None:
        self._folder = folder
        self._slots = []
        for number, content in enumerate(contents):
            np.save(folder / f"{number}.npy", content)
            self._slots.append(replace(describe(content), data_name=f"{number}.npy"))

    def records(self) -> list[Folder]:
        return [self]

    def slots(self) -> list[Any]:
        return self._slots

    def tensor_path(self, name: str) -> Path:
        return self._folder / name


def lend(tmp_path: Path, content: Array, wanted: Array) -> Array | None:
    lender = Lender(Folder(tmp_path, np.zeros((2, 2), np.float32), content))  # type: ignore[arg-type]
    path = lender.find(describe(wanted))
    return None if path is None else np.load(path)


@pytest.mark.parametrize(
    "wanted",
    [WEIGHT, WEIGHT.T, WEIGHT.reshape(24), WEIGHT.reshape(4, 1, 6), WEIGHT.reshape(2, 2, 6).transpose(2, 0, 1)[:, ::1]],
    ids=["as it is", "transposed", "flat", "with a dimension more", "turned"],
)
def test_the_same_numbers_are_found_in_another_layout(wanted: Array, tmp_path: Path) -> None:
    content = WEIGHT.reshape(2, 2, 6) if wanted.ndim == 3 and wanted.shape[0] == 6 else WEIGHT
    found = lend(tmp_path, content, np.ascontiguousarray(wanted))
    assert found is not None and np.array_equal(found, wanted)


def test_whole_numbers_may_have_another_width(tmp_path: Path) -> None:
    found = lend(tmp_path, np.arange(7, dtype=np.int32), np.arange(7, dtype=np.int64))
    assert found is not None and found.dtype == np.int64


@pytest.mark.parametrize(
    "wanted", [WEIGHT * np.float32(1.0001), WEIGHT[::-1], np.sort(WEIGHT)], ids=["scaled", "reversed", "sorted"]
)
def test_other_numbers_or_another_order_are_not_the_same(wanted: Array, tmp_path: Path) -> None:
    assert lend(tmp_path, WEIGHT, np.ascontiguousarray(wanted)) is None


def test_what_is_drawn_is_drawn_once_for_both_runs_and_turned_for_the_other() -> None:
    drawer = Drawer()
    first, again = (drawer.find(describe(WEIGHT)) for _ in range(2))
    turned = drawer.find(describe(np.ascontiguousarray(WEIGHT.T)))
    assert first is not None and first == again and turned is not None
    assert np.array_equal(np.load(drawer.provide(first)).T, np.load(drawer.provide(turned)))


def test_a_square_weight_that_has_another_sketch_is_the_transposed_one() -> None:
    square, drawer = WEIGHT[:, :4].copy(), Drawer()
    first, turned = (drawer.find(describe(np.ascontiguousarray(one))) for one in (square, square.T))
    assert first is not None and turned is not None
    assert np.array_equal(np.load(drawer.provide(first)).T, np.load(drawer.provide(turned)))


def test_nothing_is_written_until_somebody_reads_it() -> None:
    drawer = Drawer()
    path = drawer.find(describe(WEIGHT))
    assert path is not None and not path.exists()
    assert drawer.provide(path).exists()
