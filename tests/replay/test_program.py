"""A program is a view of the calls of a step: nothing is read or parsed a second time."""

from __future__ import annotations

from pathlib import Path

from tensorprobe.replay.program import read_program
from tensorprobe.run.step import read_run
from tensorprobe.store.reader import open_dump
from tests.report.dump_files import model_parents, model_records, write_rank


def test_a_program_is_made_of_the_calls_of_its_run(tmp_path: Path) -> None:
    write_rank(tmp_path / "step0" / "rank", model_records(), model_parents())
    (rank,) = open_dump(tmp_path).ranks()
    program, run = read_program(rank), read_run(rank)
    assert list(program.run.by_name) == list(run.by_name)
    for operation in program.walk():
        assert operation.call is program.run.by_name[operation.name]
        assert operation.call.slots == run.by_name[operation.name].slots
    assert program.gradient_position("Functional.linear.0.backward") == 6
    assert [(operation.name, operation.backward_name in program.gradients) for operation in program.calls()] == [
        ("Functional.linear.0.forward", True),
        ("Torch.log.0.forward", False),
        ("Functional.mse_loss.0.forward", False),
        ("Tensor.add_.0.forward", False),
    ]
