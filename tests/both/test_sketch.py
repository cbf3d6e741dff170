"""One tensor has one sketch: in PyTorch, in MindSpore and by numpy."""

from __future__ import annotations

import mindspore
import numpy as np
import pytest
import torch

from tensorprobe.capture.mindspore.reader import MindSporeReader
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.store.sketch import BLOCK, sketch_array


@pytest.mark.parametrize("kind", ["float32", "float16", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(5,), (30, 40), (3, 7, 2000), (BLOCK, 70)], ids=str)
def test_both_frameworks_give_a_tensor_the_sketch_that_numpy_computes(shape: tuple[int, ...], kind: str) -> None:
    array = (np.random.default_rng(1).normal(size=shape) * 5).astype(kind)
    leaves = (
        TorchReader(has_stats=True, digest_kind=None).read(torch.from_numpy(array.copy()), None),
        MindSporeReader(has_stats=True, digest_kind=None).read(mindspore.Tensor(array), None),
    )
    for leaf in leaves:
        assert leaf.value.stats is not None
        size = float(np.linalg.norm(array.astype(np.float64)))
        assert leaf.value.stats.sketch == pytest.approx(sketch_array(array), abs=1e-6 * size)


def test_bfloat16_too() -> None:
    array = np.random.default_rng(2).normal(size=(60, 70)).astype(np.float32)
    by_torch = TorchReader(has_stats=True, digest_kind=None).read(torch.from_numpy(array).bfloat16(), None)
    by_mindspore = MindSporeReader(has_stats=True, digest_kind=None).read(
        mindspore.Tensor(array, mindspore.bfloat16), None
    )
    assert by_torch.value.stats is not None and by_mindspore.value.stats is not None
    assert by_torch.value.stats.sketch == pytest.approx(by_mindspore.value.stats.sketch, abs=1e-4)
