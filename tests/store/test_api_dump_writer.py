"""The files of an api_dump: there with every flush, whole after every stop, and gone on with afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorprobe.model.record import Stats, TensorLeaf, Value
from tensorprobe.store.api_dump_layout import ApiDumpLayout, layout_of
from tensorprobe.store.api_dump_writer import ApiDumpWriter
from tensorprobe.store.folder import Folder
from tensorprobe.store.reader import open_dump
from tensorprobe.store.recover import recover_dump

HEADER = {"task": "statistics", "level": "api_dump", "framework": "pytorch", "dump_data_dir": None}
FRAME = "File net.py, line 8, in forward, \n y = self.fc(x)"


def make_writer(folder: Path, framework: str = "pytorch") -> ApiDumpWriter:
    return ApiDumpWriter(Folder(folder), {**HEADER, "framework": framework}, layout_of(framework))


def fields(dtype: str = "torch.float32") -> dict[str, Any]:
    return {"output": [TensorLeaf("torch.Tensor", dtype, (2,), None, Value(Stats(2.0, 1.0, 1.5, 2.2)))]}


def write(writer: ApiDumpWriter, name: str, dtype: str = "torch.float32") -> None:
    writer.append_records([(name, fields(dtype))])
    writer.add_stack(name, 0, [FRAME])
    writer.flush_stacks()


def info_lines(folder: Path, framework: str = "torch") -> list[str]:
    return [json.loads(line)[0] for line in (folder / f"{framework}_api_dump_info.pkl").read_text().splitlines()]


def test_every_flush_brings_whole_lines_and_every_close_whole_files(tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "rank0")
    writer.open({"complete": False})
    for index in range(3):
        write(writer, f"NN_Linear_{index}_forward")
        assert info_lines(tmp_path / "rank0")[-1] == f"NN_Linear_{index}_forward_output"
        writer.close({"complete": False}, is_finished=False)
        stacks = json.loads((tmp_path / "rank0" / "torch_api_dump_stack.json").read_text())
        assert stacks == {f"NN_Linear_{number}_forward": [FRAME] for number in range(index + 1)}
        (rank,) = open_dump(tmp_path).ranks()
        assert [record.name for record in rank.records()] == list(stacks)
        assert rank.stack("NN_Linear_0_forward") == (FRAME,)


def test_the_filter_may_change_between_two_windows(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    write(writer, "Torch_a_0_forward", "torch.int64")
    writer.is_filtered = False
    write(writer, "Torch_b_0_forward", "torch.int64")
    assert info_lines(tmp_path) == ["Torch_b_0_forward_output"]
    writer.close({}, is_finished=True)
    (rank,) = open_dump(tmp_path).ranks()
    assert rank.record_count == 2


def test_a_window_in_which_nothing_happened_leaves_nothing(tmp_path: Path) -> None:
    writer = ApiDumpWriter(Folder(tmp_path).child("rank0"), HEADER, layout_of("pytorch"))
    writer.open({})
    writer.append_records([])
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_a_killed_run_is_recovered(tmp_path: Path) -> None:
    folder = tmp_path / "rank0"
    writer = make_writer(folder)
    writer.open({"complete": False})
    write(writer, "NN_Linear_0_forward")
    write(writer, "NN_Linear_1_forward")
    writer.abandon()  # the process is gone
    with (folder / "torch_api_dump_info.pkl").open("a") as file:
        file.write('["NN_Linear_2_forw')
    (rank,) = open_dump(tmp_path).ranks()
    assert rank.record_count == 2 and rank.stack("NN_Linear_1_forward") == (FRAME,)
    recover_dump(tmp_path)
    assert json.loads((folder / "torch_api_dump_stack.json").read_text())["NN_Linear_1_forward"] == [FRAME]
    assert info_lines(folder) == ["NN_Linear_0_forward_output", "NN_Linear_1_forward_output"]
    assert not list(folder.glob("*.part"))


def test_a_second_framework_word_is_that_of_the_files() -> None:
    assert layout_of("pytorch") == ApiDumpLayout("torch")
    assert layout_of("mindspore").info_file == "mindspore_api_dump_info.pkl"
    assert layout_of("mindtorch").tensor_folder == "mindtorch_api_dump"
