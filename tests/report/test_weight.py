"""What is said of a conversion of weights."""

from __future__ import annotations

from tensorprobe.compare.weight_map import map_weights
from tensorprobe.model.weight import Weight
from tensorprobe.report.weight import COLUMNS, WeightReport


def weight(name: str, *shape: int) -> Weight:
    return Weight(name, shape, "float32")


def report(source: list[Weight], target: list[Weight]) -> WeightReport:
    return WeightReport(tuple(map_weights(source, target, ("pytorch", "mindspore"))))


def test_what_is_plain_is_counted_and_what_is_not_is_listed() -> None:
    names = [weight("norm.weight", 4), weight("fc.weight", 3, 4), weight("old.weight", 2)]
    found = report(names, [weight("norm.gamma", 4), weight("fc.weight", 4, 3)])

    assert not found.is_complete
    assert str(found).splitlines() == [
        "2 weights mapped (1 by vocabulary, 1 by same name); 1 of the source go nowhere",
        "source      target     status    rule       layout      note",
        "fc.weight   fc.weight  mapped    same name  transposed",
        "old.weight             unmapped",
    ]


def test_the_table_has_every_row_as_text() -> None:
    found = report([weight("a.weight", 4)], [weight("a.gamma", 4)])
    assert found.is_complete
    assert found.table() == [dict(zip(COLUMNS, ("a.weight", "a.gamma", "mapped", "vocabulary", "", ""), strict=True))]


def test_a_name_does_not_steer_the_terminal() -> None:
    assert "\x1b" not in str(report([weight("a\x1b[31m", 4)], [weight("b", 5)]))
