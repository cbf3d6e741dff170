"""Which records a configuration wants."""

from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.capture.selector import Selector
from tensorprobe.capture.storing import Storing
from tensorprobe.config import load_config

FIRST, LAST = "Functional.relu.0.forward", "Functional.linear.0.forward"


def selector(**options: Any) -> Selector:
    return Selector(load_config(None, **options))


def test_without_options_everything_is_kept() -> None:
    everything = selector()
    assert everything.keeps_forward and everything.keeps_backward
    assert everything.keeps_inputs and everything.keeps_outputs
    assert everything.begin("x") and everything.is_listed("x")
    assert not everything.is_selective and not everything.storing("x")


@pytest.mark.parametrize(
    ("data_mode", "kept"),
    [
        ("all", (True, True, True, True)),
        ([], (True, True, True, True)),
        ("forward", (True, False, True, True)),
        ("backward", (False, True, True, True)),
        ("input", (True, True, True, False)),
        ("output", (True, True, False, True)),
        (["forward", "output"], (True, False, False, True)),
        (["forward", "backward"], (True, True, True, True)),
    ],
    ids=str,
)
def test_data_mode_chooses_directions_and_sides(data_mode: Any, kept: tuple[bool, ...]) -> None:
    chosen = selector(data_mode=data_mode)
    assert (chosen.keeps_forward, chosen.keeps_backward, chosen.keeps_inputs, chosen.keeps_outputs) == kept


def follow(chosen: Selector, *names: str) -> list[str]:
    """Run calls one after the other; those that are inside the scope."""
    inside = []
    for name in names:
        if chosen.begin(name):
            inside.append(name)
        chosen.end(name)
    return inside


def test_scope_keeps_its_first_and_last_call_and_what_runs_between() -> None:
    chosen = selector(scope=[FIRST, LAST])
    assert chosen.is_selective
    assert follow(chosen, "a", FIRST, "b", LAST, "c") == [FIRST, "b", LAST]


def test_scope_of_a_call_that_contains_others_lasts_until_it_has_ended() -> None:
    module = "Module.fc.Linear.forward.0"
    chosen = selector(scope=[module, module])
    assert chosen.begin(module) and chosen.begin(LAST)
    chosen.end(LAST)
    assert chosen.begin("inner")
    chosen.end(module)
    assert not chosen.begin("after")


def test_scope_begins_anew_with_each_step() -> None:
    chosen = selector(scope=[FIRST, LAST])
    follow(chosen, FIRST)
    chosen.restart()
    assert follow(chosen, "a", FIRST, "b") == [FIRST, "b"]


def test_a_scope_whose_last_call_never_comes_stays_open() -> None:
    assert follow(selector(scope=[FIRST, LAST]), FIRST, "a", "b") == [FIRST, "a", "b"]


def test_list_matches_parts_of_names() -> None:
    chosen = selector(list=["relu", "conv1."])
    assert chosen.is_selective
    assert chosen.is_listed(FIRST) and chosen.is_listed("Module.conv1.Conv2d.forward.0")
    assert not chosen.is_listed(LAST) and not chosen.is_listed("Functional.conv1d.0.forward")


def test_task_tensor_stores_all_and_tensor_list_some() -> None:
    assert selector(task="tensor").storing(LAST) is Storing.ALL
    some = selector(tensor_list=["relu"])
    assert some.storing(FIRST) is Storing.ALL and not some.storing(LAST)
