"""Dumps as SGLang's TensorDumper writes them. SGLang needs a GPU: its files are written here by a few lines that follow
its source (srt/debug_utils/tensor_dump_forward_hook.py), with real modules and torch.save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import tensorprobe
from tensorprobe.store.reader import open_dump


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 6)
        self.down = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(Inner(), Inner())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def make_model() -> Outer:
    torch.manual_seed(0)
    return Outer()


def write_dump(folder: Path, model: Outer, passes: int = 2, rank: int = 0) -> None:
    process = folder / f"TP{rank}_PP0_Rank{rank}_pid4711"
    process.mkdir(parents=True)
    current: dict[str, Any] = {}

    def keep(name: str) -> Any:
        return lambda module, given, result: current.update({name: result.detach().cpu()})

    for name, module in model.named_modules():
        if name and not list(module.children()):
            module.register_forward_hook(keep(name))
    for number in range(passes):
        current["model.forward_batch_info.input_ids"] = torch.arange(3)
        model(torch.full((3, 4), float(number + 1)))
        current["model.pair"] = [torch.zeros(2), torch.ones(2)]
        torch.save(dict(current), process / f"Pass{number:05d}.pt")


def test_passes_are_steps_and_processes_are_ranks(tmp_path: Path) -> None:
    for rank in range(2):
        write_dump(tmp_path, make_model(), rank=rank)
    dump = open_dump(tmp_path)
    assert [(one.step, one.rank) for one in dump.ranks()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    records = {record.name: record for record in next(dump.ranks()).records()}
    assert "Module.model.0.up.Module.forward.0" in records
    assert [saved.name for saved in next(dump.ranks()).saved_values()] == ["model.forward_batch_info.input_ids.0.debug"]
    assert [slot.slot for slot in records["Module.model.pair.Module.forward.0"].slots()] == ["output.0", "output.1"]


def test_two_dumps_are_compared(tmp_path: Path) -> None:
    write_dump(tmp_path / "good", make_model())
    write_dump(tmp_path / "same", make_model())
    wrong = make_model()
    with torch.no_grad():
        wrong.model[1].up.weight[0] *= 2
    write_dump(tmp_path / "bad", wrong)
    assert tensorprobe.compare(tmp_path / "good", tmp_path / "same")
    result = tensorprobe.compare(tmp_path / "good", tmp_path / "bad")
    assert result.verdict.call is not None
    assert result.verdict.call.name == "Module.model.1.up.Module.forward.0"


def test_a_dump_stands_against_one_of_ours(tmp_path: Path) -> None:
    model = make_model()
    with tensorprobe.capture(model, tmp_path / "run", level="L0", task="tensor"):
        model(torch.full((3, 4), 1.0))
    write_dump(tmp_path / "there", make_model(), passes=1)
    result = tensorprobe.compare(tmp_path / "run", tmp_path / "there")
    equal = {call.reference for call in result.ranks[0].calls for value in call.values if value.status == "equal"}
    assert len(equal) == 4
    assert result.verdict.headline.startswith("The runs agree")
