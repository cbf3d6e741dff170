"""What a replay takes is known before it begins."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tensorprobe
from tensorprobe.replay import MemoryLimit, limit_memory, memory
from tensorprobe.replay.memory import estimate_memory, find_limit
from tensorprobe.replay.program import read_program
from tensorprobe.replay.truth import find_truths
from tensorprobe.store.reader import open_dump
from tests.cli.command import run_here
from tests.replay.program import PROGRAMS, Step, make_program, record


class LiveBytes(TorchDispatchMode):
    """Counts what is alive: each storage from where it is first seen until it is given back."""

    def __init__(self) -> None:
        super().__init__()
        self._live: set[int] = set()
        self._now = self.peak = 0

    def _see(self, tree: Any) -> None:
        if isinstance(tree, (list, tuple)):
            for item in tree:
                self._see(item)
        elif isinstance(tree, torch.Tensor) and tree.untyped_storage()._cdata not in self._live:
            storage = tree.untyped_storage()
            self._live.add(storage._cdata)
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, address: int, size: int) -> None:
        self._now -= size
        self._live.discard(address)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._see(args)
        output = func(*args, **(kwargs or {}))
        self._see(output)
        return output


def make_layers(dtype: torch.dtype, rows: int) -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    blocks = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    model, x = nn.Sequential(*blocks).to(dtype), torch.randn(rows, 64).to(dtype)
    return model, lambda: model(x).square().mean()


def make_encoder() -> tuple[nn.Module, Step]:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
    x = torch.randn(4, 32, 32)
    return model, lambda: model(x).square().mean()


MADE = {
    **{name: lambda name=name: make_program(name) for name in PROGRAMS},
    "layers": lambda: make_layers(torch.float32, 256),
    "layers in bfloat16": lambda: make_layers(torch.bfloat16, 256),
    "mostly parameters": lambda: make_layers(torch.float32, 4),
    "encoder": make_encoder,
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_estimated_is_what_is_taken(name: str, tmp_path: Path) -> None:
    program = read_program(next(open_dump(record(tmp_path, *MADE[name]())).ranks()))
    estimated = estimate_memory(program).peak_bytes
    with LiveBytes() as live:
        find_truths([program], torch.device("cpu"))
    assert 0.7 < estimated / live.peak < 1.5


def change_dump(folder: Path, change: Any) -> Path:
    path = folder / "step0" / "rank" / "dump.json"
    content = json.loads(path.read_text())
    change(content["data"])
    path.write_text(json.dumps(content))
    return folder


def claim(shape: list[int]) -> Any:
    def change(records: dict[str, Any]) -> None:
        name = next(name for name in records if name.startswith("Functional.linear") and name.endswith(".forward"))
        records[name]["output"][0]["shape"] = shape

    return change


def test_a_replay_that_takes_more_than_there_is_ends_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = change_dump(record(tmp_path, *make_program("router")), claim([10**6, 10**4]))
    monkeypatch.setattr(memory, "find_available_bytes", lambda device: 8 << 30)
    monkeypatch.setattr(memory, "count_file_bytes", lambda rank: 1 << 40)
    monkeypatch.setattr("tensorprobe.replay.truth.find_truths", lambda *_: pytest.fail("it began"))
    done = run_here(capsys, "truth", folder)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "Replaying step0/rank would take" in said and "GiB of memory, most of it at" in said
    assert "and 8.0 GiB is the limit here. Replay it on a machine or a device with more memory" in said


def test_a_small_dump_may_not_take_much_unless_the_user_says_so(tmp_path: Path) -> None:
    rank = next(open_dump(record(tmp_path, *make_program("router"))).ranks())
    assert find_limit([rank], 1 << 50) == 1 << 30
    assert find_limit([rank], 1 << 20) == 1 << 20
    assert find_limit([rank], 1 << 50, 5 << 30) == 5 << 30


def test_ranks_that_run_together_share_what_there_is(tmp_path: Path) -> None:
    programs = [
        read_program(next(open_dump(record(tmp_path / name, *make_program("router"))).ranks())) for name in ("a", "b")
    ]
    own = estimate_memory(programs[0]).peak_bytes
    enough, too_little = (MemoryLimit(factor * own / 2**30) for factor in (2.5, 1.5))
    limit_memory(programs[:1], torch.device("cpu"), too_little)
    with pytest.raises(tensorprobe.DumpError, match=r"Replaying step0/rank … rank together would take .* of memory"):
        limit_memory(programs, torch.device("cpu"), too_little)
    limit_memory(programs, torch.device("cpu"), enough)
    assert [program.limit_bytes for program in programs] == [pytest.approx(1.5 * own, abs=2)] * 2
    assert find_limit([program.rank for program in programs], 1 << 50) == 2 << 30


def test_files_with_several_names_count_once(tmp_path: Path) -> None:
    rank = next(open_dump(record(tmp_path, *make_program("router"))).ranks())
    names = list((rank.folder / "dump_tensor_data").iterdir())
    sizes = {path.stat().st_ino: path.stat().st_size for path in names}
    assert len(sizes) < len(names) and memory.count_file_bytes(rank) == sum(sizes.values())


def test_a_replay_that_takes_much_says_so_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = record(tmp_path, *make_program("router"))
    assert "of memory" not in run_here(capsys, "truth", folder).stderr
    monkeypatch.setattr(memory, "TOLD_BYTES", 1 << 10)
    assert "note: replaying step0/rank will take about 0.0 GiB of memory" in run_here(capsys, "truth", folder).stderr


def test_the_limit_is_a_number_of_gib(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path, *make_program("router"))
    assert run_here(capsys, "truth", folder, "--memory", "2").returncode == 0
    done = run_here(capsys, "truth", folder, "--memory", "0.00000001")
    assert done.returncode == 2 and "say so with --memory GIB" in done.stderr
    for wrong in ("0", "-1", "nan", "inf"):
        done = run_here(capsys, "truth", folder, "--memory", wrong)
        assert done.returncode == 2 and "is not a number of GiB" in done.stderr
    with pytest.raises(tensorprobe.UsageError, match="is not a number of GiB: write one larger than 0, such as 16"):
        tensorprobe.truth(folder, memory=0)


def test_memory_that_the_dump_calls_shared_counts_as_it_is(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    x = torch.randn(512, 64)

    def step() -> torch.Tensor:
        values = [model(x) + number for number in range(16)]
        return torch.stack(values).sum()

    def share(records: dict[str, Any]) -> None:
        for fields in records.values():
            for leaf in fields.get("output", ()):
                if isinstance(leaf, dict) and "storage" in leaf:
                    leaf["storage"] = 7

    program = read_program(next(open_dump(change_dump(record(tmp_path, model, step), share)).ranks()))
    program.limit_bytes = 4 << 20
    with pytest.raises(tensorprobe.DumpError, match=r"takes more than 0\.0 GiB of memory, the limit here"):
        find_truths([program], torch.device("cpu"))
