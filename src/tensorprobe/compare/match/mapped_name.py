"""What the names in a mapping file stand for in two runs.

A `*` stands for one part of a name, between two dots, or for a piece of one. A name that is written out comes before
one with a `*`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches

from tensorprobe.compare.match.mapping import Mapping
from tensorprobe.compare.match.rule import unwrap
from tensorprobe.compare.match.side import Side
from tensorprobe.errors import UsageError
from tensorprobe.model.name import module_stem
from tensorprobe.run.call import Call
from tensorprobe.run.module_tree import ModuleNode

Role = tuple[str, int]
"""Direction and index: which records of two names belong together."""
_MAX_NEAR_CHARACTERS = 300


class MappedNames:
    """The pairs that a mapping file asks for."""

    def __init__(self, mapping: Mapping, reference: Side, candidate: Side) -> None:
        self._mapping = mapping
        self._reference = reference
        self._candidate = candidate
        self.calls: dict[int, int] = {}
        self.modules: dict[ModuleNode, ModuleNode] = {}
        self.slots: dict[str, dict[str, str]] = {}
        """For a call of the reference: its slots, and those of the candidate's call that stand against them."""
        self.unknown: dict[tuple[str, str], UsageError] = {}
        """Entries that stand for nothing here; another step may have what they name."""
        self._taken_calls: set[int] = set()
        self._pair_calls()
        self._pair_modules()
        self._pair_tensors()

    def _pair_calls(self) -> None:
        names, other_names = _names_of_calls(self._reference), _names_of_calls(self._candidate)
        for name, other_name in self._expand("calls", self._mapping.calls, names, other_names):
            roles, other_roles = names[name], other_names[other_name]
            shared = [role for role in roles if role in other_roles]
            if not shared and "*" not in name:
                raise UsageError(
                    f"{self._mapping.origin}: calls: {name} and {other_name} have no direction in common: "
                    f"{_directions(roles)} against {_directions(other_roles)}."
                )
            for role in shared:
                self._take(roles[role], other_roles[role])

    def _pair_modules(self) -> None:
        names = _names_of_modules(self._reference)
        other_names = _names_of_modules(self._candidate)
        for name, other_name in self._expand("modules", self._mapping.modules, names, other_names):
            node, other = names[name], other_names[other_name]
            if node not in self.modules and other not in self.modules.values():
                self.modules[node] = other

    def _pair_tensors(self) -> None:
        if not self._mapping.tensors:
            return
        names, other_names = _names_of_slots(self._reference), _names_of_slots(self._candidate)
        for name, other_name in self._expand("tensors", self._mapping.tensors, names, other_names):
            (number, slot), (other, other_slot) = names[name], other_names[other_name]
            self._take(number, other)
            self.slots.setdefault(self._reference.calls[number].name, {})[slot] = other_slot

    def _take(self, number: int, other: int) -> None:
        if number not in self.calls and other not in self._taken_calls:
            self.calls[number] = other
            self._taken_calls.add(other)

    def _expand(
        self, section: str, entries: dict[str, str], names: Collection[str], other_names: Collection[str]
    ) -> Iterator[tuple[str, str]]:
        """Names that exist; those without a * first."""
        for name, other_name in sorted(entries.items(), key=lambda entry: "*" in entry[0]):
            found = list(_expand_entry(name, other_name, names, other_names))
            yield from found
            if not found:
                self.unknown[section, name] = (
                    self._refuse(section, name, names, other_names, "reference")
                    or self._refuse(section, other_name, other_names, names, "candidate")
                    or UsageError(
                        f"{self._mapping.origin}: {section}: no name that {name} stands for has its partner "
                        f"in {other_name} of the candidate."
                    )
                )

    def _refuse(
        self, section: str, name: str, names: Collection[str], other_names: Collection[str], side: str
    ) -> UsageError | None:
        """What to raise if a name stands for nothing in its run."""
        if _matching(name, names):
            return None
        what = {"calls": "a call", "modules": "a module", "tensors": "a tensor"}[section]
        if _matching(name, other_names):
            other_side = "candidate" if side == "reference" else "reference"
            hint = f"It is {what} of the {other_side}: the reference's name comes first."
        else:
            short = [one for one in names if len(one) <= _MAX_NEAR_CHARACTERS]  # the cost grows with the square
            near = get_close_matches(name[:_MAX_NEAR_CHARACTERS], short, n=3, cutoff=0.3)
            hint = f"Nearest there: {', '.join(near)}." if near else "It has none."
        return UsageError(f"{self._mapping.origin}: {section}: {name} is not {what} of the {side}. {hint}")


def _expand_entry(
    name: str, other_name: str, names: Collection[str], other_names: Collection[str]
) -> Iterator[tuple[str, str]]:
    if "*" not in name:
        if name in names and other_name in other_names:
            yield name, other_name
        return
    for found in names:
        pieces = match_wildcards(name, found)
        if pieces is not None:
            between = other_name.split("*")
            wanted = between[0] + "".join(piece + text for piece, text in zip(pieces, between[1:], strict=True))
            if wanted in other_names:
                yield found, wanted


def _matching(name: str, names: Collection[str]) -> bool:
    if "*" not in name:
        return name in names
    return any(match_wildcards(name, found) is not None for found in names)


def match_wildcards(pattern: str, name: str) -> list[str] | None:
    """What each * stands for, the first as much as it can; None if the name does not fit.

    Part by part and without trying again: a pattern of many * may be wrong in more ways than there is time for.

    >>> match_wildcards("layers.*.a*c", "layers.0.abbc")
    ['0', 'bb']
    """
    parts, found_parts = pattern.split("."), name.split(".")
    if len(parts) != len(found_parts):
        return None
    pieces: list[str] = []
    for part, found in zip(parts, found_parts, strict=True):
        texts = part.split("*")
        inner = _match_part(texts, found) if len(texts) > 1 else None
        if inner is None and part != found:
            return None
        pieces += inner or []
    return pieces


def _match_part(texts: list[str], found: str) -> list[str] | None:
    """From the right, each text at its last place, so that the first * gets the most."""
    first, last = texts[0], texts[-1]
    if len(found) < len(first) + len(last) or not found.startswith(first) or not found.endswith(last):
        return None
    end = len(found) - len(last)
    pieces: list[str] = []
    for text in reversed(texts[1:-1]):
        at = found.rfind(text, len(first), end)
        if at < 0:
            return None
        pieces.append(found[at + len(text) : end])
        end = at
    return [found[len(first) : end], *reversed(pieces)]


def _names_of_calls(side: Side) -> dict[str, dict[Role, int]]:
    """Every name that a call may be given in a mapping: in full, or without its direction."""
    names: dict[str, dict[Role, int]] = {}
    for number, call in enumerate(side.calls):
        names[call.name] = {(call.direction, 0): number}
    for number, call in enumerate(side.calls):
        stem, index = _stem(call)
        if stem:
            names.setdefault(stem, {})[("parameters_grad" if _is_gradient(call) else call.direction, index)] = number
    return names


def _stem(call: Call) -> tuple[str, int]:
    if call.kind == "api":
        return call.name.removesuffix(call.direction)[:-1] if call.prefix else "", 0
    if call.kind in ("module", "parameters_grad"):
        return module_stem(call.prefix, call.path, call.op), call.index
    return "", 0


def _is_gradient(call: Call) -> bool:
    return call.kind == "parameters_grad"


def _names_of_modules(side: Side) -> dict[str, ModuleNode]:
    """Module paths as the dump has them, and without wrappers."""
    names = {path: node for path, node in side.tree.node_of_path.items() if path}
    for path, node in list(names.items()):
        names.setdefault(unwrap(path), node)
    names.pop("", None)
    return names


def _names_of_slots(side: Side) -> dict[str, tuple[int, str]]:
    return {
        f"{call.name}.{slot.slot}" if slot.slot else call.name: (number, slot.slot)
        for number, call in enumerate(side.calls)
        for slot in call.slots
    }


def _directions(roles: Iterable[Role]) -> str:
    return ", ".join(dict.fromkeys(direction for direction, _ in roles))
