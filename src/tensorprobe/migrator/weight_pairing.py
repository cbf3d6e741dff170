"""The pairs of a conversion while they are found, each by one rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches

from tensorprobe.compare.match.rule import unwrap
from tensorprobe.errors import UsageError
from tensorprobe.migrator.weight_choice import find_choices, may_be_one
from tensorprobe.migrator.weight_join import Joint, find_joints, make_rows
from tensorprobe.migrator.weight_layer import BY_SHAPE, Layer, match_layers
from tensorprobe.migrator.weight_mapping import MappedWeights
from tensorprobe.migrator.weight_name import BATCH_COUNT
from tensorprobe.migrator.weight_side import WeightSide
from tensorprobe.migrator.weight_word import is_counted_otherwise
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import (
    AMBIGUOUS,
    AS_IT_IS,
    DROPPED,
    KEPT,
    MAPPED,
    MISFIT,
    TRANSPOSED,
    UNMAPPED,
    WeightRow,
    find_layout,
)

MAPPING, EQUAL_VALUES, SAME_NAME, VOCABULARY = "mapping", "equal values", "same name", "vocabulary"
RECORDED, SPLIT, JOINED, TIED = "recorded", "split", "joined", "tied"


class WeightPairing:
    """Each `pair_…` looks at what those before it have left."""

    def __init__(self, source: WeightSide, target: WeightSide) -> None:
        self.source, self.target = source, target
        self._rows: dict[str, list[WeightRow]] = {}
        """By the source's name."""
        self._partner: dict[str, Weight] = {}
        """By the target's name: one of the source that goes into it."""
        self._doubts: dict[str, WeightRow] = {}
        """By the target's name: what stays ambiguous although it is known what it belongs to."""

    def take_mapped(self, mapped: MappedWeights) -> None:
        if mapped.is_module:
            self._pair_module(mapped)
            return
        if len(mapped.sources) == len(mapped.targets) == 1:
            source, target = mapped.sources[0], mapped.targets[0]
            self._pair(source, target, MAPPING, TRANSPOSED if mapped.is_turned else None)
            return
        is_source_whole = len(mapped.sources) == 1
        whole = (mapped.sources if is_source_whole else mapped.targets)[0]
        parts = mapped.targets if is_source_whole else mapped.sources
        rows = make_rows(Joint(whole, parts, is_source_whole, True), MAPPING)
        if rows is None:
            listed = ", ".join(f"{part.name} {list(part.shape)}" for part in parts)
            raise UsageError(
                f"mapping: {whole.name} {list(whole.shape)} cannot be made of {listed}, one after the other"
            )
        self._take_rows(rows)

    def _pair_module(self, mapped: MappedWeights) -> None:
        names = {weight.name for weight in mapped.sources}, {weight.name for weight in mapped.targets}
        sides = [
            [layer for layer in side.layers() if all(one.name in known for one in layer.weights.values())]
            for side, known in zip((self.source, self.target), names, strict=True)
        ]
        pairs = list(match_layers(sides[0], sides[1], lambda *_: True))
        if not pairs:
            places = " and ".join(min(known) for known in names)
            raise UsageError(f"mapping: nothing beside {places} has one partner only; name the layers one by one")
        for _, layer, other in pairs:
            self._pair_layer(layer, other, MAPPING)

    def pair_by(
        self, source_name: Callable[[Weight], str | None], target_name: Callable[[Weight], str], rule: str
    ) -> None:
        """Weights that have one name, which no other of their side has."""
        sides: list[dict[str | None, list[Weight]]] = [{}, {}]
        for weight in self.source.left():
            sides[0].setdefault(source_name(weight), []).append(weight)
        for weight in self.target.left():
            sides[1].setdefault(target_name(weight), []).append(weight)
        for name, weights in sides[0].items():
            others = sides[1].get(name, [])
            is_only = name is not None and len(weights) == len(others) == 1
            if is_only and (rule == EQUAL_VALUES or not self._is_doubtful(weights[0], others[0])):
                self._pair(weights[0], others[0], rule)

    def _is_doubtful(self, source: Weight, target: Weight) -> bool:
        """The same name, but for another sibling: one network counts from 0, the other from 1."""
        path = self.source.path(source)
        is_same = path == self.target.path(target)
        return is_same and is_counted_otherwise(path, self.source.naming, self.target.naming)

    def pair_last(self) -> None:
        """Layers of one name whose last weight is called otherwise: the `w` of a PReLU whose class is not known."""
        others = {layer.path: layer for layer in self.target.layers()}
        for layer in self.source.layers():
            other = others.get(layer.path)
            if not layer.path or other is None or not len(layer.weights) == len(other.weights) == 1:
                continue
            last, against = next(iter(layer.weights.values())), next(iter(other.weights.values()))
            if last.shape == against.shape and not self._is_doubtful(last, against):
                self._pair(last, against, BY_SHAPE)

    def pair_recorded(self, layers: Mapping[str, str]) -> None:
        others = {_own_path(layer): layer for layer in self.target.layers()}
        for layer in self.source.layers():
            other = others.get(layers.get(_own_path(layer), ""))
            if other is not None and layer.signature == other.signature:
                self._pair_layer(layer, other, RECORDED)

    def pair_joined(self, cut: tuple[Collection[str], Collection[str]]) -> None:
        """`cut`: layers of each side whose result is known to be cut into parts that lie one after the other."""
        namings = self.source.naming, self.target.naming
        for joint in find_joints(self.source.layers(), self.target.layers(), namings):
            if any(one.name in self.source.taken for one in joint.sources):
                continue
            rows = make_rows(joint, SPLIT if joint.is_source_whole else JOINED)
            is_cut = unwrap(joint.whole.path) in cut[0 if joint.is_source_whole else 1]
            if rows is not None and (joint.is_in_blocks or is_cut):
                self._take_rows(rows)
            else:
                self._doubt(joint)

    def pair_layers(self) -> None:
        """Layers whose names differ; then once more without those that are tied to another."""
        for is_distinct in (False, True):
            layers, others = self.source.layers(is_distinct), self.target.layers(is_distinct)
            for rule, layer, other in match_layers(layers, others, self._are_not_named_otherwise(layers, others)):
                self._pair_layer(layer, other, rule)

    def pair_single(self) -> None:
        """Weights one by one, of layers that do not have the same weights: one has a bias, the other none."""
        layers, others = self.source.singles(), self.target.singles()
        is_free = self._are_not_named_otherwise(layers, others)
        for rule, layer, other in match_layers(layers, others, lambda *pair: is_free(*pair) and self._do_fit(*pair)):
            self._pair_layer(layer, other, rule)

    def pair_tied(self) -> None:
        """A target without a partner that shares its memory with one that has: it has the same value anyway."""
        owners = _owners(self.target, self._partner)
        for weight in self.target.left():
            owner = owners.get(weight.memory) if weight.memory is not None else None
            if owner is not None and owner.shape == weight.shape and owner.name in self._partner:
                self.target.taken.add(weight.name)
                source = self._partner[owner.name]
                layout = find_layout(source, weight) or AS_IT_IS
                self._rows[source.name].append(WeightRow(source, weight, MAPPED, TIED, layout))

    def rows(self) -> list[WeightRow]:
        """Those of the source, then what is left of the target."""
        sides = self.source.layers(is_distinct=True), self.target.layers(is_distinct=True)
        choices = find_choices(*sides), find_choices(*sides[::-1])
        rows: list[WeightRow] = []
        owners = _owners(self.source, self.source.taken)
        for weight in self.source.weights:
            owner = None if weight.memory is None else owners.get(weight.memory)
            rows += self._rows.get(weight.name) or [self._source_row(weight, owner, choices[0].get(weight.name, ()))]
        rows += self._doubts.values()
        return rows + [self._target_row(weight, choices[1].get(weight.name, ())) for weight in self.target.left()]

    def _pair(self, source: Weight, target: Weight, rule: str, layout: str | None = None) -> None:
        layout = find_layout(source, target) if layout is None else layout
        if layout is None or (layout == TRANSPOSED and source.shape[::-1] != target.shape):
            note = f"{list(source.shape)} does not fit into {list(target.shape)}"
            row = WeightRow(source, target, MISFIT, rule, note=note)
        else:
            row = WeightRow(source, target, MAPPED, rule, layout)
            self._partner[target.name] = source
        self._rows[source.name] = [row]
        self.source.taken.add(source.name)
        self.target.taken.add(target.name)

    def _pair_layer(self, layer: Layer, other: Layer, rule: str) -> None:
        for (_, weight), (_, against) in zip(sorted(layer.weights.items()), sorted(other.weights.items()), strict=True):
            self._pair(weight, against, rule)

    def _take_rows(self, rows: Iterable[WeightRow]) -> None:
        for row in rows:
            assert row.source is not None and row.target is not None
            self._rows.setdefault(row.source.name, []).append(row)
            self.source.taken.add(row.source.name)
            self.target.taken.add(row.target.name)

    def _doubt(self, joint: Joint) -> None:
        """It is known which belong together, not how the numbers of the parts lie in the whole."""
        names = tuple(weight.name for weight in joint.sources), tuple(weight.name for weight in joint.targets)
        parts = ", ".join(weight.name for weight in joint.parts)
        note = f"{joint.whole.name} may hold {parts} one after the other, or head by head"
        for source in joint.sources:
            self._rows[source.name] = [WeightRow(source, None, AMBIGUOUS, note=note, choices=names[1])]
            self.source.taken.add(source.name)
        for target in joint.targets:
            self._doubts[target.name] = WeightRow(None, target, AMBIGUOUS, note=note, choices=names[0])
            self.target.taken.add(target.name)

    def _are_not_named_otherwise(
        self, layers: Sequence[Layer], others: Sequence[Layer]
    ) -> Callable[[Layer, Layer], bool]:
        """A layer goes into no other as long as one of its own name, with the same weights, is there."""
        known = {(one.path, one.signature) for one in layers}, {(one.path, one.signature) for one in others}

        def is_free(layer: Layer, other: Layer) -> bool:
            if layer.path == other.path:
                return not is_counted_otherwise(layer.path, self.source.naming, self.target.naming)
            return (layer.path, layer.signature) not in known[1] and (other.path, other.signature) not in known[0]

        return is_free

    def _do_fit(self, single: Layer, other: Layer) -> bool:
        """Weights of one layer go into one layer, and the rest of both fits."""
        path, other_path = single.path[:-1], other.path[:-1]
        layer, against = self.source.layer(path), self.target.layer(other_path)
        rows = [row for weight in layer.values() for row in self._rows.get(weight.name, ()) if row.target]
        into = {self.target.path(row.target) for row in rows if row.target is not None}
        out_of = {self.source.path(self._partner[one.name]) for one in against.values() if one.name in self._partner}
        is_one = into <= {other_path} and out_of <= {path}
        return is_one and may_be_one(layer, single.path[-1], against, other.path[-1])

    def _source_row(self, weight: Weight, owner: Weight | None, choices: Sequence[Weight]) -> WeightRow:
        if owner is not None:
            return WeightRow(weight, None, DROPPED, TIED, note=f"shares its memory with {owner.name}")
        if weight.leaf == BATCH_COUNT:
            return WeightRow(weight, None, DROPPED, note="mindspore.nn does not count batches")
        if choices:
            return WeightRow(weight, None, AMBIGUOUS, choices=tuple(choice.name for choice in choices))
        return WeightRow(weight, None, UNMAPPED, note=_nearest(weight, self.target.left()))

    def _target_row(self, weight: Weight, choices: Sequence[Weight]) -> WeightRow:
        if weight.leaf == BATCH_COUNT:
            return WeightRow(None, weight, KEPT, note="mindspore.nn does not count batches")
        if (weight.kind or "").startswith("InstanceNorm") and weight.leaf in ("moving_mean", "moving_variance"):
            return WeightRow(None, weight, KEPT, note="PyTorch keeps no statistics of an InstanceNorm")
        if choices:
            return WeightRow(None, weight, AMBIGUOUS, choices=tuple(choice.name for choice in choices))
        return WeightRow(None, weight, UNMAPPED, note=_nearest(weight, self.source.left()))


def _owners(side: WeightSide, names: Collection[str]) -> dict[Hashable, Weight]:
    """Of each memory, the first weight by name that is among these."""
    weights = sorted(side.weights, key=lambda weight: weight.name, reverse=True)
    return {weight.memory: weight for weight in weights if weight.name in names}


def _own_path(layer: Layer) -> str:
    """As its framework calls it, without wrappers."""
    return unwrap(next(iter(layer.weights.values())).path)


def _nearest(weight: Weight, others: Sequence[Weight]) -> str:
    """The weight of the same shape, else of any, whose name comes closest."""
    fitting = sorted(other.name for other in others if other.shape == weight.shape)
    every = sorted(other.name for other in others)
    for names, what in ((fitting, "nearest of its shape"), (every, "nearest")):
        found = get_close_matches(weight.name, names, 1, 0.3)
        if found:
            return f"{what}: {found[0]}"
    return ""
