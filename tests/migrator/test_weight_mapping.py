"""What the caller says of weights comes first, and what makes no sense is refused."""

from __future__ import annotations

import pytest

from tensorprobe.errors import UsageError
from tensorprobe.migrator.weight_map import map_weights
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import WeightRow


def weight(name: str, *shape: int) -> Weight:
    return Weight(name, shape or (4,), "float32")


def mapped(source: list[Weight], target: list[Weight], mapping: object) -> dict[str, str]:
    rows: list[WeightRow] = map_weights(source, target, ("pytorch", "mindspore"), mapping)  # type: ignore[arg-type]
    return {row.source.name: row.target.name for row in rows if row.source and row.target and row.rule == "mapping"}


NORMS = [weight(f"layers.{index}.{name}.weight") for index in range(2) for name in ("one", "two")]
OTHERS = [weight(f"blocks.{index}.{name}.gamma") for index in range(2) for name in ("first", "second")]


def test_a_star_stands_for_the_same_part_on_both_sides() -> None:
    assert mapped(NORMS, OTHERS, {"layers.*.one": "blocks.*.second", "layers.*.two": "blocks.*.first"}) == {
        "layers.0.one.weight": "blocks.0.second.gamma",
        "layers.0.two.weight": "blocks.0.first.gamma",
        "layers.1.one.weight": "blocks.1.second.gamma",
        "layers.1.two.weight": "blocks.1.first.gamma",
    }


def test_a_name_that_is_written_out_comes_before_one_with_a_star() -> None:
    found = mapped(NORMS, OTHERS, {"layers.*.one": "blocks.*.second", "layers.1.one.weight": "blocks.0.first.gamma"})
    assert found["layers.1.one.weight"] == "blocks.0.first.gamma"
    assert found["layers.0.one.weight"] == "blocks.0.second.gamma"


def test_a_module_stands_for_what_is_below_it_whatever_that_is_called() -> None:
    source = [weight(f"{name}.{place}.weight", 3, 3) for name in ("up1", "up2") for place in (0, 3)]
    target = [weight(f"{name}.conv{place}.weight", 3, 3) for name in ("dec1", "dec2") for place in (1, 2)]

    assert mapped(source, target, {"up1": "dec2", "up2": "dec1"}) == {
        "up1.0.weight": "dec2.conv1.weight",
        "up1.3.weight": "dec2.conv2.weight",
        "up2.0.weight": "dec1.conv1.weight",
        "up2.3.weight": "dec1.conv2.weight",
    }


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"layer.0.one": "blocks.0.first"}, "'layer.0.one', which the source does not have; nearest: layers.0"),
        ({"layers.0.one": "block"}, "mapping speaks of 'block', which the target does not have"),
        ({"layers.*.one": "blocks.1.first"}, r"no \* of 'layers.\*.one' stands for what it stands for in"),
        ({"layers.0.one": 3}, "'layers.0.one' to 3: give a name, or a list of names"),
        ({"layers.0.one": []}, "give a name, or a list of names"),
        (
            {"layers.0.one": "blocks.0.first", "layers.0.two": "blocks.0.first"},
            "another entry speaks of, too; keep one",
        ),
        ({("layers.0.one", "layers.1.one"): ["blocks.0.first", "blocks.1.first"]}, "several names on both sides"),
        (
            {"layers.0.one": ["blocks.0.first", "blocks.0.second"]},
            r"layers.0.one.weight \[4\] cannot be made of blocks",
        ),
        ({"layers": "blocks.0"}, "name the layers one by one"),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(mapping: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mapped(NORMS, OTHERS, mapping)
