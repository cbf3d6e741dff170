"""Why there is nothing to draw, in the words of who trained the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.errors import DumpError
from tensorprobe.serve.tensor_source import TensorSource
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import tensor, write_rank

NAME = "Functional.linear.0.backward"


def _ask(folder: Path, name: str) -> str:
    record = {"input": [tensor()], "output": [tensor(), {"type": "NoneType", "value": None}]}
    write_rank(folder / "step0" / "rank", {NAME: record})
    source = TensorSource(open_dump(folder))
    (rank,) = source.dump.ranks()
    with pytest.raises(DumpError) as caught:
        source.open_value(rank, name)
    return str(caught.value)


def test_a_gradient_that_is_none_is_called_so(tmp_path: Path) -> None:
    text = _ask(tmp_path, f"{NAME}.output.1")
    assert text.startswith(f"{NAME}.output.1 is None: there is no gradient here")
    assert "no tensor" not in text


def test_a_name_that_was_not_recorded_is_called_so(tmp_path: Path) -> None:
    assert _ask(tmp_path, f"{NAME}.output.7") == f"{NAME}.output.7 was not recorded in step0/rank."
