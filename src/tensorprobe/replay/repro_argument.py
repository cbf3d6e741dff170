"""Recorded arguments as Python writes them: what goes into a script.

A record may come from anyone, and a script is run. So nothing of a record goes into it as it is: a name only if it
consists of letters and dots, a text only as `repr` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.run.leaf import Leaf, is_tensor, read_leaf

_WORD = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_SLOT = re.compile(r"[\w.]+", re.ASCII)
_RESULT = re.compile(r"output(?:\.(?:0|[1-9][0-9]*))+", re.ASCII)
_NOT_IN_TITLE = re.compile(r"[^\w./ -]", re.ASCII)
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Script:
    """What a call becomes: a script, and the tensors that it reads, by their names in it."""

    text: str
    tensors: Mapping[str, Leaf]


@dataclass(frozen=True)
class ArgumentWriter:
    """Writes the arguments of one call."""

    tuples: frozenset[str]
    """The places of arguments that were tuples."""
    write_tensor: Callable[[Leaf], str]
    write_object: Callable[[str, Any], str]
    """From the name of a framework's type and its value; UnknownArgumentError where it is not known."""

    def write_all(self, arguments: Any, slot: str) -> list[str]:
        """Arguments by their places, or by their names."""
        if isinstance(arguments, Mapping):
            return [f"{check_word(key)}={self.write(item, f'{slot}.{key}')}" for key, item in arguments.items()]
        return [self.write(item, f"{slot}.{index}") for index, item in enumerate(arguments)]

    def write(self, tree: Any, slot: str) -> str:
        if slot.count(".") > _MAX_DEPTH:
            raise UnknownArgumentError("arguments nested too deep")
        if isinstance(tree, list):
            items = self.write_all(tree, slot)
            if slot in self.tuples:
                return write_tuple(items)
            return f"[{', '.join(items)}]"
        if is_tensor(tree):
            return self.write_tensor(read_leaf(tree, slot))
        if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
            return "{" + ", ".join(f"{key!r}: {self.write(item, f'{slot}.{key}')}" for key, item in tree.items()) + "}"
        return self._write_plain(tree)

    def _write_plain(self, leaf: Any) -> str:
        if not isinstance(leaf, dict):
            return write_number(leaf)
        kind, value = leaf["type"], leaf.get("value")
        if kind in ("int", "bool", "float") or kind.startswith("numpy."):
            return write_number(value)
        if kind == "str" and isinstance(value, str) and not value.endswith("…"):
            return repr(value)
        if kind == "slice" and isinstance(value, list):
            return f"slice({', '.join(map(write_number, value))})"
        if kind == "ellipsis":
            return "..."
        return self.write_object(kind, value)


def write_tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def write_number(value: Any) -> str:
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
    if isinstance(value, str) and len(value) < 1000:
        return repr(value)
    raise UnknownArgumentError("an argument that is not known")


def find_results(leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    """The tensors that a call returned, by their places. What it wrote besides, and what has names, is none."""
    return {leaf.slot: leaf for leaf in leaves if _RESULT.fullmatch(leaf.slot)}


def write_results(results: Iterable[str]) -> str:
    """Where these are in what a call returned, if that is the list `results`."""
    places = {slot: "".join(f"[{part}]" for part in slot.split(".")[1:]) for slot in results}
    return "{" + ", ".join(f'"{slot}": results{place}' for slot, place in places.items()) + "}"


def check_word(text: str) -> str:
    """A name that goes into the script as it is: letters and dots, whatever a dump says."""
    if not _WORD.fullmatch(text):
        raise UnknownArgumentError(f"the name {text[:60]!r}")
    return text


def check_slot(slot: str) -> str:
    if not _SLOT.fullmatch(slot):
        raise UnknownArgumentError(f"the name {slot[:60]!r}")
    return slot


def make_title(name: str, where: str) -> str:
    """What the script says that it is. A folder, and what a primitive is called in its cell, may have any name."""
    name, where = (_NOT_IN_TITLE.sub("?", text) for text in (name, where))
    return f"{name}, recorded in {where}."
