"""A dump of TroubleShooter itself, which has no dump.json, is read from its info file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.errors import DumpError
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.slot import TensorSlot

LINES = [
    ["NN_Conv2d_0_forward_input.0", 1, [], "torch.float32", [2, 3], [3.0, 1.0, 2.0]],
    ["NN_Conv2d_0_forward_output", 1, [], "torch.float32", [2, 2], [4.0, 0.0, 1.0]],
    ["Torch_split_0_forward_input.0", 1, [], "torch.float32", [2, 2], [4.0, 0.0, 1.0]],
    ["Torch_split_0_forward_input.1", 1, [], "<class 'int'>", [], [1, 1, 1]],
    ["Torch_split_0_forward_output.0", 1, [], "torch.float32", [1, 2], [4.0, 0.0, 1.0]],
    ["Torch_split_0_forward_output.1", 1, [], "torch.float32", [1, 2], [4.0, 0.0, 1.0]],
    ["NN_Conv2d_0_backward_input", 1, [], "torch.float32", [2, 2], [1.0, 1.0, 1.0]],
]


def write(folder: Path, lines: list[Any], word: str = "torch", suffix: str = "pkl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{word}_api_dump_info.{suffix}").write_text(text)
    return folder


def read(path: Path) -> RankDump:
    (rank,) = open_dump(path).ranks()
    return rank


@pytest.mark.parametrize("suffix", ["pkl", "csv"])
def test_its_records_are_those_of_the_lines(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "rank0", LINES, suffix=suffix)
    rank = read(tmp_path)
    assert rank.rank == 0 and rank.header["framework"] == "pytorch" and rank.is_complete and not rank.problems
    records = {record.name: list(record.slots()) for record in rank.records()}
    assert list(records) == ["NN_Conv2d_0_forward", "Torch_split_0_forward", "NN_Conv2d_0_backward"]
    assert [(slot.slot, slot.is_input) for slot in records["Torch_split_0_forward"]] == [
        ("input.0", True),
        ("input.1", True),
        ("output.0", False),
        ("output.1", False),
    ]
    (gradient,) = records["NN_Conv2d_0_backward"]
    assert (gradient.slot, gradient.is_input, gradient.shape, gradient.max) == ("input.0", True, (2, 2), 1.0)  # type: ignore[union-attr]
    assert rank.record("NN_Conv2d_0_forward").name == "NN_Conv2d_0_forward"


def test_the_framework_is_known_by_the_names_of_the_files(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a" / "rank0", LINES, "mindspore")).header["framework"] == "mindspore"
    assert read(write(tmp_path / "b" / "rank0", LINES, "mindtorch")).header["framework"] == "mindtorch"


def test_its_tensor_files_are_found_where_they_are(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank0", LINES)
    assert read(tmp_path).header["task"] == "statistics"
    tensors = folder / "torch_api_dump"
    tensors.mkdir()
    np.save(tensors / "NN_Conv2d_0_forward_output.npy", np.ones((2, 2), np.float32))
    rank = read(tmp_path)
    slots = {slot.slot: slot for slot in rank.record("NN_Conv2d_0_forward").slots()}
    assert slots["input.0"].data_name is None  # type: ignore[union-attr]
    data_name = slots["output.0"].data_name  # type: ignore[union-attr]
    assert rank.header["task"] == "tensor" and rank.tensor_path(data_name) == tensors / data_name  # type: ignore[arg-type]


def test_its_stacks_are_read_in_both_spellings(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank0", LINES)
    stacks = {"NN_Conv2d_0_forward_stack_info": ["File a.py, line 1, in f, \n x"], "Torch_split_0_forward": ["here", 3]}
    (folder / "torch_api_dump_stack.json").write_text(json.dumps(stacks, indent=4))
    rank = read(tmp_path)
    assert rank.stack("NN_Conv2d_0_forward") == ("File a.py, line 1, in f, \n x",)
    assert rank.stack("Torch_split_0_forward") == ("here",)


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    folder = write(tmp_path / "rank0", [LINES[0], {"a": 1}, ["LAYER"], 3, LINES[1]])
    with (folder / "torch_api_dump_info.pkl").open("a") as file:
        file.write('["NN_half')
    rank = read(tmp_path)
    assert rank.record_count == 1
    assert rank.problems == ("torch_api_dump_info.pkl: 4 lines cannot be read and are left out",)
    assert rank.dump_file is not None and rank.dump_file.has_bad_lines


def test_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "rank0"
    folder.mkdir()
    (folder / "torch_api_dump_info.pkl").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch stolen'\ntR.")
    assert read(tmp_path).record_count == 0
    assert not (tmp_path / "stolen").exists()


def test_a_link_out_of_the_dump_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(json.dumps(LINES[0]))
    folder = tmp_path / "dump" / "rank0"
    folder.mkdir(parents=True)
    (folder / "torch_api_dump_info.pkl").symlink_to(tmp_path / "secret")
    with pytest.raises(DumpError, match="leads out of the dump"):
        open_dump(tmp_path / "dump")


@given(st.binary(max_size=200))
def test_whatever_is_in_the_file_it_is_read_or_counted(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("dump")
    (folder / "torch_api_dump_info.pkl").write_bytes(data)
    assert read(folder).record_count == 0


def test_a_folder_of_tensors_that_is_a_link_is_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "NN_Conv2d_0_forward_output.npy").touch()
    folder = write(tmp_path / "dump" / "rank0", LINES)
    (folder / "torch_api_dump").symlink_to(tmp_path / "outside", target_is_directory=True)
    rank = read(tmp_path / "dump")
    assert rank.header["task"] == "statistics"
    assert not any(
        slot.data_name for slot in rank.record("NN_Conv2d_0_forward").slots() if isinstance(slot, TensorSlot)
    )
