"""Which weight of one network goes into which of the other: by name, by the words of the frameworks, then by order.

A pair is made in one of these ways, and says which (`rule`):

    mapping      the caller says so
    same name
    vocabulary   the same name in PyTorch's words: gamma, weight
    alike        layers with other names that have the same weights in the same shapes, as many on both sides: those
                 whose names have most in common, if that is so from both sides: `q_proj`, `query` and `wq`
    order        what is left of them, in their order
    shape        the only weight that is left of a layer, and of the layer of the same name, with the same shape
    tied         it shares its memory with one that has a partner

Nothing is guessed of a square matrix: it is taken as it is. Others are transposed if that is what makes them fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache

from tensorprobe.compare.weight_name import (
    BATCH_COUNT,
    MINDSPORE,
    common_weight_name,
    group_by_layer,
    name_in_mindspore,
)
from tensorprobe.model.weight import Weight

MAPPED, DROPPED, KEPT, UNMAPPED, MISFIT = "mapped", "dropped", "kept", "unmapped", "shape"
AS_IT_IS, RESHAPED, TRANSPOSED = "", "reshaped", "transposed"
_TRANSPOSED_CLASSES = ("Conv1D",)  # of transformers: a linear layer whose weight lies the other way round
_LINEAR_CLASSES = ("Dense", "Linear")
_MAX_ALIKE = 1000
_SAME_PART = 4
_WORD = re.compile(r"[a-z]+|[0-9]+")

_Layer = dict[str, Weight]
"""The weights of a layer by PyTorch's names for them."""


@dataclass(frozen=True, slots=True)
class WeightRow:
    """What became of one weight."""

    source: Weight | None
    target: Weight | None
    status: str
    """mapped; dropped: the other framework has no such thing; kept: the target's own value stays; unmapped; shape: the
    names say that they belong together and the shapes that they do not."""
    rule: str = ""
    layout: str = AS_IT_IS
    note: str = ""
    """What else is to be said: what it rests on, the nearest name, why it is dropped."""

    @property
    def is_bad(self) -> bool:
        return self.status in (UNMAPPED, MISFIT)


def map_weights(
    source: Sequence[Weight],
    target: Sequence[Weight],
    frameworks: tuple[str, str],
    mapping: Mapping[str, str] | None = None,
) -> list[WeightRow]:
    """Every weight of both sides, once. `frameworks`: that of the source and that of the target."""
    pairing = _Pairing(source, target, frameworks)
    pairing.pair_by(lambda weight: (mapping or {}).get(weight.name), lambda weight: weight.name, "mapping")
    pairing.pair_by(lambda weight: weight.name, lambda weight: weight.name, "same name")
    pairing.pair_by(pairing.source_name, pairing.target_name, "vocabulary")
    pairing.pair_last()
    pairing.pair_layers()
    pairing.pair_tied()
    return pairing.rows()


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


class _Pairing:
    def __init__(self, source: Sequence[Weight], target: Sequence[Weight], frameworks: tuple[str, str]) -> None:
        self._source, self._target = list(source), list(target)
        self._framework, self._other = frameworks
        self._partner: dict[str, tuple[Weight, str]] = {}
        """By the source's name: what it goes into, and by which rule."""
        self._taken: dict[str, Weight] = {}
        """By the target's name."""

    def source_name(self, weight: Weight) -> str:
        return common_weight_name(weight, self._framework)

    def target_name(self, weight: Weight) -> str:
        return common_weight_name(weight, self._other)

    def left(self) -> tuple[list[Weight], list[Weight]]:
        return (
            [weight for weight in self._source if weight.name not in self._partner],
            [weight for weight in self._target if weight.name not in self._taken],
        )

    def pair_by(
        self, source_name: Callable[[Weight], str | None], target_name: Callable[[Weight], str], rule: str
    ) -> None:
        source, target = self.left()
        known: dict[str, Weight] = {}
        for weight in target:
            known.setdefault(target_name(weight), weight)
        for weight in source:
            name = source_name(weight)
            if name is not None and name in known:
                self._pair(weight, known.pop(name), rule)

    def pair_last(self) -> None:
        """Layers of one name whose last weight is called otherwise: the `w` of a PReLU whose class is not known."""
        source, target = (
            {name(next(iter(layer.values()))).rpartition(".")[0]: layer for layer in group_by_layer(weights).values()}
            for weights, name in zip(self.left(), (self.source_name, self.target_name), strict=True)
        )
        for path, layer in source.items():
            last, other = list(layer.values()), list(target.get(path, {}).values())
            if path and len(last) == len(other) == 1 and last[0].shape == other[0].shape:
                self._pair(last[0], other[0], "shape")

    def pair_layers(self) -> None:
        """Layers whose names differ: those that have the same weights, if there are as many on both sides."""
        sides = []
        for weights, name in zip(self.left(), (self.source_name, self.target_name), strict=True):
            alike: dict[tuple[tuple[str, tuple[int, ...]], ...], list[dict[str, Weight]]] = {}
            for layer in group_by_layer(weights).values():
                leaves = {name(weight).rpartition(".")[2]: weight for weight in layer.values()}
                leaves.pop(BATCH_COUNT, None)
                mark = tuple(sorted((leaf, _plain_shape(weight)) for leaf, weight in leaves.items()))
                if mark:
                    alike.setdefault(mark, []).append(leaves)
            sides.append(alike)
        for mark, layers in sides[0].items():
            others = sides[1].get(mark, [])
            if len(layers) == len(others):
                for rule, one, other in self._match_layers(layers, others):
                    for leaf, weight in one.items():
                        self._pair(weight, other[leaf], rule)

    def _match_layers(self, layers: list[_Layer], others: list[_Layer]) -> Iterator[tuple[str, _Layer, _Layer]]:
        paths = [
            [name(next(iter(layer.values()))).split(".")[:-1] for layer in side]
            for side, name in ((layers, self.source_name), (others, self.target_name))
        ]
        alike = _find_alike(*paths) if len(layers) <= _MAX_ALIKE else {}
        for place, other in alike.items():
            yield "alike", layers[place], others[other]
        left = [layer for place, layer in enumerate(layers) if place not in alike]
        free = [layer for place, layer in enumerate(others) if place not in alike.values()]
        for one, free_one in zip(left, free, strict=True):
            yield "order", one, free_one

    def pair_tied(self) -> None:
        """A target without a partner that shares its memory with one that has: it has the same value anyway."""
        _, target = self.left()
        owners = {weight.memory: weight for weight in self._target if weight.name in self._taken}
        for weight in target:
            owner = owners.get(weight.memory) if weight.memory is not None else None
            if owner is not None and owner.shape == weight.shape:
                self._taken[weight.name] = self._taken[owner.name]

    def rows(self) -> list[WeightRow]:
        tied = {weight.memory: weight for weight in self._source if weight.name in self._partner}
        rows = [self._source_row(weight, tied) for weight in self._source]
        paired = {row.target.name for row in rows if row.target is not None}
        rows += [self._target_row(weight) for weight in self._target if weight.name not in paired]
        return rows

    def _pair(self, source: Weight, target: Weight, rule: str) -> None:
        self._partner[source.name] = (target, rule)
        self._taken[target.name] = source

    def _source_row(self, weight: Weight, tied: Mapping[object, Weight]) -> WeightRow:
        if weight.name in self._partner:
            target, rule = self._partner[weight.name]
            layout = find_layout(weight, target)
            if layout is None:
                note = f"{list(weight.shape)} does not fit into {list(target.shape)}"
                return WeightRow(weight, target, MISFIT, rule, note=note)
            return WeightRow(weight, target, MAPPED, rule, layout)
        owner = tied.get(weight.memory) if weight.memory is not None else None
        if owner is not None:
            return WeightRow(weight, None, DROPPED, "tied", note=f"shares its memory with {owner.name}")
        if weight.leaf == BATCH_COUNT:
            return WeightRow(weight, None, DROPPED, note="mindspore.nn does not count batches")
        return WeightRow(weight, None, UNMAPPED, note=self._nearest(weight, self.left()[1]))

    def _target_row(self, weight: Weight) -> WeightRow:
        if weight.name in self._taken:  # tied
            source = self._taken[weight.name]
            return WeightRow(source, weight, MAPPED, "tied", find_layout(source, weight) or AS_IT_IS)
        if weight.leaf == BATCH_COUNT:
            return WeightRow(None, weight, KEPT, note="mindspore.nn does not count batches")
        if (weight.kind or "").startswith("InstanceNorm") and weight.leaf in ("moving_mean", "moving_variance"):
            return WeightRow(None, weight, KEPT, note="PyTorch keeps no statistics of an InstanceNorm")
        return WeightRow(None, weight, UNMAPPED, note=self._nearest(weight, self.left()[0]))

    def _nearest(self, weight: Weight, others: Sequence[Weight]) -> str:
        """The weight of the same shape, else of any, whose name comes closest."""
        fitting = [other.name for other in others if other.shape == weight.shape]
        for names, what in ((fitting, "nearest of its shape"), ([other.name for other in others], "nearest")):
            found = get_close_matches(weight.name, names, 1, 0.3)
            if found:
                return f"{what}: {found[0]}"
        return ""


def _find_alike(paths: list[list[str]], others: list[list[str]]) -> dict[int, int]:
    """The places of paths that have more parts in common with each other than with any else, from both sides."""
    scores = [[_common_parts(path, other) for other in others] for path in paths]
    best = [_only_best(row) for row in scores]
    best_of_others = [_only_best([row[place] for row in scores]) for place in range(len(others))]
    return {place: other for place, other in enumerate(best) if other is not None and best_of_others[other] == place}


def _only_best(scores: list[int]) -> int | None:
    highest = max(scores)
    return scores.index(highest) if highest and scores.count(highest) == 1 else None


def _common_parts(one: list[str], other: list[str]) -> int:
    """How much two paths share, in one order: parts that are equal, then parts of which one shortens the other."""
    lengths = [0] * (len(other) + 1)
    for part in one:
        before = 0
        for place, against in enumerate(other, 1):
            shared = _SAME_PART if part == against else _common_words(part, against)
            before, lengths[place] = lengths[place], max(before + shared, *lengths[place - 1 : place + 1])
    return lengths[-1]


@lru_cache(maxsize=4096)
def _common_words(one: str, other: str) -> int:
    """How many words of one name begin a word of the other, or the reverse.

    >>> _common_words("q_proj", "query"), _common_words("q_proj", "wq"), _common_words("fc1", "dense2")
    (1, 1, 0)
    """
    words, others = _WORD.findall(one.lower()), _WORD.findall(other.lower())
    found = 0
    for word in words:
        match = next((against for against in others if _begins(word, against) or _begins(against, word)), None)
        if match is not None:
            others.remove(match)
            found += 1
    return min(found, _SAME_PART - 1)


def _begins(one: str, other: str) -> bool:
    """A number is only itself. A `w` in front of a letter stands for weight."""
    if len(one) == 2 and one[0] == "w":
        one = one[1]
    return one == other or (other.isalpha() and other.startswith(one))


def find_layout(source: Weight, target: Weight) -> str | None:
    """How the numbers of one lie in the other; None: they do not fit."""
    kinds = source.kind, target.kind
    is_turned = any(kind in _TRANSPOSED_CLASSES for kind in kinds) and any(kind in _LINEAR_CLASSES for kind in kinds)
    if is_turned and len(source.shape) == 2 and source.shape[::-1] == target.shape:
        return TRANSPOSED
    if source.shape == target.shape:
        return AS_IT_IS
    if _plain_shape(source) == _plain_shape(target) and len(source.shape) != len(target.shape):
        return RESHAPED
    return TRANSPOSED if len(source.shape) == 2 and source.shape[::-1] == target.shape else None


def _plain_shape(weight: Weight) -> tuple[int, ...]:
    """Without the dimension of 1 that the kernel of MindSpore's Conv1d has."""
    shape = weight.shape
    return (*shape[:2], *shape[3:]) if len(shape) == 4 and shape[2] == 1 and weight.leaf == "weight" else shape


def _shape_there(weight: Weight, framework: str) -> tuple[tuple[int, ...], str]:
    is_kernel = weight.kind in ("Conv1d", "ConvTranspose1d", None)
    if framework != MINDSPORE and is_kernel and weight.leaf == "weight" and len(weight.shape) == 3:
        return (*weight.shape[:2], 1, weight.shape[2]), RESHAPED
    if framework == MINDSPORE and weight.kind in ("Conv1d", "Conv1dTranspose") and len(weight.shape) == 4:
        return _plain_shape(weight), RESHAPED
    return weight.shape, AS_IT_IS
