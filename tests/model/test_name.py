"""Names round-trip: what is written into a dump can be read back into its parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprobe.config.api_list import PREFIX_OF_CATEGORY
from tensorprobe.model.name import (
    LAYER_PREFIX,
    MODULE_PREFIXES,
    ApiName,
    DebugName,
    ModuleName,
    ParametersGradName,
    parse_name,
    recompute_name,
    slot_file_name,
)

PREFIXES = sorted(set(PREFIX_OF_CATEGORY.values()))
words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
paths = st.lists(words | st.integers(0, 99).map(str), max_size=5).map(".".join)
directions = st.sampled_from(["forward", "backward", "recompute"])
indexes = st.integers(0, 10**6)


@given(st.sampled_from(PREFIXES), st.lists(words, min_size=1, max_size=3).map(".".join), indexes, directions)
def test_an_api_name_is_read_back_as_it_was_written(prefix: str, name: str, index: int, direction: str) -> None:
    written = ApiName(prefix, name, index, direction)  # type: ignore[arg-type]
    assert parse_name(str(written)) == written


@given(
    st.sampled_from((*PREFIXES, LAYER_PREFIX)),
    st.lists(words, min_size=1, max_size=3).map(".".join),
    indexes,
    directions,
)
def test_a_name_of_api_dump_is_read_back_as_it_was_written(prefix: str, name: str, index: int, direction: str) -> None:
    written = ApiName(prefix, name, index, direction, "_")  # type: ignore[arg-type]
    assert parse_name(str(written)) == written
    assert str(written) == f"{written.call}_{direction}"


@given(st.sampled_from(MODULE_PREFIXES), paths, words, directions, indexes)
def test_a_module_name_is_read_back_as_it_was_written(
    prefix: str, path: str, class_name: str, direction: str, index: int
) -> None:
    written = ModuleName(prefix, path, class_name, direction, index)  # type: ignore[arg-type]
    assert parse_name(str(written)) == written


@given(st.sampled_from(MODULE_PREFIXES), paths, words)
def test_a_parameter_gradient_name_is_read_back_as_it_was_written(prefix: str, path: str, class_name: str) -> None:
    written = ParametersGradName(prefix, path, class_name)
    assert parse_name(str(written)) == written
    assert parse_name(f"{written}.0") == written  # as msprobe writes it


@given(st.text(min_size=1, max_size=20), indexes)
def test_a_single_point_name_is_read_back_as_it_was_written(variable: str, index: int) -> None:
    written = DebugName(variable, index)
    assert parse_name(str(written)) == written


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("Functional.linear.5.backward", ApiName("Functional", "linear", 5, "backward")),
        ("Torch.linalg.norm.0.forward", ApiName("Torch", "linalg.norm", 0, "forward")),
        ("Module.conv1.Conv2d.forward.0", ModuleName("Module", "conv1", "Conv2d", "forward", 0)),
        ("Module.0.conv1.Conv2d.backward.3", ModuleName("Module", "0.conv1", "Conv2d", "backward", 3)),
        ("Module.Net.forward.0", ModuleName("Module", "", "Net", "forward", 0)),
        ("Cell.fc.Dense.parameters_grad", ParametersGradName("Cell", "fc", "Dense")),
        ("x2_grad.0.debug", DebugName("x2_grad", 0)),
        ("NN_Dense_1_backward", ApiName("NN", "Dense", 1, "backward", "_")),
        ("Functional_softmax_1_forward", ApiName("Functional", "softmax", 1, "forward", "_")),
        ("Tensor___matmul___1_forward", ApiName("Tensor", "__matmul__", 1, "forward", "_")),
        ("Torch_linalg.norm_0_forward", ApiName("Torch", "linalg.norm", 0, "forward", "_")),
    ],
)
def test_the_names_of_the_manual(text: str, parsed: object) -> None:
    assert parse_name(text) == parsed
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "linear",
        "Functional.linear.forward",
        "Functional.linear.x.forward",
        "Module.a",
        "NN_Dense_x_forward",
        "NN_1_forward",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a record"):
        parse_name(text)


@given(st.text(min_size=1, max_size=400))
def test_every_slot_has_a_file_name_that_every_file_system_takes(slot: str) -> None:
    name = slot_file_name(slot, "pt")
    assert name.endswith(".pt") and not name.startswith(".")
    assert len(name.encode("utf-8", "surrogatepass")) <= 250
    assert not set(name) & set('/\\:*?"<>|\0\n')


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_different_slots_have_different_files(first: str, second: str) -> None:
    assert (slot_file_name(first, "pt") == slot_file_name(second, "pt")) == (first == second)


def test_a_plain_name_is_left_as_it_is() -> None:
    assert slot_file_name("Torch.add.0.forward.kwargs.other", "pt") == "Torch.add.0.forward.kwargs.other.pt"


@given(st.sampled_from(MODULE_PREFIXES), paths, words, indexes)
def test_a_repetition_differs_from_its_forward_by_the_direction_only(
    prefix: str, path: str, class_name: str, index: int
) -> None:
    forward = ModuleName(prefix, path, class_name, "forward", index)
    assert parse_name(recompute_name(str(forward))) == ModuleName(prefix, path, class_name, "recompute", index)
    assert recompute_name(f"Torch.{class_name}.{index}.forward") == f"Torch.{class_name}.{index}.recompute"
    assert recompute_name(f"NN_{class_name}_{index}_forward") == f"NN_{class_name}_{index}_recompute"


def test_half_of_a_character_is_written_by_its_number() -> None:
    name = slot_file_name("Module.sur\ud800rogate.Linear.forward.0.output.0", "pt")
    assert name == "Module.sur%D800rogate.Linear.forward.0.output.0.pt"
