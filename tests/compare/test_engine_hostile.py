"""Dumps that no program recorded, compared from the files to the verdict and the rows."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorprobe
from tensorprobe.errors import DumpError
from tensorprobe.report.compare_summary import summarize
from tensorprobe.report.rank import build_rank_report
from tensorprobe.run.nesting import Nesting
from tensorprobe.store.reader import open_dump
from tensorprobe.word.vocabulary import common_op
from tests.cli.command import run_here
from tests.compare.match.test_align_hostile import NAMES, dumps, make
from tests.length import count_examples
from tests.store.torch_archive import number, tensor_pickle, write_archive

DIGITS = b"\x8b" + (2_500).to_bytes(4, "little") + b"\x7f" * 2_500
"""Six thousand of them, as a pickle has them."""
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


@settings(max_examples=count_examples(60))
@given(pairs, spoilt_leaves)
def test_any_two_dumps_can_be_compared(pair: tuple[dict[str, Any], dict[str, Any]], spoilt: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [write(Path(folder) / name, dump, spoilt) for name, dump in zip("rc", pair, strict=True)]
        result = tensorprobe.compare(*paths)
        assert result.verdict.headline
        assert len(result.rows) >= len(result.ranks[0].only_reference)


def test_one_bad_tensor_file_is_one_row_and_not_the_end(tmp_path: Path) -> None:
    """Of each kind of badness one; the values beside them are compared."""
    good = np.arange(2, dtype=np.float32)
    spoil = {
        "digits.pt": lambda path: write_archive(path, tensor_pickle((7,), (1,)).replace(number(7), DIGITS), bytes(8)),
        "dimensions.pt": lambda path: write_archive(path, tensor_pickle((1,) * 40, (1,) * 40), bytes(8)),
        "cut.npy": lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"),
        "empty.npy": lambda path: path.write_bytes(b""),
        "pipe.npy": os.mkfifo,
        "folder.npy": Path.mkdir,
        "loop.npy": lambda path: path.symlink_to(path),
        "outside.npy": lambda path: path.symlink_to("/etc/hostname"),
        "device.npy": lambda path: path.symlink_to("/dev/zero"),
        "missing.npy": lambda path: None,
        "../up.npy": lambda path: None,
        "n\0l.npy": lambda path: None,
        "\ud800.npy": lambda path: None,
        "x" * 300 + ".npy": lambda path: None,
    }
    sides = []
    for side in ("reference", "candidate"):
        records = {f"Torch.sin.{n}.forward": {"output": [leaf(name)]} for n, name in enumerate([*spoil, "good.npy"])}
        folder = tmp_path / side / "step0" / "rank"
        (folder / "dump_tensor_data").mkdir(parents=True)
        (folder / "dump.json").write_text(json.dumps({"task": "tensor", "framework": "pytorch", "data": records}))
        for name, make_file in spoil.items():
            np.save(folder / "dump_tensor_data" / "good.npy", good)
            if side == "candidate":
                make_file(folder / "dump_tensor_data" / name)
            elif not set(name) & set("/\0\ud800") and len(name) < 200:
                with (folder / "dump_tensor_data" / name).open("wb") as file:
                    np.save(file, good)
        sides.append(tmp_path / side)
    rows = {row.reference_data_name: row for row in tensorprobe.compare(*sides).rows}
    assert {name for name, row in rows.items() if row.status == "equal"} == {"good.npy"}
    assert all(row.reason for name, row in rows.items() if name != "good.npy")


@pytest.mark.parametrize("others", ["agree", "differ"])
def test_one_rank_that_cannot_be_read_is_said_and_the_others_are_compared(tmp_path: Path, others: str) -> None:
    for side in ("reference", "candidate"):
        for rank in range(3):
            value = float(side == "candidate" and others == "differ" and rank == 2)
            output = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": value, "Norm": value}
            folder = tmp_path / side / "step0" / f"rank{rank}"
            folder.mkdir(parents=True)
            record = {"input_args": [], "input_kwargs": {}, "output": [output]}
            (folder / "dump.json").write_text(json.dumps({"data": {"Torch.sin.0.forward": record}}))
    (tmp_path / "candidate" / "step0" / "rank1" / "dump.json").write_text("{")
    result = tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate")
    assert [rank.verdict.kind == "not compared" for rank in result.ranks] == [False, True, False]
    assert "rank1/dump.json is not whole" in result.ranks[1].verdict.headline
    assert not result
    assert (result.verdict.kind == "incomplete") == (others == "agree")
    if others == "agree":
        assert "rank1/dump.json is not whole" in result.verdict.headline
        assert result.verdict.headline.endswith("2 of 3 steps and ranks agree.")


def test_a_single_rank_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    for side in ("reference", "candidate"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "dump.json").write_text("{" if side == "candidate" else '{"data": {}}')
    with pytest.raises(DumpError, match="is not whole"):
        tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate")


@pytest.mark.parametrize("slot", ["²", "1" * 5_000, "٣", "-1", ""])
@pytest.mark.parametrize(
    "name", ["Torch.permute.{}.forward", "Primitive.bn.BatchNorm.{}.forward", "Mint.sum.{}.forward"]
)
def test_a_place_that_is_no_number_is_no_end(tmp_path: Path, slot: str, name: str) -> None:
    leaf = {"type": "int", "value": 1}
    for side, value in (("reference", 1), ("candidate", 2)):
        fields = {"input_args": {slot: {**leaf, "value": value}}, "input_kwargs": {"shape": {slot: leaf}}}
        fields["output"] = {slot: {"type": "torch.Tensor", "shape": [2], "Max": float("nan")}}
        records = {name.format(index): fields for index in ("0", "1" * 5_000)}
        (tmp_path / side).mkdir()
        text = json.dumps({"framework": "mindspore", "data": records})
        (tmp_path / side / "dump.json").write_text(text)
    assert tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate").rows
    assert build_rank_report(next(open_dump(tmp_path / "candidate").ranks())).rows


def test_what_is_nested_as_deeply_as_a_dump_can_be_is_compared_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in ("reference", "candidate"):
        nested = "[" * 490 + json.dumps(side) + "]" * 490
        fields = f'{{"input_args": [{{"type": "x", "value": {nested}}}], "input_kwargs": {nested}, "output": {nested}}}'
        (tmp_path / side).mkdir()
        (tmp_path / side / "dump.json").write_text(
            f'{{"framework": {nested}, "data": {{"Torch.sin.0.forward": {fields}}}}}'
        )
        (tmp_path / side / "run.json").write_text(
            f'{{"versions": {nested}, "coverage": {{"unseen": {{"x": {nested}}}}}}}'
        )
    reference, candidate = tmp_path / "reference", tmp_path / "candidate"
    for command in (
        ("show", reference),
        ("show", reference, "--json"),
        ("show", reference, "--filter", "sin"),
        ("compare", reference, candidate, "-o", tmp_path / "result"),
        ("compare", reference, candidate, "--format", "json"),
    ):
        done = run_here(capsys, *command)
        assert "Traceback" not in done.stderr and done.stdout


def test_counts_of_thousands_of_digits_are_no_counts(tmp_path: Path) -> None:
    for side in ("reference", "candidate"):
        for rank in range(2):
            folder = tmp_path / side / "step0" / f"rank{rank}"
            folder.mkdir(parents=True)
            (folder / "dump.json").write_text('{"data": {"Torch.sin.0.forward": {"output": []}}}')
            (folder / "run.json").write_text('{"coverage": {"unseen": {"x": %s, "y": 3}}}' % ("9" * 4_300))
    result = tensorprobe.compare(tmp_path / "reference", tmp_path / "candidate")
    assert dict(summarize(result).coverage.unseen_reference) == {"y": 6}


def test_an_operation_with_a_name_of_many_variants_is_read_in_one_pass() -> None:
    assert common_op("mindspore", "api", "Primitive", "x." + "Ext" * 300_000 + "y").endswith("y")
    assert common_op("mindspore", "api", "Primitive", "x.SumExtV2View") == common_op(
        "mindspore", "api", "Primitive", "x.Sum"
    )


def leaf(name: str) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "data_name": name}


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
