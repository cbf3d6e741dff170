"""Tensors that were saved, and those that were not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorprobe.run.saved_tensor import open_saved
from tensorprobe.run.step import read_run
from tensorprobe.store.reader import open_dump
from tests.serve.recorded import NAME, VALUES, write_run


def test_a_saved_tensor_is_opened_and_one_that_was_not_saved_is_none(tmp_path: Path) -> None:
    (rank,) = open_dump(write_run(tmp_path)).ranks()
    given, result = read_run(rank).by_name[NAME].tensors
    assert open_saved(rank, given) is None
    opened = open_saved(rank, result)
    assert opened is not None
    np.testing.assert_array_equal(opened, VALUES)


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY", b"not a tensor"])
def test_a_file_that_is_gone_or_damaged_is_none(tmp_path: Path, content: bytes | None) -> None:
    (rank,) = open_dump(write_run(tmp_path)).ranks()
    file = rank.folder / "dump_tensor_data" / f"{NAME}.output.0.npy"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert open_saved(rank, read_run(rank).by_name[NAME].tensors[1]) is None
