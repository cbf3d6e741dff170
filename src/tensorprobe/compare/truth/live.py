"""Values of which the loss depends on a part only. Where one run pads its rows and the other has none to pad, or pads
them otherwise, the padding is in one run alone, and no gradient comes back to it: it is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from tensorprobe.compare.truth.scattered import Scattered, TrustedMoves, telling_numbers
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue


class Live(TrustedMoves):
    """Both steps, and which values of one are in the other, as far as the loss depends on them."""

    def __init__(self, scattered: Scattered, replay_gradients: Callable[[], Mapping[str, TrueStep]]) -> None:
        """`replay_gradients`: gives both steps, with the gradients that arrive at their results."""
        super().__init__(scattered)
        self._replay_gradients = replay_gradients
        self._contents: dict[tuple[str, int], Array] = {}

    @cached_property
    def _gradients(self) -> Mapping[str, TrueStep]:
        """Only where something is shaped as nothing in the other run: a replay takes long."""
        return self._replay_gradients()

    def content(self, side: str, value: TrueValue) -> Array:
        found = self._contents.get((side, value.number))
        if found is None:
            found = self._contents[side, value.number] = self._find_live(side, value)
        return found

    def _find_live(self, side: str, value: TrueValue) -> Array:
        """The numbers that a gradient comes back to; all of them where none comes back to any, and where the other run
        has values of this size: there none is padded otherwise, and what one run masks may be a mistake."""
        if self.has_size(side, value):
            return value.array
        maker = self._gradients[side].calls.get(value.maker or "")
        own = self.steps[side].maker(value)
        slots = [] if own is None else [slot for slot, number in own.outputs.items() if number == value.number]
        arriving = [] if maker is None else [maker.arriving[slot] for slot in slots if slot in maker.arriving]
        if not arriving or arriving[0].shape != value.array.shape or not arriving[0].any():
            return value.array
        live: Array = value.array[arriving[0] != 0]
        return live

    def _says_nothing(self, side: str, value: TrueValue) -> bool:
        if super()._says_nothing(side, value):
            return True
        return value.is_floating and not telling_numbers(self.content(side, value)).size
