"""How tensors lie in memory: each way is made once, and let go of when nobody holds it."""

from __future__ import annotations

import torch

from tensorprobe.capture.torch import layout
from tensorprobe.capture.torch.layout import forget_written, layout_of


def test_the_places_of_what_was_written_to_do_not_grow_for_ever() -> None:
    memory = torch.zeros(100_000)
    for step in range(300):
        for number in range(100):
            part = memory[step * 100 + number :][:10]
            part.add_(1)
            layout_of(part, part._version)
        forget_written()
    assert len(layout._places) < 20_000
