"""Where the ranks of a candidate begin to compute something that is no part of what the reference computes.

From the losses that differ back, through collectives from rank to rank, to the calls of which all that goes in is in
the reference, and what comes out is not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tensorprobe.compare.layout.pool import Ranks, Steps
from tensorprobe.compare.layout.relation import Lookup, Relation
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.replay.communication import Key
from tensorprobe.replay.true_step import TrueCall, TrueValue

Node = tuple[int, str]
"""A rank, and a call."""
_SUMMARIES = frozenset({"mean", "sum", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "linalg_norm", "norm"})
"""Of a part of a batch they give another number than of the whole, and so does all that follows, up to the loss."""


@dataclass(frozen=True)
class Beginning:
    """A call that is the first to compute something else, on some ranks."""

    call: TrueCall
    ranks: Ranks

    @property
    def rank(self) -> int:
        return self.ranks[0]


class Tracer:
    """Follows values of all ranks of the candidate."""

    def __init__(self, steps: Steps, relations: Lookup) -> None:
        self._steps = steps
        self._relations = relations
        self._by_key: dict[Key, list[Node]] = defaultdict(list)
        for rank, one in steps.items():
            for name, communication in one.communications.items():
                self._by_key[communication.key(rank)].append((rank, name))
        self._harmless: set[tuple[int, int]] = set()

    def find_beginnings(self) -> list[Beginning]:
        """The first ones, as they ran; those of one name together."""
        reached = self._follow(self._roots())
        self._acquit(reached)
        found: dict[str, list[int]] = defaultdict(list)
        calls: dict[str, TrueCall] = {}
        for rank, name in reached:
            if self._begins(rank, name):
                found[name].append(rank)
                calls.setdefault(name, self._steps[rank].step.calls[name])
        named = [Beginning(calls[name], tuple(sorted(ranks))) for name, ranks in found.items()]
        return sorted(named, key=lambda one: (one.call.position, one.ranks))

    def inputs(self, rank: int, call: TrueCall) -> Iterator[tuple[int, str, TrueValue]]:
        """All that a call is given, with the rank and the place; a collective by all its ranks."""
        for member, name in self.find_members(rank, call.name):
            own = self._steps[member].step.calls.get(name)
            for slot, number in own.inputs.items() if own is not None else ():
                yield member, slot, self._steps[member].step.values[number]

    def find_members(self, rank: int, name: str) -> list[Node]:
        """The calls of all ranks that are one collective; else the call itself."""
        communication = self._steps[rank].communications.get(name)
        return self._by_key[communication.key(rank)] if communication is not None else [(rank, name)]

    def relation(self, rank: int, value: TrueValue) -> Relation | None:
        return self._relations.of(rank, value)

    def is_plain(self, rank: int, value: TrueValue) -> bool:
        return self._relations.is_plain(rank, value)

    def exists(self, rank: int, value: TrueValue) -> bool:
        return self._relations.is_plain(rank, value) or self._relations.of(rank, value) is not None

    def _roots(self) -> Iterator[tuple[int, TrueValue]]:
        for rank, one in self._steps.items():
            for value in one.step.roots:
                if value.array.size == 1:
                    yield rank, value
        if not any(one.step.roots for one in self._steps.values()):
            for rank, one in self._steps.items():
                yield from ((rank, value) for value in one.step.values if one.step.is_end(value))

    def _follow(self, starts: Iterable[tuple[int, TrueValue]]) -> set[Node]:
        """The calls of all ranks that lead to these values."""
        found: set[Node] = set()
        waiting = [(rank, value.maker) for rank, value in starts if value.maker is not None]
        while waiting:
            node = waiting.pop()
            if node in found or node[1] not in self._steps[node[0]].step.calls:
                continue
            found.add(node)
            call = self._steps[node[0]].step.calls[node[1]]
            waiting += [(rank, value.maker) for rank, _, value in self.inputs(node[0], call) if value.maker is not None]
        return found

    def _outputs(self, rank: int, call: TrueCall) -> list[TrueValue]:
        return [self._steps[rank].step.values[number] for number in call.outputs.values()]

    def _acquit(self, reached: set[Node]) -> None:
        """A value that the reference has not, and of which nothing is made but what it has, is another way to the same.
        So is the loss of a part of the batch, up to where the step ends."""
        self._acquit_forward(reached)
        nodes = sorted(reached, key=lambda node: -self._steps[node[0]].step.calls[node[1]].position)
        is_changed = True
        while is_changed:
            before = len(self._harmless)
            for rank, name in nodes:
                step = self._steps[rank].step
                call = step.calls[name]
                for number in dict.fromkeys((*call.outputs.values(), *call.inputs.values())):
                    value = step.values[number]
                    if not self._is_good(rank, value) and self._leads_to_good(rank, value, reached):
                        self._harmless.add((rank, number))
            is_changed = len(self._harmless) > before

    def _leads_to_good(self, rank: int, value: TrueValue, reached: set[Node]) -> bool:
        users = [one for one in self._steps[rank].step.users.get(value.number, ()) if (rank, one.name) in reached]
        return bool(users) and all(
            self._is_good(member, one)
            for user in users
            for member, name in self.find_members(rank, user.name)
            for one in self._outputs(member, self._steps[member].step.calls[name])
        )

    def _acquit_forward(self, reached: set[Node]) -> None:
        for rank, name in sorted(reached, key=lambda node: self._steps[node[0]].step.calls[node[1]].position):
            call = self._steps[rank].step.calls[name]
            given = [(member, value) for member, _, value in self.inputs(rank, call)]
            is_summary = word_of(call) in _SUMMARIES and any(self._is_cut(member, value) for member, value in given)
            follows = any((member, value.number) in self._harmless for member, value in given)
            if (is_summary or follows) and all(self._is_good(member, value) for member, value in given):
                outputs = (one for one in self._outputs(rank, call) if one.array.size == 1)
                self._harmless.update((rank, one.number) for one in outputs if not self.exists(rank, one))

    def _is_cut(self, rank: int, value: TrueValue) -> bool:
        relation = self.relation(rank, value)
        return relation is not None and not relation.part.is_whole and not relation.is_share

    def _is_good(self, rank: int, value: TrueValue) -> bool:
        return (rank, value.number) in self._harmless or self.exists(rank, value)

    def _begins(self, rank: int, name: str) -> bool:
        call = self._steps[rank].step.calls[name]
        if all(self._is_good(rank, one) for one in self._outputs(rank, call)):
            return False
        return all(self._is_good(member, value) for member, _, value in self.inputs(rank, call))
