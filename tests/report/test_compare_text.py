"""What `compare` prints: the verdict first, whole into a pipe, within the width of a terminal, steering nothing."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tensorprobe.compare.match.alignment import Unpaired
from tensorprobe.compare.result import Comparison, Verdict
from tensorprobe.report.compare_statement import format_share
from tensorprobe.report.compare_text import print_comparison
from tests.report.comparison import (
    HOSTILE_NAMES,
    call,
    call_result,
    comparison,
    coverage,
    gelu_fault,
    hostile,
    pair,
    rank_result,
    tensor,
)


def render(found: Comparison, width: int = 80, is_terminal: bool = False, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    print_comparison(console, found, **more)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def with_verdict(kind: Any, headline: str, *evidence: str, **more: Any) -> Comparison:
    verdict = Verdict(kind, headline, evidence, 0, "step0/rank")
    return comparison(rank_result(call_result(role=more.pop("role", "clean")), verdict=verdict, **more))


GELU_FAULT = """\
The runs part at Functional.gelu.0.forward in blocks.0.
  its inputs agree: input.0 is equal
  its output does not: output.0 differs by 0.25 (tolerance 1.2e-06), worst at [1, 2]: 2 against 2.5
  reference: /x/model.py:18 in forward: y = F.gelu(x)

  reference     good
  candidate     bad
  circumstances settings.threads: 2 in the reference, 1 in the candidate
                versions.torch: 2.12.0 in the reference, 2.13.0 in the candidate
  also          Functional.dropout.3.forward  entered  in blocks.0
                  called with p=0.1 where the reference had 0.0
                  /x/model.py:18 in forward: y = F.gelu(x)
  calls         1 source · 1 entered · 1 propagated · 1 clean
  tensors       4 equal · 2 different
  arguments     1 different
  coverage      9 of 10 calls of the reference and 9 of 10 of the candidate have a partner (90 %)
                all 18 tensors were compared: 6 element by element
                NOT SEEN when the candidate was recorded: compiled region (2)
                to look inside compiled functions, record with "compiled": "eager"
  no partner    Tensor.add.7.forward  in blocks.0  only in the reference; nearest Tensor.add.6.forward: other shape
                Tensor.mul.9.forward  only in the candidate
  problems      candidate: its last line was cut off

  next          tensorprobe show good --step 0 --filter Functional.gelu.0.forward
                tensorprobe show bad --step 0 --filter Functional.gelu.0.forward
"""

AGREE = """\
The runs agree.

  reference     good
  candidate     bad
  this covers   all 10 calls of the reference and all 10 of the candidate have a partner (100 %)
                all 20 tensors were compared: 2 element by element
  calls         1 clean
  tensors       2 equal
"""

MISSING = """\
The candidate does not make Tensor.add.3.forward.
  everything that was compared before it agrees

  reference     good
  candidate     bad
  calls         1 clean
  tensors       2 equal
  coverage      all 10 calls of the reference and all 10 of the candidate have a partner (100 %)
                all 20 tensors were compared: 2 element by element
"""


def test_a_call_that_went_wrong() -> None:
    assert render(gelu_fault()) == GELU_FAULT


def test_runs_that_agree_say_what_that_covers() -> None:
    assert render(comparison()) == AGREE


def test_a_verdict_without_a_call_names_no_next_command() -> None:
    found = with_verdict(
        "missing",
        "The candidate does not make Tensor.add.3.forward.",
        "everything that was compared before it agrees",
    )
    assert render(found) == MISSING


def test_a_pipe_gets_the_same_text_whatever_the_window() -> None:
    assert render(gelu_fault(), width=20) == render(gelu_fault(), width=400) == GELU_FAULT


@pytest.mark.parametrize("width", [40, 60, 80])
def test_on_a_terminal_only_the_commands_to_copy_are_wider_than_it(width: int) -> None:
    lines = render(gelu_fault(), width, is_terminal=True).splitlines()
    assert [line for line in lines if len(line) > width and "tensorprobe show" not in line] == []
    words = " ".join(" ".join(lines).split())
    assert "worst at [1, 2]: 2 against 2.5" in words
    assert "nearest Tensor.add.6.forward: other shape" in words
    assert "tensorprobe show good --step 0 --filter Functional.gelu.0.forward" in words


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_name_steers_nothing(name: str, is_terminal: bool) -> None:
    text = render(hostile(name), is_terminal=is_terminal)
    assert all(char.isprintable() or char == "\n" for char in text)
    text.encode("utf-8")
    assert max(map(len, text.splitlines())) < 2500


def test_markup_in_a_name_is_shown_as_it_is() -> None:
    lines = render(hostile("[bold red]x[/bold red]"), is_terminal=True).splitlines()
    assert lines[0] == "[bold red]x[/bold red]"


def test_long_lists_end_and_say_where_the_rest_is() -> None:
    unpaired = tuple(Unpaired(call(f"Torch.add.{index}.forward"), None, "") for index in range(45))
    sources = [call_result(f"Torch.mul.{index}.forward", "drift") for index in range(11)]
    found = comparison(rank_result(*sources, only_candidate=unpaired))
    text = render(found)
    assert "Torch.add.7.forward" in text
    assert "Torch.add.8.forward" not in text
    assert "and 37 more: -o DIR writes all of them" in text
    assert "Torch.mul.8.forward" in text
    assert "Torch.mul.9.forward" not in text
    assert "and 2 more: see out/compare.csv" in render(found, where_more="see out/compare.csv")


@pytest.mark.parametrize(
    ("first", "second", "shown"), [(20, 20, (4, 4)), (20, 1, (7, 1)), (2, 20, (2, 6)), (9, 0, (8, 0))]
)
def test_calls_without_a_partner_are_shown_of_both_sides(first: int, second: int, shown: tuple[int, int]) -> None:
    lone = [
        tuple(Unpaired(call(f"Torch.{name}.{index}.forward"), None, "") for index in range(count))
        for name, count in (("add", first), ("mul", second))
    ]
    text = render(comparison(rank_result(only_reference=lone[0], only_candidate=lone[1])))
    assert (text.count("only in the reference"), text.count("only in the candidate")) == shown
    assert f"and {first + second - 8} more: " in text


def test_other_sources_stand_with_error_and_tolerance() -> None:
    found = comparison(rank_result(call_result(role="source"), call_result("Torch.exp.1.forward", "drift")))
    assert "  also          Torch.exp.1.forward  drift  error 0.25  tolerance 1.2e-06  in blocks.0\n" in render(found)


def test_calls_that_the_framework_makes_are_only_counted() -> None:
    own = tuple(Unpaired(call(f"Tensor.add_.{n}.forward", caller="optimizer"), None, "") for n in range(3))
    text = render(comparison(rank_result(only_reference=own)))
    assert "  no partner    3 calls that the framework makes itself, such as an optimizer's\n" in text
    assert "Tensor.add_" not in text


def test_calls_of_the_framework_are_counted_apart() -> None:
    optimizer = call_result("Tensor.add_.0.forward", "propagated")
    optimizer.reference[-1].caller = "optimizer"
    text = render(comparison(rank_result(call_result(), optimizer)))
    assert "  calls         1 clean\n  tensors       2 equal\n" in text
    assert "and of the calls that the framework makes itself, such as an optimizer's: 1 propagated\n" in text


def test_why_tensors_were_not_compared_is_said() -> None:
    reasons = [
        "undefined memory",
        "x.pt is missing",
        "undefined memory",
        *(f"shape [{n}] against [1]" for n in range(5)),
    ]
    values = tuple(pair(tensor(), tensor(), "not comparable", reason=reason) for reason in reasons)
    text = render(comparison(rank_result(call_result(values=values))))
    assert (
        "not compared: undefined memory (2), x.pt is missing (1), shape [0] against [1] (1), shape [1] against [1] (1)"
        " and 3 more\n"
    ) in text


def several_ranks(steps: int, ranks: int, fault: tuple[int, int]) -> Comparison:
    return comparison(
        *(
            rank_result(call_result(role="source" if (step, rank) == fault else "clean"), step=step, rank=f"rank{rank}")
            for step in range(steps)
            for rank in range(ranks)
            if (step, rank) != (0, 1)
        )
    )


def test_several_steps_and_ranks_are_a_matrix() -> None:
    text = render(several_ranks(3, 3, (1, 2)))
    assert "\n".join(
        [
            "         rank0  rank1  rank2",
            "  step0  agree  -      agree",
            "  step1  agree  agree  source",
            "  step2  agree  agree  agree",
            "",
            "  next          tensorprobe show good --step 1 --rank 2 --filter Functional.gelu.0.forward",
        ]
    ) in (text)


def test_a_matrix_too_wide_for_the_terminal_goes_on_beneath_itself() -> None:
    text = render(several_ranks(2, 20, (1, 2)), 60, is_terminal=True)
    assert max(len(line) for line in text.splitlines() if "tensorprobe show" not in line) <= 60
    assert all(f"rank{rank}" in text for rank in range(20))
    assert text.count("step1 ") == 3


def test_of_many_steps_only_those_that_differ_are_listed() -> None:
    text = render(several_ranks(50, 1, (31, 0)))
    assert "step31" in text
    assert "step30" not in text
    assert "and 49 more steps" in text


def test_a_source_on_another_rank_says_where() -> None:
    faults = [rank_result(call_result(role="source"), step=step) for step in range(2)]
    assert "in blocks.0  (step1/rank)" in render(comparison(*faults))


def test_a_circumstance_of_all_ranks_is_said_once_and_one_of_some_with_where() -> None:
    shared, own = ("settings.threads", 2, 1), ("environment.X", None, ["a"])
    found = comparison(rank_result(circumstances=(shared,)), rank_result(step=1, circumstances=(shared, own)))
    text = render(found)
    assert text.count("settings.threads") == 1
    assert "environment.X: nothing in the reference, ['a'] in the candidate  (in step1/rank)\n" in text


def test_what_else_may_make_the_runs_differ_is_one_line_of_the_circumstances() -> None:
    ranks = [rank_result(step=step, notes=("It may differ by itself. Set this",)) for step in range(2)]
    text = render(comparison(*ranks))
    assert "  circumstances It may differ by itself. Set this\n" in text and text.count("by itself") == 1


def test_a_comparison_that_stopped_early_says_so() -> None:
    assert "--first: nothing was compared after the first source in step0/rank\n" in render(
        comparison(rank_result(call_result(role="source"), is_cut_short=True))
    )


def test_problems_of_the_whole_come_before_those_of_a_rank() -> None:
    problems = ("reference step0/rank: its last line was cut off",)
    found = comparison(rank_result(problems=problems), rank_result(step=1), problems=("step 2 is only in good",))
    assert f"  problems      step 2 is only in good\n                {problems[0]}\n" in render(found)


@pytest.mark.parametrize(("share", "text"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50 %"), (0.0, "0 %")])
def test_only_all_of_it_is_a_hundred_percent(share: float, text: str) -> None:
    assert format_share(share) == text


def test_paths_with_spaces_can_be_copied_into_a_shell() -> None:
    found = comparison(rank_result(call_result(role="source")), reference="a b", candidate="c'd")
    text = render(found)
    assert "tensorprobe show 'a b' --step 0" in text
    assert """tensorprobe show 'c'"'"'d' --step 0""" in text


def test_the_next_command_for_the_candidate_names_its_own_step() -> None:
    rank = rank_result(call_result(role="source"), step=0, rank="rank1", candidate_name="step7/rank3")
    text = render(comparison(rank))
    assert "tensorprobe show good --step 0 --rank 1 --filter" in text
    assert "tensorprobe show bad --step 7 --rank 3 --filter" in text
    process = rank_result(call_result(role="source"), candidate_name="proc12")
    assert "tensorprobe show bad --filter" in render(comparison(process))


def test_runs_of_which_nothing_was_compared() -> None:
    found = with_verdict("not compared", "Nothing could be compared.", coverage=coverage(10, 0))
    text = render(found)
    assert text.startswith("Nothing could be compared.\n")
    assert "0 of 10 calls of the reference and 0 of 10 of the candidate have a partner (0 %)" in text


def test_dumps_without_a_step_in_common() -> None:
    verdict = Verdict("not compared", "Nothing could be compared: the two dumps have no step and rank in common.")
    text = render(Comparison("good", "bad", (), verdict, ("step 1 is only in the reference",)))
    assert text.startswith("Nothing could be compared")
    assert "  problems      step 1 is only in the reference\n" in text
