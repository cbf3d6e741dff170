"""Which calls one window of api_dump wants: all, a list of them, a range, or those with a word in their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorprobe.capture.storing import Storing
from tensorprobe.config.api_dump import ApiDumpOptions, ScopeName, make_keyword

if TYPE_CHECKING:
    from tensorprobe.capture.call import Call

_FORWARD, _BACKWARD = "forward", "backward"


class ApiDumpSelector:
    """Answers for one window; the engine asks it what it asks `Selector`.

    A range is followed in the order in which calls begin, over the ends of windows too: it may begin in the backward of
    one step and end in the forward of the next. Where neither of its names has a direction, it is a range of calls, and
    each brings its backward.
    """

    keeps_forward = True
    keeps_inputs = True
    keeps_outputs = True
    is_selective = True

    def __init__(self, options: ApiDumpOptions, *, keeps_backward: bool) -> None:
        self.options = options
        self.keeps_backward = keeps_backward
        self.is_over = False
        """Is nothing more wanted, of this window or any other?"""
        self._mode = options.mode
        self._listed: dict[str, list[ScopeName]] = {}
        for name in options.names:
            self._listed.setdefault(name.call, []).append(name)
        self._named: dict[str, bool] = {}
        """Of the functions and layers that were called so far, whether a keyword names them."""
        self._is_inside = False
        self._is_range_of_calls = options.mode == "range" and not any(name.direction for name in options.names)

    def continues(self, options: ApiDumpOptions) -> bool:
        """Is this the selection of another window, too? Then a range that has begun goes on."""
        return (self.options.mode, self.options.names, self.options.keywords) == (
            options.mode,
            options.names,
            options.keywords,
        )

    def use(self, options: ApiDumpOptions) -> None:
        """The same selection in another window, which may store something else."""
        self.options = options

    def restart(self) -> None:
        """A new step: api_dump has but one."""

    def select(self, call: Call) -> bool:
        """A call begins: is its forward wanted, or its backward? It is told so."""
        if self.is_over:
            call.keeps_forward = call.keeps_backward = False
            return False
        name = call.forward_name.removesuffix("_forward")
        call.keeps_forward, call.keeps_backward = self.choose(name, call.stem)
        return call.keeps_forward or call.keeps_backward

    def choose(self, call: str, stem: str) -> tuple[bool, bool]:
        """A call begins: are its forward and its backward wanted, as far as that is known by now?"""
        if self._mode == "all":
            return True, self.keeps_backward
        if self._mode == "api_list":
            is_named = self._is_named(stem)
            return is_named, is_named and self.keeps_backward
        if self._mode == "list":
            names = self._listed.get(call, ())
            is_forward, is_backward = (any(name.covers(word) for name in names) for word in (_FORWARD, _BACKWARD))
            return is_forward, is_backward and self.keeps_backward
        is_inside = self._pass_through(call, _FORWARD)
        keeps_backward = is_inside if self._is_range_of_calls else True
        return is_inside, keeps_backward and self.keeps_backward

    def begin(self, name: str) -> bool:
        """The backward of a call begins: is it wanted?"""
        if self.is_over:
            return False
        if self._mode != "range" or self._is_range_of_calls:
            return True
        call, _, direction = name.rpartition("_")
        return self._pass_through(call, direction)

    def end(self, name: str) -> None:
        """A record has ended, or one that is not wanted would have: the last of a range may have begun before its
        first."""
        if self._mode == "range" and self._is_inside:
            call, _, direction = name.rpartition("_")
            self._is_inside = not self._is_at(1, call, direction)

    def is_listed(self, name: str) -> bool:
        """Names of modules select nothing here."""
        return True

    def storing(self, name: str) -> Storing:
        return Storing.ALL if self.options.stores_tensors else Storing.NONE

    def _is_named(self, stem: str) -> bool:
        known = self._named.get(stem)
        if known is None:
            name, whole = make_keyword(stem.partition(".")[2]), make_keyword(stem)
            known = any(keyword in name or whole.startswith(keyword) for keyword in self.options.keywords)
            self._named[stem] = known
        return known

    def _pass_through(self, call: str, direction: str) -> bool:
        """Is a record that begins now inside of the range? What begins after its last one is not, although that may
        wait for gradients that never come (an LSTM whose states nobody uses)."""
        is_inside = self._is_inside or self._is_at(0, call, direction)
        self._is_inside = is_inside and not self._is_at(1, call, direction)
        return is_inside

    def _is_at(self, end: int, call: str, direction: str) -> bool:
        name = self.options.names[end]
        return call == name.call and name.covers(direction)
