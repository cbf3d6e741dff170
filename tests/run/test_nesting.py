"""The order of execution is rebuilt from the nesting, and a nesting that makes no sense ends."""

from __future__ import annotations

from typing import Any, cast

from tensorprobe.run.call import Call
from tensorprobe.run.nesting import Nesting, first_inside, order_of_execution
from tensorprobe.run.step import Run


def run_of(*calls: tuple[str, str | None]) -> Run:
    listed = [
        Call(name, position, "module", "Module", "Linear", 0, "forward", name, name, parent, ())
        for position, (name, parent) in enumerate(calls)
    ]
    return Run(cast(Any, None), listed)


def names(calls: list[Call]) -> list[str]:
    return [call.name for call in calls]


def test_the_modules_around_a_call_are_listed_from_the_inside_out() -> None:
    run = run_of(("relu", "block"), ("block", "model"), ("model", None), ("lost", "gone"))
    nesting = Nesting(run)
    assert names(nesting.ancestors(run.by_name["relu"])) == ["block", "model"]
    assert names(nesting.inner(run.by_name["block"])) == ["relu"]
    assert nesting.ancestors(run.by_name["lost"]) == [], "its module was not recorded"


def test_a_circle_of_modules_ends() -> None:
    run = run_of(("a", "b"), ("b", "c"), ("c", "a"), ("self", "self"), ("inside", "b"))
    nesting = Nesting(run)
    assert names(nesting.ancestors(run.by_name["a"])) == ["b", "c"]
    assert names(nesting.ancestors(run.by_name["inside"])) == ["b", "c", "a"]
    assert nesting.ancestors(run.by_name["self"]) == []
    assert sorted(order_of_execution(run, nesting).values()) == list(range(5))


def test_an_endless_chain_of_modules_ends() -> None:
    run = run_of(*((str(number), str(number + 1)) for number in range(1000)))
    assert len(Nesting(run).ancestors(run.by_name["0"])) == 256


def test_a_module_comes_after_what_it_contains_wherever_its_record_lies() -> None:
    """In a backward a module whose inputs need no gradient is closed first."""
    run = run_of(("model", None), ("block", "model"), ("relu", "block"), ("after", None))
    nesting = Nesting(run)
    places = order_of_execution(run, nesting)
    assert sorted(places, key=lambda name: places[name]) == ["relu", "block", "model", "after"]
    assert first_inside(run, nesting, places) == {"relu": 0, "block": 0, "model": 0, "after": 3}
