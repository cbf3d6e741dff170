"""Dumps that no run wrote: they are recovered, or left as they were."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.errors import DumpError
from tensorprobe.store.reader import open_dump
from tensorprobe.store.recover import recover_dump
from tests.length import count_examples
from tests.report.dump_files import HEADER, RUN, model_records, tensor, write_killed_rank, write_lines
from tests.store.test_recover import names, snapshot, touch, with_files


@pytest.mark.parametrize(
    "line",
    [
        '["call", [1], "x"]',
        '["stack", [1], ["x"]]',
        '["stack", {}, ["x"]]',
        '["stack", 1, "text"]',
        '["stack", 1, 2]',
        '["call", 1, 2]',
        '["call", 1.5, "x"]',
        '["call", NaN, "x"]',
        '["other", 1, "x"]',
        '["call", 1]',
        "{}",
        "3",
        '"abc"',
        '["call", ' + "9" * 5_000 + ', "x"]',
    ],
)
def test_a_spoilt_line_of_the_stacks_is_left_out_and_the_recovery_finished(tmp_path: Path, line: str) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "stack.json.part").write_text(f'["stack", 1, ["good"]]\n{line}\n["call", 1, "a.0.forward"]\n')
    assert next(open_dump(tmp_path).ranks()).problems[-1] == "stack.json.part: 1 line cannot be read"
    recover_dump(tmp_path)
    assert json.loads((tmp_path / "stack.json").read_text()) == {"0": [["a.0.forward"], ["good"]]}
    assert not list(tmp_path.glob("*.part"))


def test_a_stack_of_many_frames_is_kept_once_for_all_its_calls(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, model_records())
    lines = [
        json.dumps(["stack", 1, ["x"] * 20_000]),
        *(json.dumps(["call", 1, f"a.{n}.forward"]) for n in range(20_000)),
    ]
    (tmp_path / "stack.json.part").write_text("\n".join(lines) + "\n")
    rank = next(open_dump(tmp_path).ranks())
    assert rank.stack("a.0.forward") is rank.stack("a.19999.forward")
    recover_dump(tmp_path)
    (group,) = json.loads((tmp_path / "stack.json").read_text()).values()
    assert [len(part) for part in group] == [20_000, 20_000]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [600, 3_000, 100_000])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dump.json.part", HEADER + '\n"Torch.sin.0.forward": {"input_args": %s},\n'),
        ("debug.json.part", HEADER + '\n"x.0.debug": {"a": %s},\n'),
        ("dump.json.part", HEADER.replace("null", "%s") + "\n"),
        ("construct.json.part", '{\n"Torch.sin.0.forward": %s,\n'),
        ("stack.json.part", '["stack", 0, %s]\n'),
    ],
)
def test_what_is_nested_beyond_all_reason_is_refused_and_left_as_it_was(
    tmp_path: Path, name: str, content: str, depth: int
) -> None:
    write_killed_rank(tmp_path / "step0" / "rank0", with_files("a.pt"))
    folder = write_killed_rank(tmp_path / "step0" / "rank1", with_files("a.pt"))
    touch(folder, "a.pt", "lost.pt", ".b.pt.tmp")
    (folder / name).write_text(content % nested(depth))
    before = snapshot(tmp_path)
    with pytest.raises(DumpError, match=f"{name} is nested too deeply to be a dump"):
        recover_dump(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("depth", [600, 3_000, 100_000])
def test_a_run_file_that_is_nested_beyond_all_reason_is_left_as_it_is(tmp_path: Path, depth: int) -> None:
    write_killed_rank(tmp_path, model_records())
    (tmp_path / "run.json").write_text(f'{{"coverage": {nested(depth)}}}')
    (done,) = recover_dump(tmp_path)
    assert done.actions[0] == "run.json: cannot be read, left as it is"


def test_what_is_nested_as_deeply_as_a_dump_can_be_is_recovered(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, {"Torch.sin.0.forward": {"input_args": json.loads(nested(490))}})
    (tmp_path / "run.json").write_text(f'{{"coverage": {nested(490)}}}')
    recover_dump(tmp_path)
    assert next(open_dump(tmp_path).ranks()).record_count == 1


@pytest.mark.parametrize("name", ["dump.json", "construct.json", "stack.json", ".run.json.tmp", ".dump.json.tmp"])
def test_a_folder_where_a_file_has_to_go_is_refused_and_nothing_changed(tmp_path: Path, name: str) -> None:
    write_killed_rank(tmp_path, with_files("a.pt"))
    touch(tmp_path, "a.pt", "lost.pt", ".b.pt.tmp")
    (tmp_path / name).mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(DumpError, match=f"{name} is a folder, and a file has to go there. Move it out"):
        recover_dump(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", ["folder", "link", "loop", "link to nothing", "pipe"])
def test_whatever_lies_in_the_place_of_a_lock_the_dump_is_recovered(tmp_path: Path, kind: str) -> None:
    folder = write_killed_rank(tmp_path / "dump" / "step0" / "rank", model_records())
    lock = tmp_path / "dump" / ".rank.lock"
    (tmp_path / "outside").write_text("precious")
    targets = {"link": tmp_path / "outside", "loop": lock, "link to nothing": tmp_path / "nothing"}
    if kind in targets:
        lock.symlink_to(targets[kind])
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    assert recover_dump(tmp_path / "dump")[0].folder == folder
    assert not list(folder.glob("*.part"))
    assert (tmp_path / "outside").read_text() == "precious" and not (tmp_path / "nothing").exists()


def test_folders_that_are_called_like_files_stay(tmp_path: Path) -> None:
    write_killed_rank(tmp_path, with_files("a.pt"))
    folder = touch(tmp_path, "a.pt", "lost.pt")
    (folder / "folder.pt").mkdir()
    (folder / ".folder.pt.tmp").mkdir()
    recover_dump(tmp_path)
    assert names(folder) == [".folder.pt.tmp", "a.pt", "folder.pt"]


@pytest.mark.parametrize("target", ["outside", "rank1", "loop"])
def test_nothing_is_removed_behind_a_link(tmp_path: Path, target: str) -> None:
    folder = write_killed_rank(tmp_path / "dump" / "step0" / "rank0", with_files("a.pt"))
    places = {"outside": tmp_path / "outside", "rank1": tmp_path / "dump" / "step0" / "rank1", "loop": folder}
    places[target].mkdir(exist_ok=True)
    (places[target] / "precious.pt").touch()
    (places[target] / ".precious.pt.tmp").touch()
    (folder / "dump_tensor_data").symlink_to(
        folder / "dump_tensor_data" if target == "loop" else places[target], target_is_directory=True
    )
    recover_dump(tmp_path / "dump")
    assert (places[target] / "precious.pt").exists()
    assert not list(folder.glob("*.part"))


def test_a_complete_file_that_is_a_link_out_of_the_dump_is_not_opened(tmp_path: Path) -> None:
    folder = write_killed_rank(tmp_path / "dump", model_records())
    (tmp_path / "secret.json").write_text('{"data": {}}')
    (folder / "dump.json").symlink_to(tmp_path / "secret.json")
    before = snapshot(folder)
    with pytest.raises(DumpError, match="is a link that leads out of the dump"):
        recover_dump(folder)
    assert snapshot(folder) == before


HOSTILE_PIECES = [
    b"",
    b"[1]",
    b"{}",
    b"null",
    b"NaN",
    b"1e999",
    b"9" * 5_000,
    b"\xff",
    b"\0",
    b"[" * 600,
    b"\n",
    b'"',
    b"}}",
]


@settings(max_examples=count_examples(60), deadline=None)
@given(
    st.sampled_from(["dump.json.part", "construct.json.part", "stack.json.part", "debug.json.part", "run.json"]),
    st.floats(0, 1),
    st.integers(0, 30),
    st.sampled_from(HOSTILE_PIECES) | st.binary(max_size=4),
)
def test_a_damaged_dump_is_recovered_or_left_as_it_was(name: str, place: float, length: int, piece: bytes) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = write_killed_rank(Path(path) / "step0" / "rank", {**model_records(), **with_files("a.pt")})
        write_lines(folder / "debug.json.part", HEADER, {"x.0.debug": {"key": [tensor(data_name="x.npy")]}}, "")
        (folder / "run.json").write_text(json.dumps({**RUN, "complete": False}))
        touch(folder, "a.pt", "lost.pt", ".b.pt.tmp")
        content = (folder / name).read_bytes()
        at = int(place * len(content))
        (folder / name).write_bytes(content[:at] + piece + content[at + length :])
        before = snapshot(Path(path))
        try:
            recover_dump(path)
        except DumpError:
            assert snapshot(Path(path)) == before
        else:
            assert not list(folder.glob("*.part")) and recover_dump(path) == []
            assert isinstance(next(open_dump(path).ranks()).problems, tuple)
