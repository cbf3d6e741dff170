"""Tensors of one run in the place of those that the other has not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.truth.lending import Drawer, Lender
from tensorprobe.compare.truth.shared_leaf import JointLeaf
from tests.compare.truth.test_drawing import describe

Array = np.ndarray[Any, Any]
WEIGHT = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def lend(tmp_path: Path, content: Array, wanted: Array) -> Array | None:
    path = tmp_path / "content.npy"
    np.save(path, content)
    lender = Lender([(describe(content), path)])
    found = lender.find(describe(wanted))
    return None if found is None else np.load(lender.provide(found))


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


def test_parts_are_joined_and_a_whole_is_cut(tmp_path: Path) -> None:
    parts = [WEIGHT[:1], WEIGHT[1:]]
    joint = JointLeaf(describe(WEIGHT), tuple(describe(part) for part in parts))
    for held, wanted in ((parts, [WEIGHT]), ([WEIGHT], parts)):
        paths = [tmp_path / f"{number}.npy" for number in range(len(held))]
        for path, content in zip(paths, held, strict=True):
            np.save(path, content)
        lender = Lender(zip(map(describe, held), paths, strict=True), [joint])
        for content in wanted:
            found = lender.find(describe(content))
            assert found is not None and np.array_equal(np.load(lender.provide(found)), content)
