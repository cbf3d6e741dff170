"""One window around a piece of a program, and the dump that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from tests.capture.mindspore.dump import DumpOnDisk, only_step
from tests.capture.mindspore.training import open_session


def record(folder: Path, work: Callable[[], Any], model: Any = None, **options: Any) -> DumpOnDisk:
    """Run `work` while it is recorded; at L1 unless another level is given."""
    session = open_session(folder, **{"level": "L1", **options})
    session.start(model)
    try:
        work()
    finally:
        session.stop()
        session.close()
    return only_step(folder)


def forward_names(dump: DumpOnDisk) -> list[str]:
    """What was called, in this order, without the word that all of them have."""
    return [name.removesuffix(".forward") for name in dump.records if name.endswith(".forward")]


def float_tensor(*shape: int) -> Tensor:
    """Numbers between -1 and 1 that are not the same everywhere."""
    size = int(np.prod(shape))
    return Tensor((np.arange(size, dtype=np.float32).reshape(shape) - size / 3) / size)
