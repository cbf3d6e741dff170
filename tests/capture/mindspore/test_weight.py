"""Checkpoints of MindSpore as it writes them, and as somebody else may have."""

from __future__ import annotations

from pathlib import Path

import mindspore
import numpy as np
import pytest

from tensorprobe.capture.mindspore.weight import read_file
from tensorprobe.errors import TensorprobeError
from tests.store.test_checkpoint_file import GOOD, weight


@pytest.mark.parametrize("options", [{}, {"crc_check": True}, {"append_dict": {"epoch": 3, "name": "x"}}])
def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path, options: dict[str, object]) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    mindspore.save_checkpoint([{"name": "a", "data": mindspore.Tensor(array)}], str(tmp_path / "a.ckpt"), **options)
    stored = next(one for one in read_file(tmp_path / "a.ckpt") if one.weight.name == "a")
    np.testing.assert_array_equal(stored.read(), array)


@pytest.mark.parametrize(
    "content",
    [
        weight("a", (1,) * 200_000, bytes(4)),
        weight("a", (1 << 62,), bytes(4)),
        weight("a", (3,), bytes(4)),
        GOOD[:-2],
        b"\x80\x02.",
        b"",
    ],
)
def test_a_file_that_lies_is_one_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(TensorprobeError, match=r"a\.ckpt"):
        read_file(tmp_path / "a.ckpt")
