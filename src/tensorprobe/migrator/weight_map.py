"""Which weight of one network goes into which of the other.

A pair is made in one of these ways, and says which (`rule`):

    mapping        the caller says so
    equal values   recorded steps of both sides show the same numbers in these two only
    same name
    vocabulary     the same name in PyTorch's words: gamma, weight
    recorded       recorded steps of both sides use them in the same place
    split, joined  one holds what several of the other side hold: query, key and value
    alike          layers with the same weights in the same shapes, whose names say the same: `q_proj`, `query`, `wq`
    shape          the only ones that are left in these shapes
    tied           it shares its memory with one that has a partner

The order of the weights decides nothing: a file may have any. What has more than one place is `ambiguous`.

Nothing is guessed of a square matrix: it is taken as it is. Others are transposed if that is what makes them fit; then
a square one whose class is not known is ambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorprobe.compare.match.rule import unwrap
from tensorprobe.migrator.weight_mapping import WeightMapping, expand_mapping
from tensorprobe.migrator.weight_name import (
    BATCH_COUNT,
    MINDSPORE,
    common_weight_name,
    group_by_layer,
    name_in_mindspore,
)
from tensorprobe.migrator.weight_pairing import EQUAL_VALUES, MAPPING, SAME_NAME, VOCABULARY, WeightPairing
from tensorprobe.migrator.weight_record import RecordedPairs
from tensorprobe.migrator.weight_side import WeightSide
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import (
    AMBIGUOUS,
    AS_IT_IS,
    DROPPED,
    MAPPED,
    RESHAPED,
    TRANSPOSED,
    WeightRow,
    is_outputs_first,
    is_turned_by_class,
    plain_shape,
)


def map_weights(
    source: Sequence[Weight],
    target: Sequence[Weight],
    frameworks: tuple[str, str],
    mapping: WeightMapping | None = None,
    recorded: RecordedPairs | None = None,
) -> list[WeightRow]:
    """Every weight of both sides. `frameworks`: that of the source and that of the target."""
    pairing = WeightPairing(WeightSide(source, frameworks[0]), WeightSide(target, frameworks[1]))
    recorded = recorded or RecordedPairs()
    for mapped in expand_mapping(mapping or {}, (source, target), frameworks):
        pairing.take_mapped(mapped)
    pairing.pair_by(lambda weight: recorded.values.get(unwrap(weight.name)), lambda one: unwrap(one.name), EQUAL_VALUES)
    pairing.pair_by(lambda weight: weight.name, lambda weight: weight.name, SAME_NAME)
    pairing.pair_by(pairing.source.name, pairing.target.name, VOCABULARY)
    pairing.pair_last()
    pairing.pair_tied()
    pairing.pair_recorded(recorded.layers)
    pairing.pair_joined(recorded.cut)
    pairing.pair_layers()
    pairing.pair_single()
    pairing.pair_tied()
    return _doubt_squares(pairing.rows())


def _doubt_squares(rows: list[WeightRow]) -> list[WeightRow]:
    """If other matrices are turned by their shapes, a square one may have to be turned too, and no shape says so."""
    if not any(row.layout == TRANSPOSED and not _is_said(row) for row in rows):
        return rows
    return [_doubt(row) if row.layout == AS_IT_IS and _is_square(row) and not _is_said(row) else row for row in rows]


def _is_said(row: WeightRow) -> bool:
    """Does the caller say how it lies, or the classes of both layers?"""
    if row.status != MAPPED or row.rule == MAPPING or row.source is None or row.target is None:
        return True
    is_known = is_outputs_first(row.source) is not None and is_outputs_first(row.target) is not None
    return is_known or is_turned_by_class(row.source, row.target) or row.piece is not None


def _is_square(row: WeightRow) -> bool:
    shape = row.source.shape if row.source is not None else ()
    return len(shape) == 2 and shape[0] == shape[1] > 1


def _doubt(row: WeightRow) -> WeightRow:
    assert row.target is not None
    name = row.target.name
    note = "a square matrix, and others are transposed: it may have to be, too"
    return replace(row, status=AMBIGUOUS, note=note, choices=(name, f"{name}.T"))


def name_weights(source: Sequence[Weight], framework: str) -> list[WeightRow]:
    """Every weight under the name that it has in the other framework, where no network says which there are."""
    layers = group_by_layer(source)
    rows = []
    for weight in source:
        if framework == MINDSPORE:
            name, note = common_weight_name(weight, framework), ""
        else:
            name, note = name_in_mindspore(weight, layers[weight.path])
        if framework != MINDSPORE and weight.leaf == BATCH_COUNT:
            rows.append(WeightRow(weight, None, DROPPED, note="mindspore.nn does not count batches"))
            continue
        rule = "same name" if name == weight.name else "vocabulary"
        shape, layout = _shape_there(weight, framework)
        made = replace(weight, name=name, shape=shape, kinds=(), memory=None)
        said = note if note.startswith("uncertain") and weight.leaf == "weight" else ""
        rows.append(WeightRow(weight, made, MAPPED, rule, layout, said))
    return rows


def _shape_there(weight: Weight, framework: str) -> tuple[tuple[int, ...], str]:
    is_kernel = weight.kind in ("Conv1d", "ConvTranspose1d", None)
    if framework != MINDSPORE and is_kernel and weight.leaf == "weight" and len(weight.shape) == 3:
        return (*weight.shape[:2], 1, weight.shape[2]), RESHAPED
    if framework == MINDSPORE and weight.kind in ("Conv1d", "Conv1dTranspose") and len(weight.shape) == 4:
        return plain_shape(weight), RESHAPED
    return weight.shape, AS_IT_IS
