"""Nothing captured is lost, whatever way a program ends; after SIGKILL, nothing but the last moments."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.recover import recover_dump
from tests.integration.script import PREAMBLE, messages, run_script

# The script of the manual for single points, with the import changed.
SINGLE_POINT = """
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.pytorch import PrecisionDebugger, seed_all
debugger = PrecisionDebugger(dump_path="dump_path", level="debug")

class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features=8, out_features=4)
        self.linear_2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x):
        x1 = self.linear_1(x)
        x2 = self.linear_2(x1)
        debugger.save(x2, "x2", save_backward=True)
        r1 = F.relu(x2)
        return r1

if __name__ == "__main__":
    module = ModuleOP()

    x = torch.randn(10, 8)
    out = module(x)
    loss = out.sum()
    loss.backward()
"""

# Leaves in the middle of a step: after a forward, in the second one, before any backward.
MIDDLE = (
    PREAMBLE
    + """
debugger = PrecisionDebugger(dump_path="dump", level=sys.argv[2], task="tensor")

def leave(*_):
    debugger.save(x, "last")
    {
        "exception": lambda: 1 / 0,
        "exit": lambda: sys.exit(3),
        "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "sigint": lambda: os.kill(os.getpid(), signal.SIGINT),
    }[sys.argv[1]]()
    import time
    time.sleep(30)  # the signal has ended the program before

debugger.start(model)
model(x)
model[2].register_forward_pre_hook(leave)
model(x)
"""
)

CODES = {"exception": 1, "exit": 3, "sigterm": -signal.SIGTERM, "sigint": -signal.SIGINT}
ENDINGS = {
    "exception": "ZeroDivisionError: division by zero",
    "exit": None,  # the program's own decision
    "sigterm": "SIGTERM",
    "sigint": "KeyboardInterrupt",
}


def only_rank(folder: Path) -> RankDump:
    ranks = list(open_dump(folder).ranks())
    assert len(ranks) == 1
    return ranks[0]


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".tmp"))]


def test_the_script_of_the_manual_leaves_a_complete_debug_json(tmp_path: Path) -> None:
    run_script(tmp_path, SINGLE_POINT)
    rank = only_rank(tmp_path / "dump_path")
    assert rank.name == "step0/rank" and rank.is_complete and not parts(tmp_path)
    assert [saved.name for saved in rank.saved_values()] == ["x2.0.debug", "x2_grad.0.debug"]
    assert [path.name for path in rank.folder.iterdir() if path.name != "run.json"] == ["debug.json"]


@pytest.mark.parametrize("way", CODES)
def test_a_program_that_ends_in_the_middle_of_a_step_leaves_whole_files_and_how_it_ended(
    way: str, tmp_path: Path
) -> None:
    run_script(tmp_path, MIDDLE, way, "mix", code=CODES[way])
    rank = only_rank(tmp_path / "dump")
    assert not parts(tmp_path) and not rank.problems and recover_dump(tmp_path / "dump") == []
    assert rank.run.get("ended") == ENDINGS[way] and rank.is_complete == (way == "exit")
    names = [record.name for record in rank.records()]
    assert {"Module.Sequential.forward.0", "Module.0.Linear.forward.1", "Functional.relu.1.forward"} <= set(names)
    assert [saved.name for saved in rank.saved_values()] == ["last.0.debug"]
    assert set(rank.parents) == set(names)
    files = [slot.data_name for record in rank.records() for slot in record.slots() if hasattr(slot, "data_name")]
    assert files and all(rank.tensor_path(name).exists() for name in files)


@pytest.mark.parametrize("way", ["exception", "exit"])
def test_the_calls_that_were_running_are_marked_as_failed(way: str, tmp_path: Path) -> None:
    run_script(tmp_path, MIDDLE, way, "L0", code=CODES[way])
    records = only_rank(tmp_path / "dump").records()
    failed = {record.name: record.fields["failed"] for record in records if "failed" in record.fields}
    reason = "ZeroDivisionError: division by zero" if way == "exception" else "SystemExit: 3"
    assert failed == {"Module.2.Linear.forward.1": reason, "Module.Sequential.forward.1": reason}


def test_sigterm_outside_a_window_loses_nothing_either(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="dump", level="debug")
debugger.save(x, "x")
os.kill(os.getpid(), signal.SIGTERM)
"""
    run_script(tmp_path, PREAMBLE + script, code=-signal.SIGTERM)
    rank = only_rank(tmp_path / "dump")
    assert rank.run["ended"] == "SIGTERM" and not parts(tmp_path)
    assert [saved.name for saved in rank.saved_values()] == ["x.0.debug"]


def test_sigterm_in_a_backward_after_stop_loses_nothing(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="dump", level="L1")
debugger.start(model)
hidden = model[0](x)
loss = model[2](hidden).sum()
debugger.stop()
hidden.register_hook(lambda _: os.kill(os.getpid(), signal.SIGTERM))
loss.backward()
"""
    run_script(tmp_path, PREAMBLE + script, code=-signal.SIGTERM)
    rank = only_rank(tmp_path / "dump")
    assert rank.run["ended"] == "SIGTERM" and not parts(tmp_path)
    assert [record.name for record in rank.records()][-2:] == ["Tensor.sum.0.backward", "Functional.linear.1.backward"]


def test_the_programs_own_handler_of_sigterm_is_left_alone(tmp_path: Path) -> None:
    script = """
def handle(*_):
    print("mine")
    sys.exit(7)

signal.signal(signal.SIGTERM, handle)
debugger = PrecisionDebugger(dump_path="dump")
debugger.start(model)
model(x)
os.kill(os.getpid(), signal.SIGTERM)
"""
    ended = run_script(tmp_path, PREAMBLE + script, code=7)
    assert ended.stdout == "mine\n"
    assert only_rank(tmp_path / "dump").is_complete


def test_after_step_sigterm_is_handled_as_if_the_tool_were_not_there(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="dump")
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
debugger.start(model)
model(x)
debugger.stop()
debugger.step()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    run_script(tmp_path, PREAMBLE + script)


def test_an_exception_that_the_program_caught_does_not_end_the_run(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="dump", level="mix")
def fail(*_):
    raise ValueError("mine")
hook = model[2].register_forward_pre_hook(fail)
debugger.start(model)
try:
    model(x)
except ValueError as error:
    print(error)
hook.remove()
model(x)
debugger.stop()
"""
    assert run_script(tmp_path, PREAMBLE + script).stdout == "mine\n"
    rank = only_rank(tmp_path / "dump")
    records = {record.name: record for record in rank.records()}
    assert rank.is_complete and "ended" not in rank.run
    assert records["Module.Sequential.forward.0"].fields["failed"] == "ValueError: mine"
    assert "failed" not in records["Module.Sequential.forward.1"].fields
    assert rank.parents["Functional.linear.1.forward"] == "Module.0.Linear.forward.1"  # nothing is left open


CTRL_C = (
    PREAMBLE
    + """
from tensorprobe.store.writer import RankWriter

debugger = PrecisionDebugger(dump_path="dump", level="L1", task="tensor")
for step, method in enumerate(("append_records", "append_parents", "add_stack", "flush_stacks", "close")):
    undo = getattr(RankWriter, method)
    def interrupted(*args, **kwargs):
        setattr(RankWriter, method, undo)
        os.kill(os.getpid(), signal.SIGINT)
        return undo(*args, **kwargs)
    caught = 0
    try:
        debugger.start(model)
        for _ in range(300):  # more than one flush
            y = x.sin()
        setattr(RankWriter, method, interrupted)
        debugger.stop()
    except KeyboardInterrupt:
        caught = 1
    assert caught, method
    assert "dump.json" in os.listdir(f"dump/step{step}/rank"), method  # the stop was not broken off
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert torch._C._len_torch_function_stack() == 0, method
    debugger.step()
"""
)


def test_ctrl_c_in_the_middle_of_a_flush_is_answered_after_it_and_nothing_is_lost(tmp_path: Path) -> None:
    run_script(tmp_path, CTRL_C)
    ranks = list(open_dump(tmp_path / "dump").ranks())
    assert len(ranks) == 5 and all(rank.is_complete and not rank.problems for rank in ranks)
    for rank in ranks:
        assert [record.name for record in rank.records()] == [f"Tensor.sin.{index}.forward" for index in range(300)]
        assert all(rank.stack(f"Tensor.sin.{index}.forward") for index in range(300))


def test_ctrl_c_in_a_backward_that_the_program_catches_goes_on_with_the_next_step(tmp_path: Path) -> None:
    script = """
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
for step in range(2):
    debugger.start(model)
    hidden = model[0](x)
    hidden.register_hook(lambda _: os.kill(os.getpid(), signal.SIGINT) if step == 0 else None)
    try:
        model[2](hidden).sum().backward()
    except KeyboardInterrupt:
        print("caught")
    debugger.stop()
    debugger.step()
"""
    assert run_script(tmp_path, PREAMBLE + script).stdout == "caught\n"
    first, second = open_dump(tmp_path / "dump").ranks()
    assert first.is_complete and second.is_complete and not parts(tmp_path)
    assert "Functional.linear.0.backward" in {record.name for record in second.records()}


def test_a_process_that_was_forked_by_multiprocessing_writes_everything_when_it_ends(tmp_path: Path) -> None:
    script = """
import multiprocessing

def work(way):
    from tensorprobe.capture.context import capture
    run = capture(model, f"dump_{way}", level="L0")
    run.__enter__()  # and never out again
    model(x)
    if way == "exception":
        raise ValueError("mine")

context = multiprocessing.get_context("fork")
for way in ("end", "exception"):
    process = context.Process(target=work, args=(way,))
    process.start()
    process.join()
"""
    run_script(tmp_path, PREAMBLE + script)
    ended, failed = (only_rank(tmp_path / f"dump_{way}") for way in ("end", "exception"))
    assert ended.is_complete and failed.run["ended"] == "ValueError: mine" and not parts(tmp_path)
    assert [record.name for record in ended.records()] == [record.name for record in failed.records()] != []


KILLED = (
    PREAMBLE
    + """
from tensorprobe.capture import sink
sink.FLUSH_SECONDS = 1000  # only the number of records counts here
debugger = PrecisionDebugger(dump_path="dump", level="L1")
debugger.start(model)
for _ in range(int(sys.argv[1])):
    torch.sin(x)
if sys.argv[2] == "flushed":
    debugger._session._sink.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_sigkill_leaves_every_record_up_to_the_last_flush_and_none_after_it(tmp_path: Path) -> None:
    run_script(tmp_path, KILLED, "600", "", code=-signal.SIGKILL)
    rank = only_rank(tmp_path / "dump")
    assert {"dump.json.part", "construct.json.part", "stack.json.part"} <= set(parts(tmp_path))
    assert [record.name for record in rank.records()] == [f"Torch.sin.{index}.forward" for index in range(512)]
    assert not rank.problems and not rank.is_complete
    assert rank.run["pid"] > 0 and rank.run["complete"] is False
    assert "torch.sin(x)" in rank.stack("Torch.sin.511.forward")[0]


def test_sigkill_after_a_flush_loses_nothing(tmp_path: Path) -> None:
    run_script(tmp_path, KILLED, "7", "flushed", code=-signal.SIGKILL)
    assert len(list(only_rank(tmp_path / "dump").records())) == 7


def test_a_program_that_hangs_has_its_records_on_disk_after_a_moment(tmp_path: Path) -> None:
    script = """
import time
debugger = PrecisionDebugger(dump_path="dump", level="L1")
debugger.start(model)
torch.sin(x)
part = "dump/step0/rank/dump.json.part"
while not os.path.exists(part) or "Torch.sin.0.forward" not in open(part).read():
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_script(tmp_path, PREAMBLE + script, code=-signal.SIGKILL)
    assert [record.name for record in only_rank(tmp_path / "dump").records()] == ["Torch.sin.0.forward"]


def test_at_the_end_of_a_program_without_step_the_line_says_where_the_dump_is(tmp_path: Path) -> None:
    ended = run_script(tmp_path, SINGLE_POINT)
    folder = tmp_path / "dump_path" / "step0" / "rank"
    assert len(messages(ended)) == 1 and messages(ended)[0].endswith(f"in {folder}. Next: tensorprobe show {folder}")


def test_sigterm_ends_a_process_whose_main_thread_waits_in_cpp_with_its_dump_whole(tmp_path: Path) -> None:
    """A collective whose partner never comes: Python's own handler is never run."""
    text = """
import datetime, threading, time
import torch.distributed as dist
debugger = PrecisionDebugger(dump_path="dump", level="L1")
debugger.start()
torch.sin(torch.ones(3))
threading.Thread(target=lambda: (time.sleep(1), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
dist.TCPStore("127.0.0.1", 0, 2, True, datetime.timedelta(seconds=100), True)  # waits for a second process
"""
    run_script(tmp_path, PREAMBLE + text, code=-signal.SIGTERM)
    (rank,) = open_dump(tmp_path / "dump").ranks()
    assert rank.run["ended"] == "SIGTERM" and "Torch.sin.0.forward" in [record.name for record in rank.records()]
    assert not list((tmp_path / "dump").rglob("*.part"))
