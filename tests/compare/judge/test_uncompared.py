"""What could not be compared is never an agreement: the headline says so first, unless the user allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorprobe
from tensorprobe.compare.measure import executor, worker_pool
from tensorprobe.compare.result import Comparison
from tests.compare.recording import Recording, forget_statistics

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)


def recorded(*, statistics: bool = False, **last: Any) -> Recording:
    """linear, relu, sum; the tensors have files, and statistics if they are asked for."""
    run = Recording()
    a = run.api("Functional.linear", run.data(X), run.data(W, True), output=X @ W.T)
    b = run.api("Functional.relu", a, output=np.maximum(a.array, 0))
    run.api("Torch.sum", b, output=b.array.sum(), **last)
    if not statistics:
        forget_statistics(run)
    return run


def compare_without(tmp_path: Path, run: Recording, *names: str, **options: Any) -> Comparison:
    """The run against itself, with tensor files of the candidate gone."""
    run.write(tmp_path / "r")
    run.write(tmp_path / "c")
    for name in names:
        (tmp_path / "c/step0/rank/dump_tensor_data" / f"{name}.npy").unlink()
    return tensorprobe.compare(tmp_path / "r", tmp_path / "c", **options)


def test_a_result_that_could_not_be_compared_is_said_first_and_is_no_agreement(tmp_path: Path) -> None:
    result = compare_without(tmp_path, recorded(), "Torch.sum.0.forward.output.0")
    assert not result and result.verdict.kind == "incomplete"
    assert result.verdict.headline == (
        "1 value could not be compared, and the results depend on it: Torch.sum.0.forward.output.0 "
        "(Torch.sum.0.forward.output.0.npy is missing). Everything else agrees: 3 calls are paired, and 6 of 7 "
        "values agree, bit for bit; 1 could not be compared."
    )
    assert any("--allow-uncompared" in line for line in result.verdict.evidence)
    assert (result.ranks[0].coverage.uncompared_values, result.ranks[0].coverage.value_share) == (1, 6 / 7)


def test_several_are_counted_and_listed(tmp_path: Path) -> None:
    names = ("Functional.linear.0.forward.input.0", "Functional.linear.0.forward.input.1")
    verdict = compare_without(tmp_path, recorded(), *names).verdict
    assert verdict.headline.startswith("2 values could not be compared, and the results depend on them: Functional.")
    assert " and 1 more. Everything else agrees: " in verdict.headline
    assert [line for line in verdict.evidence if line.startswith("not compared: ")] == [
        f"not compared: {name}: {name}.npy is missing" for name in names
    ]


def test_the_user_may_allow_it(tmp_path: Path) -> None:
    result = compare_without(tmp_path, recorded(), "Torch.sum.0.forward.output.0", allow_uncompared=True)
    assert result and "6 of 7 values agree, bit for bit; 1 could not be compared" in result.verdict.headline


def test_a_value_that_was_compared_under_another_name_is_compared(tmp_path: Path) -> None:
    result = compare_without(tmp_path, recorded(), "Functional.relu.0.forward.output.0")
    assert result, result.verdict
    lost = result.ranks[0].calls[1].values[-1]
    assert lost.status == "not comparable" and result.ranks[0].coverage.uncompared_values == 1


def test_not_if_it_is_gone_under_all_its_names(tmp_path: Path) -> None:
    names = ("Functional.relu.0.forward.output.0", "Torch.sum.0.forward.input.0")
    assert compare_without(tmp_path, recorded(), *names).verdict.headline.startswith("2 values could not be compared")


def test_one_of_two_results_of_the_same_size_is_not_known_by_the_other(tmp_path: Path) -> None:
    run = Recording()
    first, _ = run.api("Torch.chunk", run.data(X), 2, output=[X[:2], X[2:]])
    run.api("Torch.sum", first, output=X[:2].sum())
    forget_statistics(run)
    result = compare_without(tmp_path, run, "Torch.chunk.0.forward.output.1")
    assert result.verdict.kind == "incomplete" and "Torch.chunk.0.forward.output.1" in result.verdict.headline


def test_calls_of_the_framework_itself_are_told_and_no_more(tmp_path: Path) -> None:
    run = recorded(fields={"caller": "optimizer"})
    result = compare_without(tmp_path, run, "Torch.sum.0.forward.output.0")
    assert result, result.verdict


def test_one_step_that_could_not_be_compared_is_not_hidden_by_another(tmp_path: Path) -> None:
    recorded().write(tmp_path / "r", 1)
    recorded().write(tmp_path / "c", 1)
    result = compare_without(tmp_path, recorded(), "Torch.sum.0.forward.output.0")
    assert [rank.verdict.kind for rank in result.ranks] == ["incomplete", "agree"]
    assert result.verdict.kind == "incomplete" and not result
    assert result.verdict.headline.startswith("1 value could not be compared")
    assert result.verdict.headline.endswith("(step0/rank). 1 of 2 steps and ranks agree.")


def test_a_step_with_nothing_in_common_is_not_hidden_by_another(tmp_path: Path) -> None:
    for side, stem in (("r", "Torch.exp"), ("c", "Torch.argmax")):
        recorded().write(tmp_path / side, 0)
        run = Recording()
        run.api(stem, run.data(X), output=np.exp(X) if side == "r" else np.array(3))
        run.write(tmp_path / side, 1)
    result = tensorprobe.compare(tmp_path / "r", tmp_path / "c")
    assert result.verdict.kind == "incomplete"
    assert result.verdict.headline.startswith("Nothing could be compared")
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "c", allow_uncompared=True)


def test_a_killed_worker_costs_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scar = tmp_path / "scar"
    kill = f"from pathlib import Path; from tests.compare.deadly import die_once; die_once(Path({str(scar)!r})); "
    start = worker_pool._START.replace("from tensorprobe", f"{kill}from tensorprobe")
    monkeypatch.setattr(worker_pool, "_START", start)
    monkeypatch.setattr(executor, "_SECONDS_PER_PROCESS", 1e-9)
    result = compare_without(tmp_path, recorded(), processes=2)
    assert scar.exists() and result
    assert "all 7 values agree, bit for bit." in result.verdict.headline


def test_a_difference_comes_before_what_could_not_be_compared(tmp_path: Path) -> None:
    run = recorded()
    run.write(tmp_path / "r")
    run.files["Functional.relu.0.forward.output.0.npy"] = X + 1
    run.files["Torch.sum.0.forward.output.0.npy"] = (X + 1).sum()
    run.write(tmp_path / "c")
    (tmp_path / "c/step0/rank/dump_tensor_data/Functional.linear.0.forward.input.0.npy").unlink()
    verdict = tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict
    assert verdict.kind == "source" and "not compared before it: 1 value" in verdict.evidence


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (("meta tensor", "meta tensor"), "agree"),
        (("memory not allocated", "meta tensor"), "agree"),
        (("meta tensor", None), "incomplete"),
        (("not computed: out of memory", "not computed: out of memory"), "incomplete"),
    ],
)
def test_a_tensor_without_numbers_is_no_loss_where_there_are_none(
    tmp_path: Path, reasons: tuple[str | None, str | None], kind: str
) -> None:
    for side, reason in zip("rc", reasons, strict=True):
        run = recorded(statistics=True)
        leaf = run.records["Functional.linear.0.forward"]["input_args"][1]
        for key in ("Max", "Min", "Mean", "Norm", "data_name"):
            leaf.pop(key)
        leaf |= {"reason": reason} if reason else {}
        run.write(tmp_path / side)
    assert tensorprobe.compare(tmp_path / "r", tmp_path / "c").verdict.kind == kind


# ------------------------------------------------------------------------------------ results that only one run has


def with_loss(*stems: str, complete: bool = True) -> Recording:
    """linear, relu, and calls whose results nobody uses."""
    run = Recording()
    run.run |= {"coverage": {"filtered": 0}, "complete": complete}
    a = run.api("Functional.linear", run.data(X), run.data(W, True), output=X @ W.T)
    b = run.api("Functional.relu", a, output=np.maximum(a.array, 0))
    for stem in stems:
        run.api(stem, b, output=b.array.sum(axis=0)[: len(stem) - 6])
    return run


def test_a_result_that_only_the_reference_has_was_not_compared(tmp_path: Path) -> None:
    paths = with_loss("Torch.logdet").write(tmp_path / "r"), with_loss("Torch.trace").write(tmp_path / "c")
    verdict = tensorprobe.compare(*paths).verdict
    assert verdict.kind == "incomplete"
    assert "the results depend on it: Torch.logdet.0.forward.output.0 (only in the reference)." in verdict.headline
    assert tensorprobe.compare(*paths, allow_uncompared=True)


def test_a_result_that_only_the_candidate_has_is_one_more(tmp_path: Path) -> None:
    paths = with_loss("Torch.sum").write(tmp_path / "r"), with_loss("Torch.sum", "Torch.argmin").write(tmp_path / "c")
    assert tensorprobe.compare(*paths)


def test_a_run_that_ended_early_agrees_as_far_as_it_goes(tmp_path: Path) -> None:
    paths = with_loss("Torch.sum").write(tmp_path / "r"), with_loss(complete=False).write(tmp_path / "c")
    result = tensorprobe.compare(*paths)
    assert result and "as far as the candidate goes, which ended early" in result.verdict.headline
