"""The mapping file: it has the last word, and says clearly what is wrong with it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.alignment import Alignment, Match
from tensorprobe.compare.match.mapped_name import match_wildcards
from tensorprobe.compare.match.mapping import read_mapping
from tensorprobe.compare.match.slot_pair import pair_match_slots
from tensorprobe.errors import UsageError
from tensorprobe.run.step import Run
from tests.compare.program import Transformer
from tests.compare.run_builder import RunBuilder
from tests.config.test_api_list import SCALARS


def make_runs(candidate: Transformer | None = None, level: str = "mix") -> tuple[Run, Run]:
    reference = Transformer().record(RunBuilder(level)).build()
    return reference, (candidate or Transformer()).record(RunBuilder(level)).build()


def align_with(mapping: dict[str, Any], candidate: Transformer | None = None) -> Alignment:
    return align_calls(*make_runs(candidate), read_mapping(mapping))


def match_of(alignment: Alignment, name: str) -> Match:
    return next(match for match in alignment.matches if match.reference[0].name == name)


def test_a_call_without_a_direction_is_mapped_in_both() -> None:
    alignment = align_with({"calls": {"Functional.gelu.0": "Functional.gelu.2"}})
    for direction in ("forward", "backward"):
        match = match_of(alignment, f"Functional.gelu.0.{direction}")
        assert match.candidate[0].name == f"Functional.gelu.2.{direction}"
        assert match.rule == "mapping"


def test_a_call_with_its_direction_is_mapped_alone() -> None:
    alignment = align_with({"calls": {"Functional.gelu.0.backward": "Functional.gelu.2.backward"}})
    assert match_of(alignment, "Functional.gelu.0.forward").candidate[0].name == "Functional.gelu.0.forward"
    assert match_of(alignment, "Functional.gelu.0.backward").candidate[0].name == "Functional.gelu.2.backward"


def test_all_calls_of_a_module_are_mapped_with_its_gradients() -> None:
    alignment = align_with({"calls": {"Module.layers.0.fc.Linear": "Module.layers.1.fc.Linear"}})
    for end in ("forward.0", "backward.0", "parameters_grad"):
        match = match_of(alignment, f"Module.layers.0.fc.Linear.{end}")
        assert match.candidate[0].name == f"Module.layers.1.fc.Linear.{end}"


def test_every_other_call_is_still_in_the_result_once() -> None:
    runs = make_runs()
    alignment = align_calls(*runs, read_mapping({"calls": {"Functional.gelu.0": "Functional.gelu.2"}}))
    for run, of_match, lonely in (
        (runs[0], lambda match: match.reference, alignment.only_reference),
        (runs[1], lambda match: match.candidate, alignment.only_candidate),
    ):
        names = [call.name for match in alignment.matches for call in of_match(match)]
        names += [unpaired.call.name for unpaired in lonely]
        assert sorted(names) == sorted(call.name for call in run.calls)


def test_a_wildcard_stands_for_the_same_on_both_sides() -> None:
    alignment = align_with({"calls": {"Functional.*.0": "Functional.*.1", "Functional.gelu.0": "Functional.gelu.3"}})
    assert match_of(alignment, "Functional.linear.0.forward").candidate[0].name == "Functional.linear.1.forward"
    assert match_of(alignment, "Functional.gelu.0.forward").candidate[0].name == "Functional.gelu.3.forward", (
        "a name that is written out comes first"
    )


def test_what_a_name_that_is_written_out_has_taken_a_wildcard_leaves_alone() -> None:
    alignment = align_with({"calls": {"Functional.*.0": "Functional.*.1", "Functional.gelu.3": "Functional.gelu.1"}})
    assert match_of(alignment, "Functional.gelu.3.forward").candidate[0].name == "Functional.gelu.1.forward"
    assert match_of(alignment, "Functional.gelu.0.forward").rule != "mapping"
    taken = [match.candidate[0].name for match in alignment.matches]
    assert len(taken) == len(set(taken))


def test_modules_are_mapped_with_all_below_them() -> None:
    candidate = Transformer(names={"layers": "h"}, layers=(3, 2, 1, 0))
    alignment = align_with({"modules": {"layers.0": "h.3"}}, candidate)
    match = match_of(alignment, "Module.layers.0.attention.q.Linear.forward.0")
    assert match.candidate[0].name == "Module.h.3.attention.q.Linear.forward.0"
    assert match.rule == "mapping"


def test_modules_are_mapped_by_wildcards_and_with_or_without_wrappers() -> None:
    candidate = Transformer(prefix="module", wrapper="DistributedDataParallel", names={"attention": "mixer"})
    for pattern in ("layers.*.mixer", "module.layers.*.mixer"):
        alignment = align_with({"modules": {"layers.*.attention": pattern}}, candidate)
        match = match_of(alignment, "Module.layers.2.attention.Attention.forward.0")
        assert match.candidate[0].name == "Module.module.layers.2.mixer.Attention.forward.0"
        assert match.rule == "mapping"


def test_tensors_are_mapped_and_their_calls_with_them() -> None:
    alignment = align_with({"tensors": {"Functional.linear.0.forward.input.1": "Functional.linear.2.forward.input.1"}})
    match = match_of(alignment, "Functional.linear.0.forward")
    assert match.candidate[0].name == "Functional.linear.2.forward"
    alignment = align_with({"tensors": {"Tensor.add.0.forward.input.0": "Tensor.add.0.forward.input.1"}})
    pairs = pair_match_slots(match_of(alignment, "Tensor.add.0.forward"), alignment)
    assert [(one and one.slot, other and other.slot) for one, other in pairs][:2] == [
        ("input.0", "input.1"),
        ("input.1", "input.0"),
    ]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"calls": {"Functional.gelo.0": "Functional.gelu.0"}},
            "calls: Functional.gelo.0 is not a call of the reference. Nearest there: Functional.gelu.0",
        ),
        (
            {"calls": {"Functional.gelu.0": "Functional.gelu.9"}},
            "calls: Functional.gelu.9 is not a call of the candidate. Nearest there: Functional.gelu.",
        ),
        (
            {"modules": {"layer.*": "layers.*"}},
            "modules: layer.* is not a module of the reference. Nearest there: layers",
        ),
        (
            {"tensors": {"Tensor.add.0.forward.input.7": "Tensor.add.0.forward.input.0"}},
            "tensors: Tensor.add.0.forward.input.7 is not a tensor of the reference.",
        ),
        ({"modules": {"layers.*.fc": "layers.*.q"}}, "modules: layers.*.q is not a module of the candidate."),
        (
            {"calls": {"Functional.gelu.0.forward": "Functional.gelu.0.backward"}},
            "have no direction in common: forward against backward",
        ),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_the_nearest(mapping: dict[str, Any], message: str) -> None:
    if "direction" in message:
        with pytest.raises(UsageError, match=message):
            align_with(mapping)
        return
    [error] = align_with(mapping).unknown_names.values()
    assert message in str(error)


def test_names_on_the_wrong_sides_are_told_so() -> None:
    [error] = align_with({"modules": {"h": "layers"}}, Transformer(names={"layers": "h"})).unknown_names.values()
    assert "It is a module of the candidate: the reference's name comes first" in str(error)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"call": {}}, 'did you mean "calls"?'),
        ({"calls": ["Functional.gelu.0"]}, "calls holds a list"),
        ({"calls": {"Functional.gelu.0": None}}, "holds None where a name belongs"),
        ({"calls": {"Functional.gelu.0": ["Functional.gelu.1"]}}, "holds a list where a name belongs"),
        ({"modules": {"a.*": "b"}}, "have different numbers of *"),
        ({"modules": {"a": "c", "b": "c"}}, "both a and b are c"),
    ],
)
def test_a_wrong_section_or_type_is_refused(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_mapping(mapping)
    assert message in str(error.value)


def test_a_file_is_read_as_its_content(tmp_path: Path) -> None:
    file = tmp_path / "größe + mapping.yaml"
    file.write_text("calls:\n  Functional.gelu.0: Functional.gelu.1\nmodules:\n  0: 1\ntensors:\n", "utf-8-sig")
    mapping = read_mapping(file)
    assert mapping.calls == {"Functional.gelu.0": "Functional.gelu.1"}
    assert mapping.modules == {"0": "1"}
    assert mapping.tensors == {}, "a section without names"
    assert mapping.origin == str(file)


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_maps_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(content)
    mapping = read_mapping(file)
    assert (mapping.calls, mapping.modules, mapping.tensors, mapping.origin) == ({}, {}, {}, str(file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"calls:\n  a: b\n c: d\n", "line 3"),
        (b"calls: {a: b, a: c}", "'a' stands twice"),
        (b"calls: &x {a: b}\nmodules: *x\n", "anchors are not used"),
        (b"[" * 3_000, "nested too deeply"),
        (b"\xff\xfe", "not UTF-8"),
        (b"- calls", "holds a list"),
        (b"calls: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        (b"calls: {? [a]: b}", "not YAML"),
        (b"#" * 1_000_001, "larger than"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_mapping(file)
    assert message in str(error.value)


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("content", ["calls:\n  {}: a\n", "calls:\n  a: {}\n", "calls:\n  a: {{a: {}}}\n"])
def test_a_value_that_is_not_what_its_tag_says_is_refused_with_its_line(
    tmp_path: Path, content: str, scalar: str
) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(content.format(f"? {scalar}\n  " if content.endswith("}: a\n") else scalar))
    with pytest.raises(UsageError, match=r"is not YAML, line 2: .* put a name in quotes"):
        read_mapping(file)


@pytest.mark.parametrize("tag", ["!!map", "!!set", "!!omap", "!!pairs", "!!seq", "!!binary", "!!merge", "!!value"])
def test_a_text_that_its_tag_calls_something_else_is_refused(tmp_path: Path, tag: str) -> None:
    file = tmp_path / "mapping.yaml"
    file.write_text(f"calls: {tag} abc\n")
    with pytest.raises(UsageError):
        read_mapping(file)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes in its file system")
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mapping.yaml")
    with pytest.raises(UsageError, match=r"cannot be read \(not a regular file\)"):
        read_mapping(tmp_path / "mapping.yaml")


def test_a_name_of_many_wildcards_is_held_against_a_long_one_once() -> None:
    assert match_wildcards("*a" * 1_000 + "*b", "a" * 100_000) is None
    assert match_wildcards("*a" * 3 + "*", "aaaa") == ["a", "", "", ""]
    assert match_wildcards("layers.*.q", "layers.0.1.q") is None


@given(st.text("a*.b", max_size=7), st.text("ab.", max_size=8))
def test_a_wildcard_stands_for_what_a_regular_expression_would_find(pattern: str, name: str) -> None:
    found = re.fullmatch("([^.]*)".join(map(re.escape, pattern.split("*"))), name)
    assert match_wildcards(pattern, name) == (None if found is None else list(found.groups()))


def test_a_file_that_would_blow_up_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: y}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="anchors are not used"):
        read_mapping(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read"):
        read_mapping(tmp_path / "none.yaml")


@given(st.binary(max_size=200))
def test_no_content_of_a_file_breaks_the_reader(content: bytes) -> None:
    from tensorprobe.compare.match.mapping import _check, _parse

    try:
        _check(_parse(content, "file"), "file")
    except UsageError as error:
        assert str(error)
