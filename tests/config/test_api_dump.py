"""What `api_dump_init` and `api_dump_start` take, and what they say of what they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.config.api_dump import ScopeName, make_keyword, read_options, read_output
from tensorprobe.errors import UsageError


def read(mode: Any = "all", scope: Any = (), dump_type: Any = "all", filter_data: Any = True) -> Any:
    return read_options(mode, list(scope) if isinstance(scope, tuple) else scope, dump_type, filter_data)


def test_the_scope_of_the_manual_is_read() -> None:
    scope = ["Functional_softmax_1_forward", "NN_Dense_1_backward", "Tensor___matmul___1_forward"]
    assert read("list", scope).names == (
        ScopeName("Functional_softmax_1", "forward"),
        ScopeName("NN_Dense_1", "backward"),
        ScopeName("Tensor___matmul___1", "forward"),
    )


def test_a_name_without_a_direction_means_both() -> None:
    (name,) = read("list", ["NN_Dense_1"]).names
    assert name == ScopeName("NN_Dense_1", None) and name.covers("forward") and name.covers("backward")


def test_without_arguments_everything_is_recorded_and_filtered() -> None:
    options = read_options("all", [], "all", True)
    assert (options.mode, options.stores_tensors, options.filters_data) == ("all", True, True)
    assert not read(dump_type="statistics").stores_tensors and not read(filter_data=False).filters_data
    assert read_options("all", None, "all", True) == options


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "al"}, "mode 'al' is not one of all, list, range, api_list; did you mean \"all\"?"),
        ({"mode": 3}, "mode 3 is not one of"),
        ({"dump_type": "stat"}, "dump_type 'stat' is not one of all, statistics"),
        ({"filter_data": "yes"}, "filter_data 'yes' is not one of True, False"),
        ({"scope": ["NN_Dense_1"]}, "mode 'all' records everything and takes no scope"),
        ({"mode": "list"}, "mode 'list' needs names in scope, and there are none"),
        ({"mode": "list", "scope": "NN_Dense_1"}, "scope 'NN_Dense_1' is not a list of names: write ['NN_Dense_1']"),
        ({"mode": "list", "scope": {"NN_Dense_1": 1}}, "is not a list of names"),
        ({"mode": "list", "scope": ["relu"]}, "'relu' in scope is not the name of a call, which mode 'list' needs"),
        ({"mode": "list", "scope": ["NN.Dense.1.forward"]}, "begin, like 'NN_Dense_1_backward'"),
        (
            {"mode": "list", "scope": ["NN_Dense_1_forward_input.0"]},
            "is one value of a call, and mode 'list' takes calls: ",
        ),
        ({"mode": "range", "scope": ["NN_A_1_forward", "NN_A_1_backward_output"]}, "write 'NN_A_1_backward'"),
        ({"mode": "list", "scope": [""]}, "'' in scope is not a name"),
        ({"mode": "range", "scope": ["NN_Dense_1"]}, "mode 'range' takes two names in scope"),
        ({"mode": "range", "scope": ["NN_Dense_1", "x"]}, "'x' in scope is not the name of a call"),
        ({"mode": "api_list", "scope": ["__"]}, "'__' in scope is part of every name"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_write(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(**arguments)
    assert text in str(caught.value)


def test_an_output_path_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_output(tmp_path / "new", False) == tmp_path / "new"
    for wrong in (tmp_path / "file", str(tmp_path / "file" / "below")):
        with pytest.raises(UsageError, match=r"cannot be a folder, because .*file is a file"):
            read_output(wrong, False)
    for wrong in (3, "", None):
        with pytest.raises(UsageError, match="is not a path"):
            read_output(wrong, False)
    with pytest.raises(UsageError, match="retain_backward 1 is not one of True, False"):
        read_output(tmp_path, 1)


@given(st.from_regex(r"[A-Za-z_]{1,12}", fullmatch=True))
def test_keywords_know_no_case_and_no_underscores(word: str) -> None:
    assert make_keyword(word) == make_keyword(word.upper()) == make_keyword(f"_{word}_".lower())
