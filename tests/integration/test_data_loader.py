"""The workers of a DataLoader, while a window is open: nothing is installed or written in them, and what their parent
records is complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tensorprobe.store.reader import open_dump
from tests.integration.script import messages, run_script

# A program that a spawned worker can import: what is not guarded runs in the worker too. Each item tells what its
# worker sees of the tool.
PROGRAM = """
import json, os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        value = nn.functional.relu(torch.full((4,), float(index)))
        tool = sys.modules.get("tensorprobe.capture.session")
        seen = {
            "pid": os.getpid(),
            "modes": torch._C._len_torch_function_stack(),
            "is_plain": type(net).__call__.__qualname__ == "Module._wrapped_call_impl" if tool else True,
            "has_handler": signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL,
            "open_files": [path for path in map(read_link, os.listdir("/proc/self/fd")) if is_of_dump(path)],
        }
        return value, json.dumps(seen)


def read_link(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""


def is_of_dump(path):
    # A tensor that another thread was writing at the moment of the fork is open too, and nobody writes to it here.
    return "/dump/" in path and not path.endswith((".pt", ".pt.tmp"))


net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

if __name__ == "__main__":
    from tensorprobe.pytorch import PrecisionDebugger

    how, is_persistent = sys.argv[1], sys.argv[2] == "persistent"
    loader = DataLoader(
        Data(), batch_size=2, num_workers=1, multiprocessing_context=how, persistent_workers=is_persistent
    )
    debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
    for _ in range(2):
        debugger.start(net)
        for batch, seen in loader:
            net(batch).sum().backward()
            for one in seen:
                print(one)
        debugger.stop()
        debugger.step()
    print(json.dumps({"parent": os.getpid()}))
"""


@pytest.mark.parametrize(
    ("how", "life"),
    [
        ("fork", "new in every epoch"),
        pytest.param("fork", "persistent", marks=pytest.mark.long),
        pytest.param("spawn", "new in every epoch", marks=pytest.mark.long),
        ("spawn", "persistent"),
    ],
)
def test_workers_that_start_in_a_window_record_nothing_and_the_parents_records_are_complete(
    how: str, life: str, tmp_path: Path
) -> None:
    ended = run_script(tmp_path, PROGRAM, how, life)
    *seen, parent = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(seen) == 8 and parent["parent"] not in {one["pid"] for one in seen}
    assert len({one["pid"] for one in seen}) == (1 if life == "persistent" else 2)
    for one in seen:
        assert (one["modes"], one["is_plain"], one["has_handler"], one["open_files"]) == (0, True, False, [])
    ranks = list(open_dump(tmp_path / "dump").ranks())
    assert [rank.name for rank in ranks] == ["step0/rank", "step1/rank"]
    for rank in ranks:
        assert rank.is_complete and not rank.problems
        names = [record.name for record in rank.records()]
        assert [name for name in names if name.startswith("Module.Sequential.")] == [
            "Module.Sequential.forward.0",
            "Module.Sequential.backward.0",
            "Module.Sequential.forward.1",
            "Module.Sequential.backward.1",
        ]
        assert [name for name in names if "relu" in name and "forward" in name] == [
            "Functional.relu.0.forward",
            "Functional.relu.1.forward",
        ]
        files = [slot.data_name for record in rank.records() for slot in record.slots() if hasattr(slot, "data_name")]
        assert files and all(torch.load(rank.tensor_path(name), weights_only=True) is not None for name in files)
        assert rank.run["pid"] == parent["parent"] and not rank.run["coverage"]["failed"]
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0", "step1"]
    assert len(messages(ended)) == 3  # two steps, and what the first one wrote
