"""DDP, FSDP, tensor parallel and pipelines on 2 and 4 ranks: what a capture must not change, and what it records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorprobe import compare, truth
from tensorprobe.report.compare_summary import summarize
from tensorprobe.report.rank import build_rank_report
from tensorprobe.store.reader import open_dump
from tensorprobe.store.slot import TensorSlot
from tests.capture.torch.dump import DumpOnDisk
from tests.integration.distributed_worker import choose_captures
from tests.integration.torchrun import run_ranks
from tests.length import IS_LONG

WORKER = Path(__file__).with_name("distributed_worker.py")
ON_TWO = (
    *("plain", "ddp", "fsdp1", "fsdp1_flat", "fsdp2", "tensor_parallel", "pipeline"),
    *(("ddp_bucket_view",) if IS_LONG else ()),
)
ON_FOUR = ("ddp", "fsdp2", "two_dimensions") if IS_LONG else ("two_dimensions",)
BUCKET_VIEW = pytest.param("ddp_bucket_view", marks=pytest.mark.long)
POISONED = "fsdp2_poisoned"
"""Memory that nobody has written to holds NaN."""
WRAPPERS = ("_fsdp_wrapped_module.", "module.")


@dataclass
class Run:
    """What one launch left."""

    folder: Path
    ranks: int

    def observed(self, scenario: str, rank: int) -> dict[str, torch.Tensor]:
        """Without capture, by the names of the plain model."""
        observed = torch.load(self.folder / f"{scenario}.rank{rank}.pt", weights_only=True)
        for wrapper in WRAPPERS:
            observed = {name.replace(wrapper, ""): value for name, value in observed.items()}
        return observed

    def changed(self, scenario: str, rank: int) -> Any:
        return json.loads((self.folder / f"{scenario}.rank{rank}.json").read_text())

    def dump(self, scenario: str, rank: int = 0, step: int = 0, capture: str = "mix") -> DumpOnDisk:
        return DumpOnDisk(self.folder / scenario / capture / f"step{step}" / f"rank{rank}")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("two")
    run_ranks(2, WORKER, str(folder), *ON_TWO, POISONED)
    return Run(folder, 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("four")
    run_ranks(4, WORKER, str(folder), *ON_FOUR)
    return Run(folder, 4)


@pytest.fixture(params=[("two", name) for name in ON_TWO] + [("four", name) for name in ON_FOUR], ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[Run, str]:
    run, scenario = request.param
    return request.getfixturevalue(run), scenario


def test_loss_gradients_and_weights_are_the_same_bit_for_bit(case: tuple[Run, str]) -> None:
    run, scenario = case
    for rank in range(run.ranks):
        assert run.changed(scenario, rank) == {capture: [] for capture in choose_captures(scenario)}
    assert any(name.startswith("gradient") for name in run.observed(scenario, 0))


def test_each_rank_has_a_folder_and_the_rank_filter_leaves_one(case: tuple[Run, str]) -> None:
    run, scenario = case
    for capture in choose_captures(scenario).keys() - {"one"}:
        folders = {path.name for path in (run.folder / scenario / capture / "step1").iterdir()}
        assert folders == {f"rank{rank}" for rank in range(run.ranks)}
    assert [path.name for path in (run.folder / scenario / "one" / "step1").iterdir()] == ["rank0"]


def test_nothing_fails_inside_the_capture(case: tuple[Run, str]) -> None:
    run, scenario = case
    for capture in choose_captures(scenario).keys() - {"one"}:
        coverage = run.dump(scenario, capture=capture).read("run.json")["coverage"]
        assert coverage["failed"] == 0
        assert coverage["recorded"] > 0


@pytest.mark.parametrize("scenario", ["ddp", BUCKET_VIEW, "fsdp1", "fsdp2", "tensor_parallel"])
def test_modules_and_parameters_have_the_names_of_the_plain_model(two: Run, scenario: str) -> None:
    plain, spread = two.dump("plain").records, two.dump(scenario).records

    def names(records: dict[str, Any]) -> dict[str, Any]:
        return {
            name: sorted(record.get("parameters", ()))
            for name, record in records.items()
            if name.startswith("Module.") and not name.endswith("parameters_grad")
        }

    assert names(spread) == names(plain)


@pytest.mark.parametrize("scenario", ["ddp", BUCKET_VIEW, "fsdp1", "fsdp2", "tensor_parallel", "plain"])
def test_parameter_gradients_are_those_that_the_backward_leaves(two: Run, scenario: str) -> None:
    for rank in (0, 1):
        dump = two.dump(scenario, rank)
        recorded = {
            f"gradient 0 {name.split('.', 1)[1].rsplit('.', 2)[0]}.{parameter}": dump.tensor(leaves[0])
            for name, record in dump.records.items()
            if name.endswith("parameters_grad")
            for parameter, leaves in record.items()
        }
        expected = {key: value for key, value in two.observed(scenario, rank).items() if key.startswith("gradient 0")}
        assert recorded.keys() == expected.keys()
        assert all(torch.equal(recorded[key], expected[key]) for key in expected)


def test_the_flat_parameter_of_fsdp1_has_the_gradient_that_the_backward_leaves(two: Run) -> None:
    dump = two.dump("fsdp1_flat")
    recorded = dump.tensor(dump.records["Module.Net.parameters_grad"]["_flat_param"][0])
    assert torch.equal(recorded, two.observed("fsdp1_flat", 0)["gradient 0 _flat_param"])


def test_a_weight_that_fsdp2_gathers_again_is_not_taken_for_the_old_one(two: Run) -> None:
    shards = [two.observed("fsdp2", rank)["weight blocks.0.up.weight"] for rank in (0, 1)]
    for rank in (0, 1):
        dump = two.dump("fsdp2", rank, step=1)
        before, after = (dump.records[f"Functional.linear.{index}.forward"]["input_args"][1] for index in (10, 15))
        assert torch.equal(dump.tensor(after), torch.cat(shards))
        assert before["Norm"] != after["Norm"]
        assert after["Norm"] == pytest.approx(float(torch.cat(shards).norm()), rel=1e-6)


def test_a_healthy_fsdp2_run_is_not_stopped_by_nan_in_buffers_that_nobody_has_written_to(two: Run) -> None:
    for rank in (0, 1):
        assert two.changed(POISONED, rank) == {"stop": [], "first": [], "second": []}


def test_buffers_of_fsdp2_that_nobody_has_written_to_are_not_shown_as_nan(two: Run) -> None:
    ranks = list(open_dump(two.folder / POISONED / "first").ranks())
    assert len(ranks) == 4
    for rank in ranks:
        report = build_rank_report(rank)
        assert report.non_finite.calls == ()
        slots = [slot for record in rank.records() for slot in record.slots() if isinstance(slot, TensorSlot)]
        assert any(slot.is_undefined and slot.has_nan for slot in slots)


def test_what_fsdp2_gathers_is_data_once_it_has_come(two: Run) -> None:
    records = two.dump(POISONED, step=1, capture="first").records
    gathered = [name for name in records if name.startswith(("Distributed.all_gather", "Functional.linear"))]
    assert len(gathered) > 20
    for name in gathered:
        assert not any("note" in leaf for leaf in records[name]["output"])
    weight = records["Functional.linear.0.forward"]["input_args"][1]
    assert "note" not in weight
    bias = records["Functional.linear.0.forward"]["input_args"][2]
    assert bias["source"].startswith("Ops.fsdp.split_with_sizes_copy")  # not the call that handed out its memory


def test_two_identical_runs_of_fsdp2_agree_on_every_rank(two: Run) -> None:
    comparison = compare(two.folder / POISONED / "first", two.folder / POISONED / "second")
    assert comparison, comparison.verdict.headline
    assert set(summarize(comparison).matrix.kinds.values()) == {"agree"}
    roles = {call.role for rank in comparison.ranks for call in rank.calls}
    assert roles == {"clean", "not compared"}


@pytest.mark.parametrize("scenario", ["ddp", "fsdp1", "fsdp2", "tensor_parallel", "pipeline"])
def test_collectives_of_the_framework_say_so_and_have_results(two: Run, scenario: str) -> None:
    collectives = {
        name: record for name, record in two.dump(scenario).records.items() if name.startswith("Distributed.")
    }
    assert collectives
    for record in collectives.values():
        assert record["caller"] == "distributed"
        assert record["output"]
        assert "note" not in record


def test_the_reduction_inside_ddp_is_counted_as_unseen(two: Run) -> None:
    coverage = two.dump("ddp").read("run.json")["coverage"]
    assert coverage["unseen"] == {"gradient reduction inside DistributedDataParallel": 3}


def test_a_pipeline_stage_receives_what_the_other_sent(two: Run) -> None:
    first, second = two.dump("pipeline", 0), two.dump("pipeline", 1)
    for index in (0, 1):  # micro-batches
        sent = first.records[f"Distributed.isend.{index}.forward"]["input_args"][0]
        received = second.records[f"Distributed.irecv.{index}.forward"]["output"][0]
        assert torch.equal(first.tensor(sent), second.tensor(received))


def test_a_distributed_tensor_says_how_it_lies_on_its_mesh(two: Run, four: Run) -> None:
    weight = two.dump("tensor_parallel").records["Module.blocks.0.up.Linear.forward.0"]["parameters"]["weight"]
    assert weight["shape"] == [32, 8]
    assert weight["placements"] == ["Shard(dim=0)"]
    assert weight["mesh"] == {"shape": [2], "names": ["tp"], "ranks": [0, 1]}
    assert weight["local_shape"] == [16, 8]
    product = two.dump("tensor_parallel").records["Functional.linear.1.forward"]["output"][0]
    assert product["placements"] == ["Partial(sum)"]
    gradient = four.dump("two_dimensions").records["Module.blocks.0.down.Linear.parameters_grad"]["weight"][0]
    assert gradient["shape"] == [8, 32]
    assert gradient["local_shape"] == [4, 16]
    assert gradient["mesh"] == {"shape": [2, 2], "names": ["data", "tp"], "ranks": [0, 1, 2, 3]}
    assert gradient["placements"] == ["Shard(dim=0)", "Shard(dim=1)"]


def test_statistics_and_files_of_a_distributed_tensor_are_of_the_part_on_the_rank(two: Run) -> None:
    for rank in (0, 1):
        dump = two.dump("tensor_parallel", rank, step=0)
        leaf = dump.records["Module.blocks.0.up.Linear.forward.0"]["parameters"]["weight"]
        stored = dump.tensor(leaf)
        assert list(stored.shape) == leaf["local_shape"]
        assert leaf["Norm"] == pytest.approx(float(stored.norm()), rel=1e-6)
    first, second = (two.dump("tensor_parallel", rank) for rank in (0, 1))
    name = "Module.blocks.0.up.Linear.forward.0"
    whole = two.dump("plain").records[name]["parameters"]["weight"]
    parts = [dump.tensor(dump.records[name]["parameters"]["weight"]) for dump in (first, second)]
    assert torch.equal(torch.cat(parts), two.dump("plain").tensor(whole))


def test_a_result_that_was_in_flight_when_a_module_returned_it_has_its_numbers(two: Run) -> None:
    for capture in ("L0", "mix"):
        records = two.dump("tensor_parallel", capture=capture).records
        leaf = records["Module.blocks.0.down.Linear.forward.0"]["output"][0]
        assert leaf["Norm"] > 0
        assert "reason" not in leaf


@pytest.mark.parametrize(
    "scenario",
    ["ddp", BUCKET_VIEW, "fsdp2", "tensor_parallel", "pipeline"],
)
@pytest.mark.some(2)
def test_a_training_step_of_all_ranks_is_replayed_together_and_nothing_is_wrong(two: Run, scenario: str) -> None:
    runs = truth(two.folder / scenario / "mix").runs
    assert len(runs) == 4
    for run in runs:
        assert (run.findings, run.coverage.ranks, run.coverage.remarks) == ([], (0, 1), [])
        assert run.coverage.call_count - run.coverage.replayed <= (scenario == "pipeline")
        assert all(abs(recorded - true) <= 1e-5 * abs(true) for _, recorded, true in run.losses)
        gradients = run.parameter_gradients
        assert gradients and gradients[0].share_of(run.largest_gradient) < 1e-5
