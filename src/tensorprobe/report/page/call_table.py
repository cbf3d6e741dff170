"""The pairs of calls of a comparison as columns, in the order of execution, and where each row belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorprobe.compare.result import CallResult, Comparison, RankResult, ValuePair
from tensorprobe.report.page.column import NOTHING, Strings, make_number
from tensorprobe.run.call import Call
from tensorprobe.store.frame import describe_frame

JOINT = " + "
"""Between the names of several calls that stand against others."""


@dataclass
class CallTable:
    """Every pair of calls, numbered through all steps and ranks."""

    comparison: Comparison
    places: list[str] = field(init=False)
    entries: list[tuple[int, CallResult]] = field(init=False)
    """The number of its place, and the pair."""
    first_rows: list[int] = field(init=False)
    """For each call the number of its first row."""
    row_calls: list[int] = field(default_factory=list)
    """For each row the number of its call; NOTHING for a call without a partner."""
    row_places: list[int] = field(default_factory=list)
    _numbers: dict[tuple[int, str, str], int] = field(default_factory=dict)
    _calls: dict[tuple[int, str], dict[str, Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = self.comparison.ranks
        self.places = [rank.reference_name for rank in ranks]
        self.entries = [(place, call) for place, rank in enumerate(ranks) for call in rank.calls]
        self.first_rows = _find_first_rows(ranks)
        self._number_rows()
        for number, (place, pair) in enumerate(self.entries):
            for side, calls in (("reference", pair.reference), ("candidate", pair.candidate)):
                for call in calls:
                    self._numbers.setdefault((place, side, call.name), number)

    def _number_rows(self) -> None:
        """In the order of `compare.row.iter_rows`."""
        number = 0
        for place, rank in enumerate(self.comparison.ranks):
            for call in rank.calls:
                self.row_calls += [number] * len(call.values)
                number += 1
            self.row_calls += [NOTHING] * (len(rank.only_reference) + len(rank.only_candidate))
            self.row_places += [place] * (len(self.row_calls) - len(self.row_places))

    def find_place(self, name: str | None) -> int | None:
        return self.places.index(name) if name in self.places else None

    def find(self, place: int | None, pair: CallResult | None) -> int | None:
        """The number of a pair: the same one, or the one in which the candidate's call stands, or the reference's, if
        that differs: what agrees would contradict the sentence."""
        if place is None or pair is None:
            return None
        return next(iter(self._find_alike(place, pair)), None)

    def _find_alike(self, place: int, pair: CallResult) -> Iterator[int]:
        numbers = {
            side: [self.find_call(place, side, call) for call in reversed(calls)]
            for side, calls in (("reference", pair.reference), ("candidate", pair.candidate))
        }
        both = set(numbers["reference"]) & set(numbers["candidate"])
        listed = (*numbers["candidate"], *numbers["reference"])
        yield from (number for number in listed if number is not None and number in both)
        yield from (number for number in listed if number is not None and self._differs(number))

    def _differs(self, number: int) -> bool:
        return any(value.is_bad for value in self.entries[number][1].values)

    def find_call(self, place: int, side: str, call: Call) -> int | None:
        """The number of the pair in which a call of one side stands."""
        return self._numbers.get((place, side, call.name))

    def find_pair(self, place: int, side: str, call: Call) -> CallResult | None:
        number = self.find_call(place, side, call)
        return None if number is None else self.entries[number][1]

    def has_call(self, place: int, side: str, call: Call) -> bool:
        """Was it one of this run that was recorded?"""
        found = self.list_calls(place, side).get(call.name)
        return found is not None and found.position == call.position

    def list_calls(self, place: int, side: str) -> dict[str, Call]:
        """All calls of one run in one step and rank, by their names."""
        key = place, side
        if key not in self._calls:
            rank = self.comparison.ranks[place]
            is_reference = side == "reference"
            paired = (call for pair in rank.calls for call in (pair.reference if is_reference else pair.candidate))
            lone = (one.call for one in (rank.only_reference if is_reference else rank.only_candidate))
            self._calls[key] = {call.name: call for call in (*paired, *lone)}
        return self._calls[key]

    def iter_values(self, numbers: Iterable[int | None]) -> Iterator[ValuePair]:
        """The pairs of values of some pairs of calls."""
        return (value for number in numbers if number is not None for value in self.entries[number][1].values)

    def _list_errors(self, side: str) -> list[float | None]:
        """Each run's own error against its truth, where it was executed again."""
        found: list[float | None] = []
        for rank in self.comparison.ranks:
            errors = rank.truth_errors.get(side, {})
            calls = ((pair.reference if side == "reference" else pair.candidate)[-1] for pair in rank.calls)
            found += [make_number(errors.get(call.name)) for call in calls] if errors else [None] * len(rank.calls)
        return found

    def build_columns(self, strings: Strings) -> dict[str, Any]:
        """The columns of `calls` in the page."""
        pairs = [pair for _, pair in self.entries]
        worst = [find_largest(pair.values, is_input=False) for pair in pairs]
        given = [find_largest(pair.values, is_input=True) for pair in pairs]
        counts = [len(pair.values) for pair in pairs]
        return {
            "place": [place for place, _ in self.entries],
            "name_s": strings.add_all(pair.name for pair in pairs),
            "reference_s": strings.add_all(join_names(pair.reference) for pair in pairs),
            "candidate_s": strings.add_all(join_names(pair.candidate) for pair in pairs),
            "module_s": strings.add_all(pair.module_path for pair in pairs),
            "direction_s": strings.add_all(pair.reference[-1].direction or None for pair in pairs),
            "operation_s": strings.add_all(pair.reference[-1].op for pair in pairs),
            "role_s": strings.add_all(pair.role for pair in pairs),
            "rule_s": strings.add_all(pair.rule for pair in pairs),
            "because_s": strings.add_all(pair.because or None for pair in pairs),
            "error": [make_number(value.error) if value else None for value in worst],
            "tolerance": [make_number(value.tolerance) if value else None for value in worst],
            "input_error": [make_number(value.error) if value else None for value in given],
            "truth_reference": self._list_errors("reference"),
            "truth_candidate": self._list_errors("candidate"),
            "location_reference_s": strings.add_all(_describe(pair.reference_location) for pair in pairs),
            "location_candidate_s": strings.add_all(_describe(pair.candidate_location) for pair in pairs),
            "first_row": self.first_rows,
            "row_count": counts,
            "is_framework_made": [pair.is_framework_made for pair in pairs],
        }


def join_names(calls: Sequence[Call]) -> str:
    return calls[0].name if len(calls) == 1 else JOINT.join([call.name for call in calls])


def find_largest(values: Iterable[ValuePair], is_input: bool) -> ValuePair | None:
    """The value with the largest error among what went in, or among what came out; NaN is larger than all."""
    measured = [value for value in values if value.error is not None and value.is_input == is_input]
    return max(measured, key=_size) if len(measured) > 1 else next(iter(measured), None)


def _size(value: ValuePair) -> float:
    error = value.error
    return float("inf") if error is None or error != error else error


def _find_first_rows(ranks: Iterable[RankResult]) -> list[int]:
    found, number = [], 0
    for rank in ranks:
        for call in rank.calls:
            found.append(number)
            number += len(call.values)
        number += len(rank.only_reference) + len(rank.only_candidate)
    return found


def _describe(location: str | None) -> str | None:
    return describe_frame(location) if location else None
