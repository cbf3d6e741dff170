"""The order of execution, rebuilt: records lie in the file in the order in which they were closed.

In the forward a module is closed after what it contains, so that the innermost call comes first. In the backward a
module whose inputs need no gradient is closed before the calls inside it: here it follows them, as in the forward.
"""

from __future__ import annotations

from tensorprobe.run.call import Call
from tensorprobe.run.step import Run

_MAX_DEPTH = 256
"""Of modules in modules, far beyond that of models: every call walks up, so a dump could make it take for ever."""


class Nesting:
    """Which module call contains which calls."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._inner: dict[str, list[Call]] = {}
        for call in run.calls:
            if call.parent is not None and call.parent != call.name:
                self._inner.setdefault(call.parent, []).append(call)

    def parent(self, call: Call) -> Call | None:
        """The module call around it, if it was recorded."""
        return None if call.parent in (None, call.name) else self._run.by_name.get(str(call.parent))

    def inner(self, call: Call) -> list[Call]:
        """What it contains directly."""
        return self._inner.get(call.name, [])

    def ancestors(self, call: Call) -> list[Call]:
        """The module calls around it, innermost first; a dump may be wrong, so a circle or an endless chain ends."""
        found: list[Call] = []
        seen = {call.name}
        outer = self.parent(call)
        while outer is not None and outer.name not in seen and len(found) < _MAX_DEPTH:
            found.append(outer)
            seen.add(outer.name)
            outer = self.parent(outer)
        return found


def order_of_execution(run: Run, nesting: Nesting) -> dict[str, int]:
    """Each record's place: as in the file, but a module never before what it contains."""
    last = {call.name: call.position for call in run.calls}
    height = dict.fromkeys(last, 0)
    for call in run.calls:
        for depth, outer in enumerate(nesting.ancestors(call), 1):
            last[outer.name] = max(last[outer.name], call.position)
            height[outer.name] = max(height[outer.name], depth)
    ordered = sorted(run.calls, key=lambda call: (last[call.name], height[call.name]))
    return {call.name: place for place, call in enumerate(ordered)}


def first_inside(run: Run, nesting: Nesting, places: dict[str, int]) -> dict[str, int]:
    """The place of the earliest call inside each module call: by then its inputs were there."""
    first = dict(places)
    for call in run.calls:
        for outer in nesting.ancestors(call):
            first[outer.name] = min(first[outer.name], places[call.name])
    return first
