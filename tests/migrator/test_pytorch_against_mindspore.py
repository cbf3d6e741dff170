"""A model in PyTorch against the same model in MindSpore: it agrees, call by call, or the wrong call is named."""

from __future__ import annotations

import os

os.environ.setdefault("GLOG_v", "3")  # before the import: MindSpore then keeps its warnings to itself

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorprobe import mindspore as mindspore_face
from tensorprobe import pytorch as pytorch_face
from tensorprobe.compare.engine import compare_runs
from tensorprobe.compare.lost_source import restore_sources
from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.result import Comparison
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import open_dump
from tests.cli.command import run_here
from tests.migrator.pair_truth import TRUTHS, find_missed, find_wrong

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    from migration.fault import FAULTS, Fault
    from migration.run import Weights, record_mindspore, record_pytorch, set_up, strip_tensors
    from migration.score import score
finally:
    sys.path.remove(str(BENCHMARKS))

set_up()

LEVELS = ("L0", "L1", "mix")
STEPS = {"mlp": 2, "cnn": 2, "lstm": 1, "encoder": 1, "gpt": 1}
CASES = [(network, level) for network in TRUTHS for level in LEVELS]


class Recorded:
    """The two runs of each network at each level, recorded when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._weights: dict[tuple[str, str], Weights] = {}

    def pytorch(self, network: str, level: str) -> Path:
        path = self.folder / f"{network}_{level}_pytorch"
        if not path.exists():
            self._weights[network, level] = record_pytorch(network, level, path, STEPS[network])
        return path

    def mindspore(self, network: str, level: str, fault: Fault | None = None) -> Path:
        self.pytorch(network, level)
        number = "" if fault is None else str(FAULTS.index(fault))
        path = self.folder / f"{network}_{level}_mindspore{number}"
        if not path.exists():
            record_mindspore(network, level, path, self._weights[network, level], fault, STEPS[network])
        return path

    def pair(self, network: str, level: str, task: str, fault: Fault | None = None) -> tuple[Path, Path]:
        paths = self.pytorch(network, level), self.mindspore(network, level, fault)
        return paths if task == "tensor" else (_strip(paths[0]), _strip(paths[1]))


def _strip(path: Path) -> Path:
    target = path.with_name(f"{path.name}_statistics")
    return target if target.exists() else strip_tensors(path, target)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    yield Recorded(tmp_path_factory.mktemp("pairs"))
    pytorch_face.PrecisionDebugger.reset()
    mindspore_face.PrecisionDebugger.reset()


def compared(paths: tuple[Path, Path], first: bool = False) -> Comparison:
    return compare_runs(*paths, CompareOptions(processes=1, first=first))


def read_pair(paths: tuple[Path, Path]) -> tuple[Run, Run]:
    reference, candidate = (read_run(open_dump(path).steps[0].ranks[0]) for path in paths)
    restore_sources(candidate.calls)
    return reference, candidate


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(("network", "level"), CASES)
@pytest.mark.some(7)  # each network, level and task
def test_equal_weights_agree(recorded: Recorded, network: str, level: str, task: str) -> None:
    found = compared(recorded.pair(network, level, task))

    assert found.verdict.kind == "agree", (found.verdict.headline, found.verdict.evidence)
    assert not [call.name for rank in found.ranks for call in rank.calls if call.role != "clean"]
    if level != "L0":  # where a function of one framework is a module of the other, L0 has nothing to pair it with
        assert min(rank.coverage.share for rank in found.ranks) >= 0.95


@pytest.mark.parametrize(("network", "level"), CASES)
def test_each_call_is_paired_with_its_own_counterpart(recorded: Recorded, network: str, level: str) -> None:
    runs = read_pair(recorded.pair(network, level, "tensor"))
    alignment = align_calls(*runs)

    assert not find_wrong(alignment, runs, TRUTHS[network])
    missed, count = find_missed(alignment, runs, TRUTHS[network])
    assert len(missed) <= 0.05 * count, missed


@pytest.mark.parametrize(("network", "level"), CASES)
def test_it_does_not_matter_which_framework_is_the_reference(recorded: Recorded, network: str, level: str) -> None:
    runs = read_pair(recorded.pair(network, level, "tensor"))
    pairs = {(match.reference, match.candidate) for match in align_calls(*runs).matches}

    assert {(match.candidate, match.reference) for match in align_calls(runs[1], runs[0]).matches} == pairs


# Mistakes of a port, each at some levels; benchmarks/migrations.py runs all of them at all levels.
TRIED = {
    ("epsilon", "mlp"): ("L0", "L1", "mix"),
    ("epsilon left to its default", "mlp"): ("L1",),
    ("tanh GELU, the default", "mlp"): ("L0", "L1", "mix"),
    ("tanh GELU, the default", "encoder"): ("mix",),
    ("exact GELU for tanh", "gpt"): ("mix",),
    ("momentum of BatchNorm", "cnn"): ("L0", "L1", "mix"),
    ("transposed weight", "mlp"): ("L0", "L1", "mix"),
    ("transposed weight", "gpt"): ("mix",),
    ("another default argument", "cnn"): ("L0", "L1", "mix"),
    ("wrong mask", "gpt"): ("L1",),
    ("wrong scale", "gpt"): ("L0",),
    ("dropout left on", "encoder"): ("L1",),
    ("wrong residual", "gpt"): ("mix",),
    ("missing layer", "encoder"): ("L0",),
    ("label off by one", "gpt"): ("L1",),
    ("detached branch", "gpt"): ("mix",),
    ("gates in another order", "lstm"): ("L0", "L1"),
}
FAULTY = [
    pytest.param(fault, level, id=f"{fault.network} {level}: {fault.kind}")
    for fault in FAULTS
    for level in TRIED.get((fault.kind, fault.network), ())
]


@pytest.mark.parametrize(("fault", "level"), FAULTY)
@pytest.mark.some(5)
def test_a_mistake_in_the_port_is_named(recorded: Recorded, fault: Fault, level: str) -> None:
    for task in ("tensor", "statistics"):
        found = compared(recorded.pair(fault.network, level, task, fault), first=True)

        assert score(found, fault, level) == "exact", (task, found.verdict.headline)


@pytest.mark.parametrize(("fault", "level"), FAULTY)
@pytest.mark.some(8)
def test_a_mistake_in_the_port_is_named_when_the_whole_run_was_looked_at(
    recorded: Recorded, fault: Fault, level: str
) -> None:
    found = compared(recorded.pair(fault.network, level, "tensor", fault))

    assert score(found, fault, level) == "exact", found.verdict.headline


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.some(2)
def test_a_mistake_that_shows_only_in_running_statistics_is_named_within_one_framework(
    recorded: Recorded, level: str
) -> None:
    fault = next(fault for fault in FAULTS if fault.kind == "momentum of BatchNorm")
    runs = recorded.mindspore("cnn", level), recorded.mindspore("cnn", level, fault)
    for paths in (runs, (_strip(runs[0]), _strip(runs[1]))):
        found = compared(paths)

        assert score(found, fault, level) == "exact", found.verdict.headline


def test_the_command_says_agree_or_names_the_line(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    fault = next(fault for fault in FAULTS if (fault.kind, fault.network) == ("epsilon", "mlp"))
    agreeing = run_here(capsys, "compare", *recorded.pair("mlp", "mix", "statistics"))
    differing = run_here(capsys, "compare", *recorded.pair("mlp", "mix", "statistics", fault))

    assert agreeing.returncode == 0 and "The runs agree" in agreeing.stdout
    assert differing.returncode == 1
    assert "Functional.layer_norm.0.forward (candidate: Primitive.layer_norm.LayerNorm.0.forward)" in differing.stdout
    assert "self.relu(self.norm(self.fc1(self.flatten(x))))" in differing.stdout
