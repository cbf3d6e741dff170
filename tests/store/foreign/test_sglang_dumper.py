"""Dumps as SGLang's newer dumper writes them (srt/debug_utils/dumper.py): its files are written here by a few lines
that follow its source, with torch.save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from tensorprobe.store.reader import open_dump


class Writer:
    """One rank."""

    def __init__(self, folder: Path, rank: int = 0, first: str = "step") -> None:
        self.folder, self.rank, self.first = folder / "dump_1700000000", rank, first
        self.step = self.index = 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def dump(self, name: str, value: Any, **tags: Any) -> None:
        self.index += 1
        told = {self.first: self.step, "rank": self.rank, "dump_index": self.index, "name": name}
        told |= {"recompute_status": "disabled", **tags}
        meta = {**told, "world_rank": self.rank, "sglang_parallel_info": {"tp_rank": self.rank, "tp_size": 2}}
        file = "___".join(f"{key}={value}" for key, value in told.items()) + ".pt"
        torch.save({"value": value, "meta": meta}, self.folder / file)


def write_run(folder: Path, scale: float = 1.0, ranks: int = 2) -> Path:
    for rank in range(ranks):
        writer = Writer(folder, rank)
        for step in range(2):
            writer.step = step
            for layer in range(2):
                hidden = torch.arange(6.0).reshape(2, 3) + layer
                writer.dump("hidden_states", hidden * (scale if layer else 1.0), layer_id=layer)
            writer.dump("pair", [torch.zeros(2), torch.ones(2)])
            writer.dump("seq_len", 7)
    return folder


def test_steps_ranks_and_values_are_read_by_their_tags(tmp_path: Path) -> None:
    dump = open_dump(write_run(tmp_path))
    assert [(one.step, one.rank) for one in dump.ranks()] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [saved.name for saved in next(dump.ranks()).saved_values()] == [
        "hidden_states[layer_id=0].0.debug",
        "hidden_states[layer_id=1].0.debug",
        "pair[0].0.debug",
        "pair[1].0.debug",
    ]


def test_two_runs_are_compared_and_the_layer_is_named(tmp_path: Path) -> None:
    good, same = write_run(tmp_path / "good"), write_run(tmp_path / "same")
    assert tensorprobe.compare(good, same)
    found = tensorprobe.compare(good, write_run(tmp_path / "bad", scale=1.5))
    assert not found
    assert "hidden_states[layer_id=1]" in str(found)
    assert "hidden_states[layer_id=0]" not in found.verdict.headline


def test_what_hooks_have_dumped_are_inputs_and_outputs_of_modules(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    writer, x = Writer(tmp_path / "there"), torch.ones(2, 3)
    for name, module in model.named_children():
        writer.dump(f"non_intrusive__{name}.inputs.0", x)
        x = module(x).detach()
        writer.dump(f"non_intrusive__{name}.output", x)
    with tensorprobe.capture(model, tmp_path / "run", level="L0", task="tensor"):
        model(torch.ones(2, 3))
    found = tensorprobe.compare(tmp_path / "run", tmp_path / "there")
    equal = [value.slot for call in found.ranks[0].calls for value in call.values if value.status == "equal"]
    assert equal.count("output.0") == 2
    assert equal.count("input.0") == 2


def test_an_older_file_holds_the_tensor_itself(tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "forward_pass_id=4___rank=1___name=x___dump_index=1.pt")
    (rank,) = open_dump(tmp_path).ranks()
    assert (rank.step, rank.rank) == (4, 1)
    assert [saved.name for saved in rank.saved_values()] == ["x.0.debug"]


def test_one_file_is_one_value(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=1)
    file = next((tmp_path / "dump_1700000000").glob("step=1___*layer_id=1.pt"))
    (rank,) = open_dump(file).ranks()
    assert [saved.name for saved in rank.saved_values()] == ["hidden_states[layer_id=1].0.debug"]


def test_nothing_in_a_file_is_executed_and_the_others_are_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    writer = Writer(tmp_path)
    writer.dump("x", Trap())
    writer.dump("y", torch.ones(3))
    (rank,) = open_dump(tmp_path).ranks()
    first, second = (slot for saved in rank.saved_values() for slot in saved.slots())
    assert not (tmp_path / "sprung").exists()
    assert "is damaged" in first.reason
    assert second.shape == (3,)


def test_of_two_experiments_one_must_be_named(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "dump_1700000000").rename(tmp_path / "dump_1")
    write_run(tmp_path)
    with pytest.raises(tensorprobe.errors.DumpError):
        open_dump(tmp_path)
    assert len(list(open_dump(tmp_path / "dump_1").ranks())) == 4
