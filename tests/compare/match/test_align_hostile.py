"""Runs that no program recorded: any names, paths, producers and numbers. Each call is in the result once, at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.slot_pair import pair_match_slots
from tensorprobe.run.step import Run, make_call
from tensorprobe.store.reader import RankDump, Record
from tests.length import count_examples

PATHS = [
    "",
    "a",
    "a.b",
    "module",
    "module.module",
    "layers.0",
    "layers.1",
    "layers.10",
    "..",
    "a..b",
    "<b>",
    "_orig_mod",
]
NAMES = [
    *(f"Tensor.{op}.{index}.{way}" for op in ("add", "__add__") for index in (0, 1) for way in ("forward", "backward")),
    *(f"Module.{path}.Net.{way}.0" for path in PATHS for way in ("forward", "backward", "recompute")),
    *(f"Module.{path}.Net.parameters_grad" for path in PATHS),
    *("Functional.f.0.recompute", "Module.parameters_grad", "nothing", "", ".", "....", "../../x", "=1+1", "x.0.debug"),
]
numbers = st.sampled_from([None, 0, 1, True, 1.5, -2.5, math.nan, math.inf, -math.inf, 10**400, 2**70, "text"])
tensors = st.fixed_dictionaries(
    {"type": st.just("torch.Tensor"), "dtype": st.sampled_from(["torch.float32", "torch.bfloat16", None, 7])},
    optional={
        "shape": st.lists(st.sampled_from([0, 1, 2, 10**12]), max_size=2),
        "Max": numbers,
        "Min": numbers,
        "Mean": numbers,
        "source": st.sampled_from([*NAMES, None, 5]),
        "md5": st.sampled_from(["0a", "0b", None, 5]),
    },
)
records = st.fixed_dictionaries(
    {"input_args": st.lists(tensors, max_size=2), "output": st.lists(tensors, max_size=2)},
    optional={
        "module_path": st.sampled_from([*PATHS, None, 5]),
        "caller": st.sampled_from(["optimizer", None]),
        "parameters": st.dictionaries(st.sampled_from(["weight", "bias"]), tensors, max_size=2),
    },
)
dumps = st.dictionaries(st.sampled_from(NAMES), st.tuples(records, st.sampled_from([*NAMES, None])), max_size=14)


def make(dump: dict[str, tuple[dict[str, Any], str | None]]) -> Run:
    parents = {name: parent for name, (_, parent) in dump.items()}
    calls = [make_call(Record(name, fields), place, parents) for place, (name, (fields, _)) in enumerate(dump.items())]
    return Run(RankDump(Path(), Path(), 0, None, None, None), calls)


@settings(max_examples=count_examples(40))
@given(dumps, dumps)
def test_any_two_runs_can_be_aligned(one: dict[str, Any], other: dict[str, Any]) -> None:
    reference, candidate = make(one), make(other)
    alignment = align_calls(reference, candidate)
    for run, of_match, lonely in (
        (reference, lambda match: match.reference, alignment.only_reference),
        (candidate, lambda match: match.candidate, alignment.only_candidate),
    ):
        names = [call.name for match in alignment.matches for call in of_match(match)]
        names += [unpaired.call.name for unpaired in lonely]
        assert sorted(names) == sorted(call.name for call in run.calls)
    for match in alignment.matches:
        pair_match_slots(match, alignment)


def test_a_path_of_a_hundred_thousand_parts_is_no_harm() -> None:
    deep = ".".join(["a"] * 100_000)
    runs = []
    for extra in ("sin", "cos"):
        dump = {
            "Torch.sin.0.forward": ({"module_path": deep, "input_args": [], "output": []}, None),
            f"Torch.{extra}.1.forward": ({"module_path": f"{deep}.b", "input_args": [], "output": []}, None),
        }
        runs.append(make(dump))
    assert len(align_calls(*runs).matches) >= 1
