"""What counts as exact, near, wrong and missed in the held-out corpus, by results that are made up."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("held_out_runner", BENCHMARKS / "held_out.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


sys.path.insert(0, str(BENCHMARKS))
try:
    from held_out.answer import Answer, Named, Saying, judge, path_of
    from held_out.comparison import make_saying

    runner = load_runner()
finally:
    sys.path.remove(str(BENCHMARKS))

LINES = Answer(frozenset({("net_mindspore.py", 20)}), (("net_mindspore.py", 15, 30),))
MODULE = Answer(frozenset({("modeling_x.py", 7)}), modules=frozenset({"layers.0.mlp"}), words=frozenset({"add"}))


def say(name: str, path: str | None = None, line: tuple[str, int] | None = None, kind: str = "source") -> Saying:
    return Saying(kind, "", (Named(name, path, frozenset() if line is None else frozenset({line})),))


@pytest.mark.parametrize(
    ("saying", "outcome"),
    [
        (Saying("agree"), "silent"),
        (Saying("source"), "false alarm"),
        (Saying("discontinuity"), "false alarm"),
        (Saying("incomplete"), "not compared"),
        (Saying("error"), "error"),
    ],
)
def test_a_right_pair_is_silent_or_a_false_alarm(saying: Saying, outcome: str) -> None:
    assert judge(saying, None) == outcome


@pytest.mark.parametrize(
    ("saying", "outcome"),
    [
        (say("Mint.add.0.forward", line=("net_mindspore.py", 20)), "exact"),
        (say("Mint.add.0.forward", line=("net_mindspore.py", 21)), "near"),
        (say("Mint.add.0.forward", line=("net_mindspore.py", 31)), "wrong"),
        (say("Mint.add.0.forward", line=("net_pytorch.py", 20)), "wrong"),
        (say("Mint.add.0.forward"), "wrong"),
        (Saying("drift"), "wrong"),
        (Saying("agree"), "missed"),
        (Saying("unrelated"), "not compared"),
    ],
)
def test_in_a_pair_the_line_of_the_named_call_decides(saying: Saying, outcome: str) -> None:
    assert judge(saying, LINES) == outcome


@pytest.mark.parametrize(
    ("saying", "outcome"),
    [
        (say("Tensor.__radd__.3.forward", "layers.0.mlp"), "exact"),
        (say("Tensor.mul.3.forward", "layers.0.mlp", ("modeling_x.py", 7)), "exact"),
        (say("Tensor.mul.3.forward", "layers.0.mlp", ("modeling_x.py", 8)), "near"),
        (say("Tensor.add.3.forward", "layers.0.mlp.act"), "near"),
        (say("Tensor.add.3.forward", "layers.0"), "near"),
        (say("Tensor.add.3.forward", "layers.1.mlp", ("modeling_x.py", 7)), "wrong"),
        (say("Module.layers.0.mlp.MLP.forward.0", "layers.0.mlp"), "near"),
    ],
)
def test_in_a_model_the_module_and_the_function_or_the_line_decide(saying: Saying, outcome: str) -> None:
    assert judge(saying, MODULE) == outcome


def test_a_wrong_setting_of_a_module_is_named_by_the_module() -> None:
    answer = Answer(modules=frozenset({"norm"}), words=frozenset({"layer_norm"}), is_setting=True)

    assert judge(say("Module.norm.LayerNorm.forward.0", "norm"), answer) == "exact"
    assert judge(say("Functional.layer_norm.0.backward", "norm"), answer) == "exact"


def test_a_wrong_weight_is_named_by_the_call_or_by_the_parameter() -> None:
    answer = Answer(LINES.lines, parameter="head.weight")

    assert judge(Saying("unequal start", "head.weight differs before the first call"), answer) == "exact"
    assert judge(Saying("unequal start", "tail.weight differs before the first call"), answer) == "wrong"


def test_a_fault_without_effect_may_be_passed_over() -> None:
    assert judge(Saying("agree"), Answer(LINES.lines, has_effect=False)) == "silent"


def test_the_second_of_two_faults_is_near() -> None:
    answer = Answer(LINES.lines, second=Answer(frozenset({("net_mindspore.py", 40)})))

    assert judge(say("Mint.add.0.forward", line=("net_mindspore.py", 40)), answer) == "near"


def test_the_record_of_a_module_stands_for_the_module_and_a_call_for_the_one_around_it() -> None:
    assert path_of("Module.layers.0.norm.LayerNorm.forward.0", "layers.0") == "layers.0.norm"
    assert path_of("Module.Net.backward.0", None) == ""
    assert path_of("Cell.fc.Dense.forward.1", "") == "fc"
    assert path_of("Tensor.add.0.forward", "layers.0") == "layers.0"


def write_stacks(folder: Path, stacks: dict[str, list[str]]) -> Path:
    path = folder / "step0" / "rank"
    path.mkdir(parents=True)
    content = {str(number): [[name], frames] for number, (name, frames) in enumerate(stacks.items())}
    (path / "stack.json").write_text(json.dumps(content))
    return folder


def test_a_verdict_is_read_with_the_lines_of_its_calls_and_a_backward_has_the_line_of_its_forward(
    tmp_path: Path,
) -> None:
    frames = [
        "File /x/torch/nn/modules/linear.py, line 3, in forward, \n y",
        "File /x/net_pytorch.py, line 9, in f, \n z",
    ]
    reference = write_stacks(tmp_path / "reference", {"Functional.linear.0.forward": frames})
    candidate = write_stacks(tmp_path / "candidate", {"Tensor.add.0.forward": [frames[1].replace("9", "11")]})
    linear, add = (
        SimpleNamespace(name=name, module_path="fc")
        for name in ("Functional.linear.0.backward", "Tensor.add.0.forward")
    )
    verdict = SimpleNamespace(
        kind="source",
        headline="They differ.",
        evidence=["here"],
        call=SimpleNamespace(reference=[linear], candidate=[]),
        suspects=[add],
    )
    comparison = SimpleNamespace(verdict=verdict, ranks=[SimpleNamespace(only_reference=[], only_candidate=[add])])

    saying = make_saying(comparison, (reference, candidate), "*/net_*.py")

    assert saying == Saying(
        "source",
        "They differ.\nhere",
        (
            Named("Functional.linear.0.backward", "fc", frozenset({("net_pytorch.py", 9)})),
            Named("Tensor.add.0.forward", "fc", frozenset({("net_pytorch.py", 11)})),
        ),
    )


def test_the_table_counts_right_ones_and_faults_apart() -> None:
    def result(case: str, is_right: bool, outcome: str) -> object:
        setting = {"dtype": "float32", "level": "L1", "task": "tensor", "by": "auto"}
        said = {"verdict": "", "headline": "", "named": [], "seconds": 0.0, "has_effect": True}
        return runner.Result(subject="graph", case=case, is_right=is_right, outcome=outcome, **setting, **said)

    table = runner.build_table(
        [result("right", True, "silent"), result("one", False, "exact"), result("two", False, "near")]
    )

    assert table == [
        "| | silent | false alarm | exact | near | wrong | missed | not compared | error |",
        "|---|---|---|---|---|---|---|---|---|",
        "| graph | 1 |  | 1 | 1 |  |  |  |  |",
        "| all pairs: right | 1 |  |  |  |  |  |  |  |",
        "| all pairs: faults |  |  | 1 | 1 |  |  |  |  |",
    ]


def test_an_unknown_pair_is_an_error_that_names_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["held_out.py", "--pair", "nowhere"])

    with pytest.raises(
        SystemExit, match=r"--pair nowhere: there is none of this name. There are: .*autoencoder, .*clip"
    ):
        runner.main()


def test_the_cases_of_a_model_are_the_ways_to_run_it_and_its_faults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["held_out.py", "--list", "--pair", "convnext"])

    runner.main()

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["convnext: right", "convnext: channels last"]
    assert "convnext: dropped residual" in lines
