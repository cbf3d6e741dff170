"""Several ranks, recorded by real processes and replayed together in one: what they mean is what float64 gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorprobe
from tests.cli.command import run_here
from tests.integration.torchrun import run_ranks
from tests.replay.program import record
from tests.replay.rank_worker import SCENARIOS, make_net, make_parallel
from tests.replay.ranks import distance, replay_ranks

WORKER = Path(__file__).with_name("rank_worker.py")
JOINED = tuple(name for name in SCENARIOS if name != "disorder")
TRAINED = tuple(name for name in JOINED if name != "collectives")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(2, WORKER, str(folder))
    return folder


def expected(folder: Path, name: str, rank: int) -> dict[str, torch.Tensor]:
    """What the same program gave in float64."""
    loaded: dict[str, torch.Tensor] = torch.load(folder / f"{name}.rank{rank}.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.some(2)
def test_the_truth_of_each_rank_is_what_the_same_program_gives_in_float64(name: str, recorded: Path) -> None:
    ranks = replay_ranks(recorded / name)
    assert len(ranks) == 2
    for replay, values in ranks:
        reference = expected(recorded, name, replay.rank)
        assert values.keys() == reference.keys()
        assert len(values) > 1 or name == "collectives"
        for key, tensor in reference.items():
            assert distance(values[key], tensor) < 1e-12, (name, replay.rank, key)


@pytest.mark.parametrize("name", JOINED)
def test_all_calls_of_all_ranks_are_replayed_and_nothing_is_wrong(name: str, recorded: Path) -> None:
    runs = tensorprobe.truth(recorded / name).runs
    assert [run.coverage.ranks for run in runs] == [(0, 1), (0, 1)]
    for run in runs:
        assert (run.findings, run.coverage.gaps, run.coverage.remarks) == ([], {}, [])
        assert run.coverage.replayed == run.coverage.call_count
        assert set(run.not_judged.values()) <= {"what it computes depends on other ranks"}
        assert len(run.parameter_gradients) == len(expected(recorded, name, 0)) - 1


def test_a_tensor_parallel_model_on_two_ranks_means_what_it_means_in_one_process(
    recorded: Path, tmp_path: Path
) -> None:
    ((_, alone),) = replay_ranks(record(tmp_path, *make_parallel(0, 1, torch.bfloat16)))
    (_, first), (_, second) = replay_ranks(recorded / "parallel")
    for values in (first, second):
        assert distance(values["loss"], alone["loss"]) < 1e-12
        for shared in ("into", "bias"):
            assert distance(values[shared], alone[shared]) < 1e-12
    for name, dim in (("up", 0), ("up_bias", 0), ("down", 1)):
        assert distance(torch.cat([first[name], second[name]], dim), alone[name]) < 1e-12


def test_distributed_tensors_mean_what_the_plain_model_means(recorded: Path, tmp_path: Path) -> None:
    ((_, alone),) = replay_ranks(record(tmp_path, *make_net(torch.bfloat16)))
    (_, first), (_, second) = replay_ranks(recorded / "dtensor")
    assert distance(first["loss"], alone["loss"]) < 1e-12
    assert distance(torch.cat([first["up.weight"], second["up.weight"]]), alone["up.weight"]) < 1e-12


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_averaged_gradients_are_those_of_one_process_with_all_the_data(
    name: str, recorded: Path, tmp_path: Path
) -> None:
    alone = [replay_ranks(record(tmp_path / str(rank), *make_net(torch.bfloat16, 9 + rank)))[0][1] for rank in (0, 1)]
    ranks = [values for _, values in replay_ranks(recorded / name)]
    for values, single in zip(ranks, alone, strict=True):
        assert distance(values["loss"], single["loss"]) < 1e-12
    mean = (alone[0]["up.weight"] + alone[1]["up.weight"]) / 2
    parts = [values["up.weight"] for values in ranks]
    assert distance(torch.cat(parts) if name == "fsdp2" else parts[0], mean) < 1e-12


def copy_without(folder: Path, rank: int, target: Path) -> Path:
    shutil.copytree(folder, target)
    shutil.rmtree(target / "step0" / f"rank{rank}")
    return target


@pytest.mark.parametrize("name", JOINED)
def test_with_one_rank_missing_recorded_results_are_taken_and_that_is_said(
    name: str, recorded: Path, tmp_path: Path
) -> None:
    (run,) = tensorprobe.truth(copy_without(recorded / name, 1, tmp_path / "dump")).runs
    assert run.findings == []
    assert all("rank 1 is not replayed with it" in reason for reason in run.coverage.gaps.values()) or name == "dtensor"
    assert run.coverage.gaps or name == "ddp"
    assert any("rank 1 is not replayed with it" in remark for remark in run.coverage.remarks) or name == "dtensor"
    for _, kept, true in run.losses:
        assert true == pytest.approx(kept, rel=2e-2)


def test_the_command_says_which_rank_is_missing(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "truth", copy_without(recorded / "parallel", 1, tmp_path / "dump"))
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "2 collectives of the ranks 0, 1 keep their recorded results: rank 1 is not replayed with it" in text


def test_one_rank_that_is_asked_for_alone_is_replayed_alone(recorded: Path) -> None:
    (run,) = tensorprobe.truth(recorded / "parallel", rank=1).runs
    assert run.name == "step0/rank1" and run.coverage.ranks == (1,)
    assert "rank 0 is not replayed with it" in run.coverage.gaps["Distributed.all_reduce.0.forward"]


def test_ranks_that_do_not_make_the_same_collectives_are_named(recorded: Path) -> None:
    for run in tensorprobe.truth(recorded / "disorder").runs:
        (remark,) = run.coverage.remarks
        assert remark == (
            "the ranks 0, 1 do not make the same collectives: as number 1 of their group, "
            "rank 0 calls Distributed.all_reduce.1.forward (max) with [4]; "
            "rank 1 calls Distributed.all_reduce.1.forward (sum) with [4]. "
            "From there on the recorded results of this group are taken"
        )
        assert list(run.coverage.gaps) == ["Distributed.all_reduce.1.forward"]


def leave_out(path: Path, name: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if f'"{name}"' not in line[:40]))


def test_a_dump_that_ends_early_names_the_collective_that_others_wait_in(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(recorded / "disorder", folder)
    rank = folder / "step0" / "rank1"
    leave_out(rank / "dump.json", "Distributed.all_reduce.1.forward")
    circumstances = json.loads((rank / "run.json").read_text())
    (rank / "run.json").write_text(json.dumps({**circumstances, "complete": False}))
    remark = tensorprobe.truth(folder).runs[0].coverage.remarks[0]
    assert "the dump of rank 1 ends early, and others wait in number 1 of their group" in remark
    assert "rank 0 calls Distributed.all_reduce.1.forward (max) with [4]; rank 1 ends after " in remark


def test_ranks_that_give_other_dtypes_to_a_collective_are_named(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(recorded / "disorder", folder)
    path = folder / "step0" / "rank1" / "dump.json"
    lines = path.read_text().splitlines(keepends=True)
    changed = [
        line.replace("torch.float32", "torch.int32") if '"Distributed.all_reduce.0.forward"' in line[:40] else line
        for line in lines
    ]
    path.write_text("".join(changed))
    remark = tensorprobe.truth(folder).runs[0].coverage.remarks[0]
    assert (
        "as number 0 of their group, rank 0 calls Distributed.all_reduce.0.forward (sum) with [4] of float32" in remark
    )
    assert "rank 1 calls Distributed.all_reduce.0.forward (sum) with [4] of int32" in remark


def test_a_collective_that_one_rank_does_not_make_is_named(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(recorded / "disorder", folder)
    leave_out(folder / "step0" / "rank1" / "dump.json", "Distributed.all_reduce.1.forward")
    for run in tensorprobe.truth(folder).runs:
        assert (
            "rank 0 calls Distributed.all_reduce.1.forward (max) with [4]; rank 1 makes none" in run.coverage.remarks[0]
        )


def test_a_collective_that_does_not_compute_what_its_name_says_is_a_finding(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(recorded / "collectives", folder)
    path = folder / "step0" / "rank0" / "dump_tensor_data" / "Distributed.all_to_all_single.0.forward.output.0.pt"
    tensor: Any = torch.load(path, weights_only=True)
    path.unlink()  # it may have other names
    torch.save(tensor * 1.001, path)
    first, second = tensorprobe.truth(folder).runs
    assert ("kernel", "Distributed.all_to_all_single.0.forward") in [
        (finding.kind, finding.record) for finding in first.findings
    ]
    assert second.findings == []
