from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.config import ApiList, load_api_list
from tensorprobe.config.api_list import PREFIX_OF_CATEGORY
from tensorprobe.errors import ConfigError

APIS = Path("apis.yaml")
PREFIXES = sorted(set(PREFIX_OF_CATEGORY.values()))
SCALARS = (
    *(
        '!!int ""',
        "!!int x",
        "!!bool x",
        '!!float ""',
        "!!float x",
        "!!timestamp x",
        "!!timestamp 2001-99-99",
        "2001-99-99",
    ),
    *("1:" * 100_000 + "1", "0x" + "f" * 10_000, "9" * 5_000, "!!null " + "x" * 101),
)
"""What pyyaml's safe loader meets with any exception, or with a number that takes minutes."""


def read(text: str) -> ApiList:
    APIS.write_text(text, encoding="utf-8")
    return load_api_list(APIS)


def test_a_list_is_exactly_what_is_recorded_of_its_category() -> None:
    apis = read("functional:  # the category\n  - conv1d\n  - conv2d\n")
    assert apis.decide("Functional", "conv1d", default=True)
    assert apis.decide("Functional", "conv1d", default=False)
    assert not apis.decide("Functional", "relu", default=True)


def test_an_empty_list_records_nothing_of_its_category() -> None:
    assert not read("functional: []").decide("Functional", "conv1d", default=True)


def test_add_and_remove_change_the_defaults() -> None:
    apis = read("tensor:\n  add: [size]\n  remove: [__getitem__, view]\n")
    assert apis.decide("Tensor", "size", default=False)
    assert not apis.decide("Tensor", "view", default=True)
    assert apis.decide("Tensor", "matmul", default=True)
    assert not apis.decide("Tensor", "dim", default=False)


@given(st.sampled_from(PREFIXES), st.text(), st.booleans())
def test_without_rules_the_defaults_hold(prefix: str, name: str, default: bool) -> None:
    assert ApiList().decide(prefix, name, default) == default


def test_a_category_that_is_left_out_keeps_its_defaults() -> None:
    apis = read("functional: [conv1d]")
    assert apis.decide("Torch", "add", default=True)
    assert not apis.decide("Torch", "is_tensor", default=False)


@pytest.mark.parametrize(("category", "prefix"), PREFIX_OF_CATEGORY.items())
def test_every_category_is_about_records_with_its_prefix(category: str, prefix: str) -> None:
    apis = read(f"{category}: [one]")
    kept = {each for each in PREFIXES if apis.decide(each, "other", default=True)}
    assert kept == set(PREFIXES) - {prefix}


CATEGORIES = (
    "functional, tensor, torch, distributed, npu, torch_npu, jit, ops, aten, autograd, mint, mint_functional, primitive"
)
NAMES_ADVICE = "write a list of names, like [conv1d, conv2d]"
RULE_ADVICE = "write a list of names, or add: and remove: with a list each"
FILE_ADVICE = "write a category and its names, like functional: [conv1d, conv2d]"

WRONG_FILES = [
    ("", f"apis.yaml is empty; {FILE_ADVICE}"),
    ("# nothing yet\n", f"apis.yaml is empty; {FILE_ADVICE}"),
    ("{}", f"apis.yaml is empty; {FILE_ADVICE}"),
    ("- conv1d\n", f"apis.yaml holds ['conv1d']; {FILE_ADVICE}"),
    (
        "functonal: [conv1d]",
        f'unknown category "functonal" in apis.yaml; did you mean "functional"? Accepted categories: {CATEGORIES}',
    ),
    ("colour: [red]", f'unknown category "colour" in apis.yaml. Accepted categories: {CATEGORIES}'),
    ("7: [red]", f'unknown category "7" in apis.yaml. Accepted categories: {CATEGORIES}'),
    ("functional:\n", f'category "functional" is empty (in apis.yaml); {RULE_ADVICE}'),
    ("functional: {}", f'category "functional" is empty (in apis.yaml); {RULE_ADVICE}'),
    ("functional: conv1d", f"category \"functional\" holds 'conv1d' (in apis.yaml); {RULE_ADVICE}"),
    ("torch: {add: abs}", f"\"torch.add\" holds 'abs' (in apis.yaml); {NAMES_ADVICE}"),
    ("torch: {remove: }", f'"torch.remove" is empty (in apis.yaml); {NAMES_ADVICE}'),
    (
        "torch: {ad: [abs]}",
        'unknown key "ad" in category "torch" of apis.yaml; did you mean "add"? Accepted keys: add, remove',
    ),
    ("torch: {only: [abs]}", 'unknown key "only" in category "torch" of apis.yaml. Accepted keys: add, remove'),
    (
        "torch: {add: [abs, sum], remove: [sum]}",
        'category "torch" both adds and removes "sum" (in apis.yaml); keep one of them',
    ),
    (
        "torch: [abs, yes]",
        "True is not the name of an API (in apis.yaml, key \"torch\"); write one in quotes, like 'conv1d'",
    ),
    (
        "torch: {add: ['']}",
        "'' is not the name of an API (in apis.yaml, key \"torch.add\"); write one in quotes, like 'conv1d'",
    ),
    (
        "npu: [one]\ntorch_npu: [two]",
        'apis.yaml has the category "torch_npu" under two names; join them under one',
    ),
    ("torch: [abs]\ntensor: [abs]\ntorch: [sum]", 'apis.yaml has the key "torch" twice (line 3); join the two'),
    ("torch:\n  add: [abs]\n  add: [sum]", 'apis.yaml has the key "add" twice (line 3); join the two'),
    (
        "torch: [abs",
        "apis.yaml is not valid YAML: expected ',' or ']', but got '<stream end>' (line 1, column 12); "
        "correct it there",
    ),
    (
        "torch: !!python/object/apply:os.getcwd []",
        "apis.yaml is not valid YAML: could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.getcwd' (line 1, column 8); correct it there",
    ),
]


@pytest.mark.parametrize(("content", "text"), WRONG_FILES)
def test_a_file_that_is_no_list_of_apis(content: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(content)
    assert str(caught.value) == text


@pytest.mark.parametrize("content", ["torch: [2001-99-99]", "torch: ['\x07']", "[" * 100_000])
def test_what_pyyaml_cannot_take_is_an_error_about_the_file(content: str) -> None:
    with pytest.raises(ConfigError, match=r"^apis\.yaml is not valid YAML: "):
        read(content)


def test_a_file_that_contains_itself_is_an_error_about_the_file() -> None:
    with pytest.raises(ConfigError, match=r"anchors are not used \(line 1, column 16\)"):
        read("torch: &names [*names]")


def test_a_few_lines_that_stand_for_more_than_memory_holds_are_refused_at_once() -> None:
    lines = ["a: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    with pytest.raises(ConfigError, match="anchors are not used"):
        read("\n".join([*lines, "torch: *a29"]))


@pytest.mark.parametrize("scalar", SCALARS)
def test_a_value_that_is_not_what_its_tag_says_is_an_error_with_its_line(scalar: str) -> None:
    with pytest.raises(ConfigError, match=r"is no \w+; put a name in quotes \(line 2, column"):
        read(f"torch:\n  - {scalar}")


def test_a_byte_order_mark_is_no_error() -> None:
    assert read("\ufefftorch: [abs]").decide("Torch", "abs", default=False)


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"apis\.yaml does not exist \(looked for .*\); correct the path"):
        load_api_list(APIS)
    APIS.write_bytes(b"torch: [\xff]")
    with pytest.raises(ConfigError, match=r"apis\.yaml is not UTF-8 at byte 8; save it as UTF-8"):
        load_api_list(APIS)


def test_without_pyyaml_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigError) as caught:
        read("torch: [abs]")
    assert str(caught.value) == "apis.yaml is YAML, and pyyaml is not installed; run: pip install pyyaml"
