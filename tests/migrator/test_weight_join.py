"""Query, key and value in one matrix on one side, in three on the other."""

from __future__ import annotations

import pytest

from tensorprobe.migrator.weight_map import map_weights
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import WeightRow


def weight(name: str, *shape: int, kinds: tuple[str, ...] = ()) -> Weight:
    return Weight(name, shape, "float32", kinds)


def split(
    path: str, names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj"), sizes: tuple[int, ...] = (4, 4, 4)
) -> list[Weight]:
    pairs = list(zip(names, sizes, strict=True))
    return [weight(f"{path}.{name}.weight", size, 4) for name, size in pairs] + [
        weight(f"{path}.{name}.bias", size) for name, size in pairs
    ]


def cut(rows: list[WeightRow]) -> dict[str, tuple[str, int, int]]:
    """By the name of a part: the whole, and where the part lies in it."""
    found = {}
    for row in rows:
        assert row.source is not None and row.target is not None and row.piece is not None, row
        part, whole = (row.target, row.source) if row.piece.is_of_source else (row.source, row.target)
        found[part.name] = (whole.name, row.piece.begin, row.piece.end)
    return found


@pytest.mark.parametrize("is_source_whole", [True, False])
@pytest.mark.parametrize(
    "whole",
    [
        [weight("layers.0.attn.in_proj_weight", 12, 4), weight("layers.0.attn.in_proj_bias", 12)],
        [weight("h.0.attn.c_attn.weight", 12, 4), weight("h.0.attn.c_attn.bias", 12)],
    ],
    ids=["in_proj", "c_attn"],
)
def test_what_surely_lies_one_after_the_other_is_cut_and_put_together(
    whole: list[Weight], is_source_whole: bool
) -> None:
    parts = split("blocks.0.attention")
    sides = (whole, parts) if is_source_whole else (parts, whole)

    rows = map_weights(*sides, ("pytorch", "mindspore"))

    assert {row.rule for row in rows} == {"split" if is_source_whole else "joined"}
    names = [one.name for one in whole]
    assert cut(rows) == {
        f"blocks.0.attention.{part}_proj.{leaf}": (name, 4 * place, 4 * place + 4)
        for place, part in enumerate("qkv")
        for leaf, name in zip(("weight", "bias"), names, strict=True)
    }


def test_fewer_keys_and_values_than_queries_are_cut_where_they_end() -> None:
    whole = [weight("attn.c_attn.weight", 8, 4), weight("attn.c_attn.bias", 8)]
    rows = map_weights(whole, split("attn", sizes=(4, 2, 2)), ("pytorch", "mindspore"))
    assert cut(rows)["attn.v_proj.bias"] == ("attn.c_attn.bias", 6, 8)


@pytest.mark.parametrize("name", ["qkv", "query_key_value", "qkv_proj", "to_qkv", "Wqkv"])
def test_a_name_that_does_not_say_how_the_parts_lie_leaves_it_ambiguous(name: str) -> None:
    whole = [weight(f"attn.{name}.weight", 12, 4), weight(f"attn.{name}.bias", 12)]

    rows = map_weights(whole, split("attn"), ("pytorch", "mindspore"))
    chosen = map_weights(
        whole,
        split("attn"),
        ("pytorch", "mindspore"),
        {f"attn.{name}": ["attn.q_proj", "attn.k_proj", "attn.v_proj"]},
    )
    back = map_weights(
        split("attn"),
        whole,
        ("pytorch", "mindspore"),
        {("attn.q_proj", "attn.k_proj", "attn.v_proj"): f"attn.{name}"},
    )

    assert {row.status for row in rows} == {"ambiguous"}
    assert "one after the other, or head by head" in rows[0].note
    assert rows[0].choices == ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight")
    assert cut(chosen) == cut(back)
    assert cut(chosen)["attn.v_proj.weight"] == (f"attn.{name}.weight", 8, 12)


def test_a_matrix_with_the_inputs_first_is_turned_when_it_is_cut() -> None:
    whole = [weight("attn.c_attn.weight", 4, 12, kinds=("Net", "Attention", "Conv1D")), weight("attn.c_attn.bias", 12)]
    kinds = ("Net", "Attention", "Dense")
    parts = [weight(f"attn.{name}.weight", 4, 4, kinds=kinds) for name in ("q", "k", "v")]
    parts += [weight(f"attn.{name}.bias", 4) for name in ("q", "k", "v")]

    rows = map_weights(whole, parts, ("pytorch", "mindspore"))

    matrices = [row for row in rows if row.source and len(row.source.shape) == 2]
    assert [(row.layout, row.piece and row.piece.axis) for row in matrices] == [("transposed", 1)] * 3


def test_a_square_part_of_unknown_class_is_not_turned_at_a_guess() -> None:
    whole = [weight("attn.c_attn.weight", 4, 12)]
    parts = [weight(f"attn.{name}.weight", 4, 4) for name in ("q", "k", "v")]
    assert {row.status for row in map_weights(whole, parts, ("pytorch", "mindspore"))} == {"ambiguous"}


def test_layers_of_several_blocks_are_cut_block_by_block() -> None:
    whole = [weight(f"h.{index}.attn.c_attn.weight", 12, 4) for index in range(3)]
    parts = [weight(f"blocks.{index}.attn.{name}.weight", 4, 4) for index in range(3) for name in ("wq", "wk", "wv")]
    found = cut(map_weights(whole, parts, ("pytorch", "mindspore")))
    assert all(part.split(".")[1] == whole_name.split(".")[1] for part, (whole_name, _, _) in found.items())
