"""How tensors lie in memory: each way is made once, and let go of when nobody holds it."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.capture.torch import layout
from tensorprobe.capture.torch.layout import forget_written, layout_of, merge_dimensions


def test_the_places_of_what_was_written_to_do_not_grow_for_ever() -> None:
    memory = torch.zeros(100_000)
    for step in range(300):
        for number in range(100):
            part = memory[step * 100 + number :][:10]
            part.add_(1)
            layout_of(part, part._version)
        forget_written()
    assert len(layout._places) < 20_000


@pytest.mark.parametrize(
    ("shape", "steps", "merged"),
    [
        ((2, 3, 4), (12, 4, 1), ((24, 1),)),
        ((8, 16, 2, 4), (384, 24, 4, 1), ((8, 1), (128, 24))),  # a view of a part of the last dimension
        ((8, 2, 16, 4), (384, 4, 24, 1), ((4, 1), (16, 24), (2, 4), (8, 384))),  # the same, transposed
        ((3, 1), (1, 7), ((3, 1),)),
        ((), (), ()),
    ],
    ids=["in line", "part", "transposed", "one column", "number"],
)
def test_dimensions_that_are_read_as_one_count_as_one(
    shape: tuple[int, ...], steps: tuple[int, ...], merged: tuple[tuple[int, int], ...]
) -> None:
    assert merge_dimensions(shape, steps) == merged


def test_views_that_show_the_same_in_the_same_order_are_read_alike() -> None:
    part = torch.zeros(4, 6, 12)[..., 4:8]
    layouts = [layout_of(view, 0) for view in (part, part.view(4, 6, 2, 2), part.transpose(0, 1))]
    assert layouts[0].as_read == layouts[1].as_read != layouts[2].as_read
