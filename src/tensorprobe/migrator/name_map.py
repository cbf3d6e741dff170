"""The .npy files of two folders, paired: by name, by their numbers, or by their shapes.

Names are paths inside the folder, with `/`; a file is only paired with one of the same subfolder, so that ranks and
steps are never mixed. Two spellings of a name are known:

    0_input.npy              the number counts all that is saved
    input_float32_0.npy      the number counts what is saved under this name, or all
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tensorprobe.errors import UsageError
from tensorprobe.migrator.edit_distance import EditCosts, align_sequences

NamePair = tuple[str | None, str | None]
"""The names of one pair; None: the file has no partner."""
Shape = tuple[int, ...]

_NUMBER = re.compile(r"([0-9]+)")
_COUNTED = re.compile(r"(?P<number>[0-9]+)_(?P<name>.+)\.npy", re.DOTALL)
_TYPED = re.compile(
    r"(?P<name>.+)_(?P<dtype>bool|(?:bfloat|float|complex|u?int)[0-9]+(?:_e[0-9]m[0-9][a-z]*)?)_(?P<number>[0-9]+)\.npy",
    re.DOTALL | re.IGNORECASE,
)


def find_names(folder: Path) -> list[str]:
    """Every .npy file in a folder and below it, in natural order: 2 before 10. Links to folders are not followed."""
    names = []
    for place, _, files in os.walk(folder, onerror=_refuse):
        inside = Path(place).relative_to(folder)
        names += [(inside / name).as_posix() for name in files if name.endswith(".npy")]
    return sorted(names, key=natural_key)


def _refuse(error: OSError) -> None:
    raise UsageError(f"{error.filename} cannot be listed ({error.strerror or error}).") from error


def natural_key(name: str) -> tuple[Any, ...]:
    """Numbers in a name count as numbers."""
    parts = []
    for part in name.split("/"):
        pieces = _NUMBER.split(part)
        parts.append(tuple((piece, -1) if index % 2 == 0 else ("", int(piece)) for index, piece in enumerate(pieces)))
    return (tuple(parts), name)


def number_key(name: str) -> tuple[Any, ...]:
    """The number of either spelling; else the first and the last number in a name. Names without one come first."""
    spelled = _read_spelling(name)
    if spelled is not None and spelled.has_dtype:  # whose first number is that of float32
        return (spelled.number, spelled.number)
    numbers = [int(found) for found in _NUMBER.findall(name.rpartition("/")[2])]
    return (numbers[0], numbers[-1]) if numbers else (-1, -1)


def saved_key(name: str) -> tuple[Any, ...]:
    """The order in which files were saved, where their names tell it; the others follow in natural order."""
    spelled = _read_spelling(name)
    return (1, 0, natural_key(name)) if spelled is None else (0, spelled.number, natural_key(name))


def dtype_in_name(name: str) -> str | None:
    """What the second spelling says of the elements."""
    found = None if _COUNTED.fullmatch(_file_of(name)) else _TYPED.fullmatch(_file_of(name))
    return None if found is None else found["dtype"].lower()


def pair_by_name(reference: Sequence[str], candidate: Sequence[str]) -> list[NamePair]:
    """The same name; else the same in the other spelling, the first under that name with the first, and so on."""
    partners = {name: name for name in set(reference) & set(candidate)}
    partners.update(_pair_spellings(reference, candidate, set(partners)))
    taken = set(partners.values())
    pairs: list[NamePair] = [(name, partners.get(name)) for name in reference]
    pairs += [(None, name) for name in candidate if name not in taken]
    # Where a file has no partner it stands at its place in the order of names.
    return sorted(pairs, key=lambda pair: natural_key(pair[0] if pair[0] is not None else pair[1] or ""))


def pair_by_number(
    reference: Iterable[str], candidate: Iterable[str], sort_key: Callable[[str], Any] = number_key
) -> list[NamePair]:
    """In every subfolder, the first in the order of the key with the first, the second with the second, and so on."""
    pairs: list[NamePair] = []
    for names in _by_folder(reference, candidate):
        first, second = (sorted(side, key=sort_key) for side in names)
        pairs += zip_longest(first, second)
    return pairs


def pair_by_shape(
    reference: dict[str, Shape | None], candidate: dict[str, Shape | None], costs: EditCosts
) -> list[NamePair]:
    """In every subfolder, the sequence of shapes of one side is edited into that of the other at the least cost."""
    pairs: list[NamePair] = []
    for names in _by_folder(reference, candidate):
        first, second = (sorted(side, key=saved_key) for side in names)
        aligned = align_sequences([reference[name] for name in first], [candidate[name] for name in second], costs)
        pairs += [(None if a is None else first[a], None if b is None else second[b]) for a, b in aligned]
    return pairs


@dataclass(frozen=True, slots=True)
class _Spelled:
    """A name, read by one of the two spellings."""

    folder: str
    name: str
    number: int
    has_dtype: bool
    whole: str


def _pair_spellings(reference: Sequence[str], candidate: Sequence[str], done: set[str]) -> dict[str, str]:
    """Files whose names mean the same and are spelled differently."""
    first, second = _count_spelled(reference), _count_spelled(candidate)
    partners = {}
    for place, spelled in first.items():
        other = second.get(place)
        if other is None or spelled.has_dtype == other.has_dtype:
            continue
        if spelled.whole not in done and other.whole not in done:
            partners[spelled.whole] = other.whole
    return partners


def _count_spelled(names: Iterable[str]) -> dict[tuple[str, str, int], _Spelled]:
    """By folder and name, and which file under that name it is."""
    groups: dict[tuple[str, str], list[_Spelled]] = defaultdict(list)
    for name in names:
        spelled = _read_spelling(name)
        if spelled is not None:
            groups[spelled.folder, spelled.name].append(spelled)
    found = {}
    for place, group in groups.items():
        group.sort(key=lambda spelled: (spelled.number, spelled.whole))
        found.update({(*place, index): spelled for index, spelled in enumerate(group)})
    return found


def _read_spelling(whole: str) -> _Spelled | None:
    folder, _, file = whole.rpartition("/")
    counted = _COUNTED.fullmatch(file)
    found = counted or _TYPED.fullmatch(file)
    if found is None:
        return None
    return _Spelled(folder, found["name"], int(found["number"]), counted is None, whole)


def _by_folder(reference: Iterable[str], candidate: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    folders: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, names in enumerate((reference, candidate)):
        for name in names:
            folders[name.rpartition("/")[0]][side].append(name)
    for folder in sorted(folders, key=natural_key):
        yield folders[folder]


def _file_of(name: str) -> str:
    return name.rpartition("/")[2]
