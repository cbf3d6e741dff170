"""The paired calls of two runs in the order of execution, with their paired slots: what is measured, then judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorprobe.compare.match.alignment import Alignment, Match, Unpaired
from tensorprobe.compare.measure.noise import SILENCE, Noise
from tensorprobe.compare.result import Role, ValuePair
from tensorprobe.run.call import Call
from tensorprobe.run.flow import Flow
from tensorprobe.run.nesting import Nesting, first_inside, order_of_execution
from tensorprobe.run.step import Run

MAX_SUSPECTS = 8


@dataclass(slots=True, eq=False)
class PairedCall:
    """A match, and what becomes known of it while the judge goes through the run."""

    match: Match
    place: int
    """Its place in the order of execution, by which sources are sorted."""
    start: int
    """The place of the first call inside it: what goes into it was there by then."""
    values: list[ValuePair] = field(default_factory=list)
    inputs: list[ValuePair] = field(default_factory=list)
    outputs: list[ValuePair] = field(default_factory=list)
    role: Role = "clean"
    because: str = ""
    is_random: bool = False
    """It differs because it drew other random numbers."""
    event_place: int = 0
    """When the difference arose: earlier than its own place, if that was before a call inside it."""
    is_begun: bool = False
    is_judged: bool = False
    inner_noise: Noise = SILENCE
    """The largest error of what was computed inside it so far."""
    is_inside_bad: bool = False
    blamed_before: str | None = None
    """Its own code, before it made this call, computed something else."""
    suspects: tuple[Call, ...] = ()
    """Calls without a partner that lead to it."""
    doubts: tuple[Call, ...] = ()
    """The same, however far before it, where statistics alone say that they changed nothing."""
    reference: Call = field(init=False)
    candidate: Call = field(init=False)
    is_framework_made: bool = field(init=False)

    def __post_init__(self) -> None:
        self.reference, self.candidate = self.match.reference[-1], self.match.candidate[-1]
        self.is_framework_made = self.reference.caller is not None or self.candidate.caller is not None

    def hold(self, values: list[ValuePair]) -> None:
        """Its paired slots."""
        self.values = values
        self.inputs = [value for value in values if value.is_input]
        self.outputs = [value for value in values if not value.is_input]

    @property
    def is_bad(self) -> bool:
        """Does anything that came out of it differ?"""
        return any(value.is_bad for value in self.outputs)

    @property
    def is_for_log(self) -> bool:
        """Made by a training library that adds up what it will log: the sum depends on when the run was started."""
        return "logging" in (self.reference.caller, self.candidate.caller)


class RunSide:
    """One of the two runs, with its data flow, its nesting, and the pair of each of its calls."""

    def __init__(self, run: Run, lonely: Iterable[Unpaired] = ()) -> None:
        self.run = run
        self.flow = Flow(run, {unpaired.call.name for unpaired in lonely if unpaired.is_passed_by})
        self.nesting = Nesting(run)
        self.pair_of: dict[str, PairedCall] = {}
        self.places: dict[str, int] = {}
        """Each call's place in the order of execution."""
        self._tainted: dict[str, bool] = {}

    def pair(self, call: Call | None) -> PairedCall | None:
        return None if call is None else self.pair_of.get(call.name)

    def is_tainted(self, call: Call) -> bool:
        """Does its result differ, or, for a call without a partner, does anything that went into it?"""
        waiting = [(call, False)]
        entered: set[str] = set()
        while waiting:  # depth first, without recursion: the chain of unpaired calls may be a whole model
            current, is_left = waiting.pop()
            if is_left:
                self._tainted[current.name] = any(map(self._is_known_tainted, self._producers(current)))
            elif current.name not in self.pair_of and current.name not in self._tainted and current.name not in entered:
                entered.add(current.name)
                waiting.append((current, True))
                waiting.extend((producer, False) for producer in self._producers(current))
        return self._is_known_tainted(call)

    def _is_known_tainted(self, call: Call) -> bool:
        pair = self.pair_of.get(call.name)
        return self._tainted.get(call.name, False) if pair is None else pair.is_bad

    def suspects(self, call: Call | None) -> tuple[Call, ...]:
        """The calls without a partner that lead to a value, the nearest first."""
        found: list[Call] = []
        waiting = [call] if call is not None else []
        while waiting and len(found) < MAX_SUSPECTS:
            current = waiting.pop(0)
            if current.name not in self.pair_of and current not in found:
                found.append(current)
                waiting.extend(self._producers(current))
        return tuple(found)

    def lone_users(self, call: Call) -> tuple[Call, ...]:
        """Calls without a partner that take the same values as this one, such as a `detach` on their way to it."""
        users = {user.name: user for producer in self._producers(call) for user in self.flow.users(producer)}
        return tuple(user for user in users.values() if user.name not in self.pair_of)[:MAX_SUSPECTS]

    def _producers(self, call: Call) -> list[Call]:
        found = (self.flow.producer(slot) for slot in call.tensors if slot.is_input)
        return [producer for producer in found if producer is not None and producer is not call]


def pair_calls(reference: RunSide, candidate: RunSide, alignment: Alignment) -> list[PairedCall]:
    """The matches in the order in which the reference made them."""
    places = reference.places = order_of_execution(reference.run, reference.nesting)
    starts = first_inside(reference.run, reference.nesting, places)
    pairs = []
    for match in alignment.matches:
        last = match.reference[-1].name
        pair = PairedCall(match, places[last], starts[match.reference[0].name], event_place=places[last])
        pairs.append(pair)
        for call in match.reference:
            reference.pair_of[call.name] = pair
        for call in match.candidate:
            candidate.pair_of[call.name] = pair
    return sorted(pairs, key=lambda pair: pair.place)
