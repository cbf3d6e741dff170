"""Files that the safetensors package wrote, as one side of a comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tensorprobe
from tensorprobe.errors import DumpError
from tensorprobe.store.reader import open_dump

save_file = pytest.importorskip("safetensors.torch").save_file


def tensors(scale: float = 1.0) -> dict[str, torch.Tensor]:
    given = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "Functional.relu.0.forward.input.0": given,
        "Functional.relu.0.forward.output.0": given.relu() * scale,
        "attention/scores": given.to(torch.bfloat16) * scale,
    }


def test_two_files_are_compared(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "good.safetensors")
    save_file(tensors(2.0), tmp_path / "bad.safetensors")
    assert tensorprobe.compare(tmp_path / "good.safetensors", tmp_path / "good.safetensors")
    result = tensorprobe.compare(tmp_path / "good.safetensors", tmp_path / "bad.safetensors")
    assert result.verdict.call is not None
    assert result.verdict.call.name == "Functional.relu.0.forward"
    assert result.ranks[0].bases == {"tensor": 3}


def test_a_folder_of_files_is_one_step(tmp_path: Path) -> None:
    items = list(tensors().items())
    for number, item in enumerate(items):
        save_file(dict([item]), tmp_path / f"{number}.safetensors")
    (rank,) = open_dump(tmp_path).ranks()
    assert [record.name for record in rank.records()] == ["Functional.relu.0.forward"]
    assert [saved.name for saved in rank.saved_values()] == ["attention/scores.0.debug"]


def test_a_file_stands_against_a_dump_of_ours(tmp_path: Path) -> None:
    given = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    with tensorprobe.capture(None, tmp_path / "run", level="L1", task="tensor"):
        torch.nn.functional.relu(given)
    save_file(tensors(), tmp_path / "other.safetensors")
    result = tensorprobe.compare(tmp_path / "run", tmp_path / "other.safetensors")
    (call,) = result.ranks[0].calls
    assert {value.slot for value in call.values if value.status == "equal"} >= {"input.0", "output.0"}


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "good.safetensors")
    content = (tmp_path / "good.safetensors").read_bytes()
    (tmp_path / "bad.safetensors").write_bytes(content[:20])
    with pytest.raises(DumpError, match="is cut off"):
        tensorprobe.compare(tmp_path / "good.safetensors", tmp_path / "bad.safetensors")


def test_a_name_with_a_slash_is_no_path(tmp_path: Path) -> None:
    save_file({"../../secret": torch.ones(2)}, tmp_path / "x.safetensors")
    (rank,) = open_dump(tmp_path / "x.safetensors").ranks()
    (saved,) = rank.saved_values()
    path = rank.tensor_path(saved.tree["data_name"])
    assert path == tmp_path / "x.safetensors" / "..%2F..%2Fsecret"
    with pytest.raises(DumpError, match="not one of a file"):
        rank.tensor_path("../x.safetensors/y")
    assert np.array_equal(tensorprobe.store.tensor_file.open_tensor(path), [1, 1])
