"""`tensorprobe.save` and `tensorprobe.save_grad` in a program for MSAdapter, whose tensors are MindSpore's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorprobe
from tensorprobe.capture import save_now
from tensorprobe.capture.numbered import NumberedFiles
from tests.msadapter.program import torch


def test_a_value_a_gradient_and_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    files = NumberedFiles()
    monkeypatch.setattr(save_now, "files", files)
    weight = torch.nn.Parameter(torch.ones(3))
    y = torch.ones(2, 3) * tensorprobe.save_grad("out/w", weight)
    tensorprobe.save("out/y", {"a": [y]})
    y = tensorprobe.save_grad("out/y", y)
    (y * y).sum().backward()
    with torch.no_grad():
        tensorprobe.save_grad("out/z", y)
    files.close()
    names = sorted(path.name for path in Path("out").iterdir())
    assert names == ["0_y.a.0.npy", "1_y_backward.npy", "2_w_backward.npy"]
    assert np.array_equal(np.load("out/1_y_backward.npy"), np.full((2, 3), 2.0))
    assert np.array_equal(np.load("out/2_w_backward.npy"), np.full(3, 4.0))
    assert "save_grad('z'): the tensor needs no gradient here" in caplog.text
