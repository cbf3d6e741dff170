"""Dumps that no program recorded, compared from the files to the verdict and the rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import tensorprobe
from tensorprobe.compare.order import Nesting
from tests.compare.test_align_hostile import NAMES, dumps, make

HUGE = [-1, 0, 3, 2**62, 10**400]
pairs = st.one_of(dumps.map(lambda dump: (dump, dump)), st.tuples(dumps, dumps))
spoilt_leaves = st.fixed_dictionaries(
    {},
    optional={
        "shape": st.lists(st.sampled_from(HUGE), max_size=3),
        "Norm": st.sampled_from([*HUGE, float("nan")]),
        "nan_count": st.sampled_from(HUGE),
        "data_name": st.sampled_from(["../../x", "x" * 300, "\ud800.npy", "a\0b", "", "."]),
    },
)


@settings(max_examples=60)
@given(pairs, spoilt_leaves)
def test_any_two_dumps_can_be_compared(pair: tuple[dict[str, Any], dict[str, Any]], spoilt: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [write(Path(folder) / name, dump, spoilt) for name, dump in zip("rc", pair, strict=True)]
        result = tensorprobe.compare(*paths)
        assert result.verdict.headline
        assert len(result.rows) >= len(result.ranks[0].only_reference)


def test_an_endless_chain_of_modules_is_not_walked_by_every_call() -> None:
    names = [f"Module.m{number}.Net.forward.0" for number in range(2000)]
    run = make({name: ({}, parent) for name, parent in zip(names, [*names[1:], None], strict=True)})
    assert len(Nesting(run).ancestors(run.calls[0])) < 1000


def write(path: Path, dump: dict[str, tuple[dict[str, Any], str | None]], spoilt: dict[str, Any]) -> Path:
    folder = path / "step0" / "rank"
    folder.mkdir(parents=True)
    records = {name: _spoil(fields, spoilt) for name, (fields, _) in dump.items()} or {NAMES[0]: {}}
    (folder / "dump.json").write_text(json.dumps({"task": "tensor", "data": records}))
    (folder / "construct.json").write_text(json.dumps({name: parent for name, (_, parent) in dump.items()}))
    return path


def _spoil(fields: dict[str, Any], spoilt: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "output": [{**leaf, **spoilt} for leaf in fields["output"]]}
