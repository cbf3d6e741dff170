"""What is said of a conversion of weights."""

from __future__ import annotations

from tensorprobe.migrator.weight_map import map_weights
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
        "old.weight             unmapped",
        "fc.weight   fc.weight  mapped    same name  transposed",
    ]


def test_what_is_ambiguous_is_listed_with_its_choices_and_how_to_choose() -> None:
    names = [weight(f"layers.{index}.{name}.weight", 4) for index in range(2) for name in ("one", "two")]
    others = [weight(f"blocks.{index}.{name}.gamma", 4) for index in range(2) for name in ("first", "last")]

    found = report(names, others)

    assert not found.is_complete
    assert str(found).splitlines()[:5] == [
        "0 weights mapped; 8 ambiguous",
        "What is ambiguous was left out. Say what is right (a module stands for all below it), or pass dumps=:",
        '  mapping={"layers.*.one": "blocks.*.first" or "blocks.*.last"}',
        '  mapping={"layers.*.two": "blocks.*.first" or "blocks.*.last"}',
        "source               target  status     rule  layout  note",
    ]
    note = 'may be "blocks.0.first.gamma" or "blocks.0.last.gamma"'
    assert found.table()[0]["note"] == note
    assert str(found).splitlines()[5] == f"layers.0.one.weight          ambiguous                {note}"


def test_many_choices_are_counted() -> None:
    found = report([weight("a.weight", 4), weight("b.weight", 4)], [weight(f"x{place}.gamma", 4) for place in range(9)])
    assert '  mapping={"a": "x0" or "x1" or "x2" or "x3" or 5 more}' in str(found).splitlines()


def test_the_table_has_every_row_as_text() -> None:
    found = report([weight("a.weight", 4)], [weight("a.gamma", 4)])
    assert found.is_complete
    assert found.table() == [dict(zip(COLUMNS, ("a.weight", "a.gamma", "mapped", "vocabulary", "", ""), strict=True))]


def test_a_name_does_not_steer_the_terminal() -> None:
    assert "\x1b" not in str(report([weight("a\x1b[31m", 4)], [weight("b", 5)]))
