"""Numbered files: names, counts, folders, what is there when a process ends. The tensors are numpy's arrays here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.capture import save_now
from tensorprobe.capture.numbered import Content, LeafWatches, NumberedFiles, TensorKind
from tensorprobe.capture.save_now import save_grad_now
from tensorprobe.errors import UsageError
from tests.length import PATIENCE_SECONDS, wait_until

SOURCE = Path(__file__).parents[2] / "src"
Array = np.ndarray[Any, Any]


class Plain(np.ndarray):  # type: ignore[type-arg]
    """Stands for a tensor."""


def copy_content(tensor: Array) -> Content:
    if tensor.dtype == object:
        raise TypeError("no numbers")
    copy = np.array(tensor)
    return Content(copy.nbytes, lambda: copy)


PLAIN = TensorKind(
    types=(Plain,),
    differentiable=Plain,
    copy_content=copy_content,
    describe=lambda tensor: f"Plain({tensor.tolist()})",
    current_rank=lambda: None,
    takes_part=lambda: True,
    watch_gradient=lambda tensor, receive, leaves, name: False,
    finish=lambda: None,
)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., NumberedFiles]]:
    """A new process, as far as its files are concerned, with a kind of tensors."""
    monkeypatch.chdir(tmp_path)
    made: list[NumberedFiles] = []

    def begin(kind: TensorKind = PLAIN) -> NumberedFiles:
        for earlier in made:
            earlier.close()
        made.append(NumberedFiles())
        monkeypatch.setattr(save_now, "files", made[-1])
        monkeypatch.setattr(save_now, "loaded_kinds", lambda: [kind])
        return made[-1]

    begin()
    yield begin
    for files in made:
        files.close()


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """How large a file of this process may become: what is over it is refused in the middle, as by a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def plain(*numbers: float) -> Array:
    return np.array(numbers, float).view(Plain)


def save(*arguments: Any, **keywords: Any) -> None:
    save_now.save_now(*arguments, **keywords)


def saved(folder: str = "out") -> list[str]:
    save_now.files.drain()
    return sorted(path.name for path in Path(folder).rglob("*.npy")) if Path(folder).exists() else []


@pytest.mark.usefixtures("use")
def test_files_are_numbered_in_the_order_of_the_calls_over_all_folders() -> None:
    save("out/x", plain(1))
    save(Path("other") / "y.npy", plain(2))
    save("./out/x", plain(3))
    save("z", plain(4))
    assert saved() == ["0_x.npy", "2_x.npy"] and saved("other") == ["1_y.npy"] and saved(".")[-1] == "3_z.npy"
    assert np.load("out/2_x.npy").tolist() == [3]


@pytest.mark.usefixtures("use")
def test_nested_data_is_dotted_and_has_a_number_for_each_tensor() -> None:
    for number in range(4):
        save("out/x", plain(number))
    save("out/dd", {"k1": plain(1), "k2": [plain(2), (plain(3), None, "text", 4.0)]}, suffix="suf")
    assert saved()[4:] == ["4_dd.k1_suf.npy", "5_dd.k2.0_suf.npy", "6_dd.k2.1.0_suf.npy"]


@pytest.mark.usefixtures("use")
def test_what_is_saved_is_the_value_at_that_time() -> None:
    value = plain(1, 2)
    save("out/x", value)
    value[:] = 0
    saved()
    assert np.load("out/0_x.npy").tolist() == [1, 2]


@pytest.mark.usefixtures("use")
def test_a_tensor_that_cannot_be_read_is_said_once_and_leaves_no_hole(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        save("out/x", np.array([None]).view(Plain))
    save("out/y", plain(1))
    assert saved() == ["0_y.npy"]
    (record,) = caplog.records
    assert record.getMessage().startswith("x in out could not be written (TypeError: no numbers)")
    caplog.clear()
    save_now.files.close()
    assert caplog.records[0].getMessage() == "tensors that could not be saved in this process: 2"


@pytest.mark.usefixtures("use")
def test_printing_shows_the_name_without_a_number_and_takes_none(capsys: pytest.CaptureFixture[str]) -> None:
    save("out/pp", {"k": [plain(1)]}, "s", "print")
    save("out/x", plain(1))
    assert capsys.readouterr().out == "_TS_SAVE_NAME:pp.k.0_s Plain([1.0])\n"
    assert saved() == ["0_x.npy"]


@pytest.mark.usefixtures("use")
def test_data_without_a_tensor_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        save("out/x", [3.0, None])
    assert [record.getMessage() for record in caplog.records] == [
        "save('x'): there is no tensor in it, so nothing is saved"
    ]
    assert not Path("out").exists()


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: save("", plain(1)), "file ends in the name of the data, such as './out/dense', not ''"),
        (lambda: save("out/", plain(1)), "file ends in the name of the data, such as './out/dense', not 'out/'"),
        (lambda: save("out/.npy", plain(1)), "file ends in the name of the data"),
        (lambda: save(3, plain(1)), "file is a path, not 3"),
        (lambda: save(b"x", plain(1)), "file is a path, not b'x'"),
        (lambda: save("x", plain(1), 3), "suffix is a text or None, not 3"),
        (lambda: save("x", plain(1), None, "txt"), "output_mode is 'npy' or 'print', not 'txt'"),
        (lambda: save("x", 3), "data is a tensor of PyTorch or MindSpore, or a dict, list or tuple of them, not int"),
        (lambda: save("x", np.ones(1)), "or a dict, list or tuple of them, not ndarray"),
        (lambda: save_grad_now("x", [plain(1)]), r"save_grad\(.*data is a tensor of PyTorch or MindSpore, not list"),
    ],
)
def test_a_wrong_argument_is_an_error_that_says_so(call: Callable[[], None], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()
    assert saved(".") == []


def test_a_rerun_replaces_files_of_the_same_name_with_one_warning_that_names_what_is_there(
    use: Callable[..., NumberedFiles], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(11):
        save("out/x", plain(number))
    assert not caplog.records
    use()
    for number in range(2):
        save("out/x", plain(100 + number))
    save("out/y", plain(5))
    assert len(saved()) == 12 and np.load("out/1_x.npy").tolist() == [101] and np.load("out/2_x.npy").tolist() == [2]
    assert [record.getMessage() for record in caplog.records] == [
        f"{Path('out').absolute()} holds 11 .npy files of an earlier run (0_x.npy, 1_x.npy, 2_x.npy, 3_x.npy, 4_x.npy, "
        "…): files that get the same name now are replaced, the others stay"
    ]


def test_ranks_have_folders_of_their_own(use: Callable[..., NumberedFiles]) -> None:
    use(replace(PLAIN, current_rank=lambda: 3))
    save("out/x", plain(1))
    saved()
    assert [path.name for path in Path("out/rank3").iterdir()] == ["0_x.npy"]


def test_a_process_that_does_not_compute_saves_nothing(use: Callable[..., NumberedFiles]) -> None:
    use(replace(PLAIN, takes_part=lambda: False))
    save("out/x", plain(1))
    assert saved() == []


@pytest.mark.usefixtures("use")
def test_a_folder_that_cannot_be_made_is_said_once_and_the_program_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    Path("file").write_text("")
    for _ in range(3):
        save("file/out/x", plain(1))
    save("out/x", plain(1))
    assert saved() == ["0_x.npy"]
    (record,) = caplog.records
    assert record.getMessage().startswith("x in file/out could not be written (NotADirectoryError")


def test_no_link_below_the_folder_is_followed(
    use: Callable[..., NumberedFiles], caplog: pytest.LogCaptureFixture
) -> None:
    use(replace(PLAIN, current_rank=lambda: 3))
    Path("outside").mkdir()
    Path("mine").write_text("precious")
    Path("out").mkdir()
    Path("out/rank3").symlink_to(Path("outside").absolute())
    Path("out/.rank3.lock").symlink_to(Path("mine").absolute())
    save("out/x", plain(1))
    save_now.files.drain()
    assert not list(Path("outside").iterdir()) and Path("mine").read_text() == "precious"
    assert "out/rank3 is a link, and no link inside a dump_path is followed" in caplog.text


@pytest.mark.usefixtures("use")
def test_a_disk_that_takes_no_more_is_said_once_with_its_reason(
    caplog: pytest.LogCaptureFixture, file_limit: Callable[[int], None]
) -> None:
    file_limit(2**20)
    for _ in range(3):
        save("out/large", plain(*range(2**18)))
    save("out/small", plain(1))
    assert saved() == ["3_small.npy"]
    (record,) = caplog.records
    assert "(OSError: [Errno 27] File too large); training goes on" in record.getMessage()


@pytest.mark.usefixtures("use")
def test_threads_share_the_count_and_lose_nothing() -> None:
    threads = [threading.Thread(target=lambda: [save(f"out{n % 2}/x", plain(n)) for n in range(20)]) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = sorted(int(name.partition("_")[0]) for folder in ("out0", "out1") for name in saved(folder))
    assert numbers == list(range(100))


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(
    ("file", "name"), [("out/变 量+", "0_变 量+.npy"), ("out/a:b", "0_a%3Ab.npy"), ("out/" + "x" * 300, None)]
)
def test_names_may_hold_any_character_and_be_long(file: str, name: str | None) -> None:
    save(file, {"a/b": plain(1)})
    (found,) = saved()
    assert found == (name.replace(".npy", ".a%2Fb.npy") if name else found) and len(found) < 256


def test_writing_does_not_stall_and_each_file_appears_whole(use: Callable[..., NumberedFiles]) -> None:
    written = threading.Event()

    def slow(tensor: Array) -> Content:
        def array() -> Array:
            written.wait(PATIENCE_SECONDS)
            return np.array(tensor)

        return Content(tensor.nbytes, array)

    use(replace(PLAIN, copy_content=slow))
    for _ in range(3):
        save("out/x", plain(1))
    assert list(Path("out").glob("*.npy")) == []
    written.set()
    assert saved() == ["0_x.npy", "1_x.npy", "2_x.npy"]
    assert [path.name for path in Path("out").iterdir() if path.name.endswith(".tmp")] == []


def test_a_leaf_is_watched_once_for_each_call() -> None:
    leaves, undone = LeafWatches(), []
    watch = leaves.wait("w")
    assert watch is not None and leaves.wait("w") is None
    watch.undo = lambda: undone.append("w")
    assert watch.note_gradient()
    watch.end_if_done()
    assert undone == []
    assert watch.note_gradient() and not watch.note_gradient()
    watch.end_if_done()
    assert undone == ["w"] and leaves.wait("w") is not None


PROGRAM = """
import os, signal, sys, time
import numpy as np
from tests.capture.test_numbered import PLAIN, Plain
from tensorprobe.capture import save_now

save_now.loaded_kinds = lambda: [PLAIN]
def save(name):
    save_now.save_now(f"out/{name}", np.full(200_000, 7.0).view(Plain))

end = sys.argv[1]
for _ in range(20):
    save("x")
if end == "exit":
    sys.exit(3)
if end == "error":
    raise ValueError("the user's own")
if end == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
if end == "term":
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)
if end == "thread":  # that never stops
    import threading
    def go_on():
        while True:
            save("y")
    threading.Thread(target=go_on, daemon=True).start()
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(20)
if end == "late":
    import atexit
    atexit.register(save, "late")  # runs before ours
if end == "fork":
    if os.fork() == 0:
        save("child")
        save("child")
        os._exit(0)
    os.wait()
    save("parent")
"""


def run_program(folder: Path, end: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(SOURCE.parent)))}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, end],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [("quiet", 0), ("exit", 3), ("error", 1), ("interrupt", -signal.SIGINT), ("term", -signal.SIGTERM), ("late", 0)],
)
def test_everything_is_on_disk_when_the_process_ends(tmp_path: Path, end: str, code: int) -> None:
    process = run_program(tmp_path, end)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(names) == 20 + (end == "late")
    assert all(np.load(tmp_path / "out" / name).sum() == 1_400_000 for name in names)


def test_sigterm_ends_a_process_whose_threads_never_stop_to_save(tmp_path: Path) -> None:
    process = run_program(tmp_path, "thread")
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGTERM
    assert len(list((tmp_path / "out").glob("*_x.npy"))) == 20


def test_a_forked_child_counts_for_itself_and_overwrites_nothing(tmp_path: Path) -> None:
    process = run_program(tmp_path, "fork")
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    names = sorted(path.name for path in (tmp_path / "out").glob("*.npy"))
    assert len(names) == 21 and "20_parent.npy" in names
    (child,) = (tmp_path / "out").glob("proc*")
    assert sorted(path.name for path in child.iterdir()) == ["0_child.npy", "1_child.npy"]
    assert f"process {process.pid}, which is still running" in errors


def test_two_processes_at_once_do_not_share_a_folder(tmp_path: Path, use: Callable[..., NumberedFiles]) -> None:
    save("out/x", plain(1))
    process = run_program(tmp_path, "quiet")
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert [path.name for path in (tmp_path / "out").glob("*.npy")] == ["0_x.npy"]
    assert len(list((tmp_path / "out" / f"proc{process.pid}").iterdir())) == 20


@pytest.mark.usefixtures("use")
def test_a_file_comes_by_itself_and_no_further_call_is_needed() -> None:
    for number in range(5):
        save("out/x", plain(1))
        wait_until(Path(f"out/{number}_x.npy").exists)
