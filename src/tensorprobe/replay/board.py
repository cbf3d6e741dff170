"""Where the ranks of a replay leave what they bring to a collective, and find what comes out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorprobe.replay.communication import Key

Join = Callable[[Sequence[Any]], Sequence[Any]]
"""From what each member brings, in their order, to what each gets."""


class NotJoinedError(Exception):
    """Ranks that should have come together did not: what was recorded is taken instead."""


@dataclass
class Meeting:
    """What ranks do together, once all of them are there."""

    key: Key
    members: tuple[int, ...]
    join: Join


@dataclass
class _Table:
    """One meeting, while it is being held."""

    brought: dict[int, Any] = field(default_factory=dict)
    results: dict[int, Any] | None = None
    error: Exception | None = None


class Board:
    """The meetings of the ranks that are replayed together."""

    def __init__(self, ranks: Iterable[int], refusals: Mapping[Key, str] | None = None) -> None:
        self._ranks = frozenset(ranks)
        self._refusals = dict(refusals or {})
        """Meetings that are not held, and why."""
        self._tables: dict[Key, _Table] = {}
        self._closed: str | None = None
        self.joined: set[Key] = set()

    @property
    def is_joint(self) -> bool:
        """Are several ranks replayed together?"""
        return len(self._ranks) > 1

    def bring(self, meeting: Meeting, rank: int, contribution: Any) -> None:
        """Leave something; who comes last brings the meeting about."""
        table = self._tables.setdefault(meeting.key, _Table())
        if table.error is not None or rank in table.brought:
            return
        table.brought[rank] = contribution
        reason = self._closed or self._refusals.get(meeting.key) or self._find_absent(meeting)
        if reason is not None:
            table.error = NotJoinedError(reason)
        elif all(member in table.brought for member in meeting.members):
            self._hold(meeting, table)

    def is_settled(self, key: Key) -> bool:
        """Is it known what comes out?"""
        table = self._tables.get(key)
        return table is not None and (table.results is not None or table.error is not None)

    def take(self, key: Key, rank: int) -> Any:
        """What a rank gets; NotJoinedError where nothing came about, or what went wrong when it did."""
        table = self._tables[key]
        if table.error is not None:
            raise table.error
        assert table.results is not None
        result = table.results.pop(rank)
        if not table.results:
            table.brought.clear()
        return result

    def refusal(self, key: Key) -> str | None:
        """Why this meeting is not held."""
        return self._closed or self._refusals.get(key)

    def refuse(self, key: Key, reason: str) -> None:
        """This meeting is not held."""
        self._tables.setdefault(key, _Table()).error = NotJoinedError(reason)

    def close(self, reason: str) -> None:
        """Nothing comes about any more."""
        self._closed = reason
        for table in self._tables.values():
            if table.results is None and table.error is None:
                table.error = NotJoinedError(reason)

    def _find_absent(self, meeting: Meeting) -> str | None:
        if not meeting.members:
            return "it is not recorded which rank it receives from"
        absent = sorted(set(meeting.members) - self._ranks)
        return describe_absent(absent) if absent else None

    def _hold(self, meeting: Meeting, table: _Table) -> None:
        try:
            results = meeting.join([table.brought[member] for member in meeting.members])
        except Exception as error:  # whatever torch says to what was brought
            table.error = error
            return
        table.results = dict(zip(meeting.members, results, strict=True))
        self.joined.add(meeting.key)


def describe_absent(ranks: Sequence[int]) -> str:
    """
    >>> describe_absent([1, 3])
    'ranks 1, 3 are not replayed with it'
    """
    names = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {names} {'is' if len(ranks) == 1 else 'are'} not replayed with it"


class Standing(ABC):
    """Where a rank stands, and cannot go on by itself."""

    place: str
    """The call."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Can it go on now?"""


@dataclass
class Waiting(Standing):
    """A rank has come to a meeting that has not been held."""

    board: Board
    place: str
    key: Key

    @property
    def is_open(self) -> bool:
        return self.board.is_settled(self.key)


Steps = Generator[Standing, None, Any]
"""A rank that goes on until it must wait for others, and returns what came out."""


def attend(board: Board, meeting: Meeting, rank: int, contribution: Any, place: str) -> Steps:
    """Bring something to a meeting, wait until it was held, and return what comes out."""
    board.bring(meeting, rank, contribution)
    yield from wait_for(board, meeting.key, place)
    return board.take(meeting.key, rank)


def wait_for(board: Board, key: Key, place: str) -> Steps:
    """Until it is known what comes out of a meeting."""
    while not board.is_settled(key):
        yield Waiting(board, place, key)
