"""What the caller says of weights: which of the source belong to which of the target.

{"fc.weight": "head.weight"}                           one weight
{"h.*.ln": "blocks.*.norm"}                            layers; a `*` is a part of a name, the same on both sides
{"up1": "decoder4"}                                    modules: what is below is paired by its names and shapes
{"fc.weight": "head.weight.T"}                         turned, which shapes do not say of a square matrix
{"attn.qkv": ["attn.q", "attn.k", "attn.v"]}           cut into parts that lie one after the other
{("attn.q", "attn.k", "attn.v"): "attn.qkv"}           put together
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from tensorprobe.errors import UsageError
from tensorprobe.migrator.weight_name import common_weight_name
from tensorprobe.model.weight import Weight
from tensorprobe.model.weight_row import find_layout

WeightMapping = Mapping[str | tuple[str, ...], str | Sequence[str]]
_TURNED = ".T"
_Stars = tuple[str, ...]
_Below = dict[str, Weight]
"""The weights that a name stands for, by what follows it."""


@dataclass(frozen=True, slots=True)
class MappedWeights:
    """What one entry says of one weight, or of one module."""

    sources: tuple[Weight, ...]
    targets: tuple[Weight, ...]
    is_turned: bool = False
    is_module: bool = False
    """These belong together, and which of them to which is to be found out."""


def expand_mapping(
    mapping: WeightMapping, sides: tuple[Sequence[Weight], Sequence[Weight]], frameworks: tuple[str, str]
) -> list[MappedWeights]:
    """All that the mapping speaks of; names that are written out come before those with a star, long ones first."""
    found: list[MappedWeights] = []
    taken: dict[tuple[int, str], tuple[int, int]] = {}
    for key, value in sorted(mapping.items(), key=lambda entry: _width(entry[0])):
        for mapped in _expand(_names(key, key), _names(value, key), sides, frameworks):
            names = [(0, one.name) for one in mapped.sources] + [(1, one.name) for one in mapped.targets]
            if any(taken.get(name) == _width(key) for name in names):
                raise UsageError(f"mapping: {key!r} speaks of a weight that another entry speaks of, too; keep one")
            if not any(name in taken for name in names):
                taken.update(dict.fromkeys(names, _width(key)))
                found.append(mapped)
    return found


def _width(key: str | tuple[str, ...]) -> tuple[int, int]:
    text = key if isinstance(key, str) else key[0] if key else ""
    return text.count("*"), -text.count(".")


def _names(said: object, key: object) -> list[str]:
    listed = [said] if isinstance(said, str) else list(said) if isinstance(said, (list, tuple)) else []
    names = [name for name in listed if isinstance(name, str) and name]
    if not names or len(names) != len(listed):
        raise UsageError(f"mapping: {key!r} to {said!r}: give a name, or a list of names")
    return names


def _expand(
    names: list[str], others: list[str], sides: tuple[Sequence[Weight], Sequence[Weight]], frameworks: tuple[str, str]
) -> Iterator[MappedWeights]:
    if len(names) > 1 and len(others) > 1:
        raise UsageError(f"mapping: {names} to {others}: several names on both sides; one of them must be one name")
    is_turned = others[0].endswith(_TURNED) and not any(f"{one.name}.".startswith(others[0]) for one in sides[1])
    if is_turned:
        others = [name.removesuffix(_TURNED) for name in others]
    sources = [_find(name, sides[0], frameworks[0], "source") for name in names]
    targets = [_find(name, sides[1], frameworks[1], "target") for name in others]
    common = [stars for stars in sources[0] if all(stars in one for one in (*sources, *targets))]
    if not common:
        raise UsageError(f"mapping: no * of {names[0]!r} stands for what it stands for in {others[0]!r}")
    for stars in common:
        below = [one[stars] for one in sources], [one[stars] for one in targets]
        yield from _pair_below(*below, is_turned)


def _find(name: str, weights: Sequence[Weight], framework: str, side: str) -> dict[_Stars, _Below]:
    """What a name stands for: a weight, or all below a module."""
    pattern = re.compile("([^.]*)".join(map(re.escape, name.split("*"))) + r"(?:\.(?P<rest>.+))?")
    found: dict[_Stars, _Below] = {}
    for weight in weights:
        fitting = pattern.fullmatch(weight.name)
        if fitting is not None:
            *path, leaf = (fitting["rest"] or "").split(".")
            if leaf:
                leaf = common_weight_name(weight, framework).rpartition(".")[2]
            found.setdefault(fitting.groups()[:-1], {})[".".join((*path, leaf))] = weight
    if not found:
        near = get_close_matches(name, [weight.name for weight in weights], 3, 0.3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"mapping speaks of {name!r}, which the {side} does not have{hint}")
    return found


def _pair_below(sources: list[_Below], targets: list[_Below], is_turned: bool) -> Iterator[MappedWeights]:
    rests = [set(one) for one in (*sources, *targets)]
    is_single = rests[0] == {""} and rests[-1] == {""}
    is_whole = len(rests) == 2 and not is_single
    has_same_names = all(one == rests[0] for one in rests)
    if is_whole and not (has_same_names and all(_fits(sources[0][rest], targets[0][rest]) for rest in rests[0])):
        yield MappedWeights(tuple(sources[0].values()), tuple(targets[0].values()), is_module=True)
        return
    for rest in sources[0]:
        if all(rest in one for one in rests):
            yield MappedWeights(tuple(one[rest] for one in sources), tuple(one[rest] for one in targets), is_turned)


def _fits(source: Weight, target: Weight) -> bool:
    return find_layout(source, target) is not None
