"""Python's garbage collector. It runs after so many new objects, looks at all of them, and now and then at every object
of the process, which takes a tenth of a second and more. What a capture notes of a forward are thousands of new
objects, and none of them is garbage: they are not to count, so that the collector runs as often as without a capture.

What is noted is counted, and the threshold raised by as much; as it goes again, while records are written and a
backward pass frees its graph, it is lowered: at each call it is raised by no more than there is. When the window is
closed, it is put back.
"""

from __future__ import annotations

import gc
import threading
from collections import deque

_AT_ONCE = 256
_MOST = 1 << 16


class Collector:
    """Lets the collector pass over objects that are ours. There is one for the process, as there is one collector."""

    def __init__(self) -> None:
        self._own = 0
        """After how many new objects the program wants it to run."""
        self._raised: deque[int] = deque(maxlen=256)
        """What was set here: a program may put back later what it found in a window."""
        self._made = 0
        """Ours that it was not told of."""
        self._passed = 0
        """Ours that it passes over."""
        self._lock = threading.RLock()  # the collector itself may run anything in this thread

    def begin(self) -> int:
        """Something is about to be noted: how many new objects there are."""
        return gc.get_count()[0]

    def end(self, before: int) -> None:
        """It is noted: what there is more than `before` is ours, and what there is less was."""
        count = gc.get_count()[0]
        self._made += count - before
        if not -_AT_ONCE < self._made < _AT_ONCE or count < self._passed:
            self._pass_over()

    def _pass_over(self) -> None:
        with self._lock:
            first, *others = gc.get_threshold()
            if first not in self._raised:  # the program's
                self._own, self._passed = first, 0
            made, self._made = self._made, 0
            if first:  # or else the program has switched it off
                there = gc.get_count()[0]  # fewer than were passed over, if it has run since, or some are gone
                self._passed = max(0, min(self._passed + made, there, _MOST))
                rounded = -(-self._passed // _AT_ONCE) * _AT_ONCE  # few numbers are possible: what is kept stays small
                raised = self._own + rounded
                if rounded and raised not in self._raised:  # else it is the program's own
                    self._raised.append(raised)
                gc.set_threshold(raised, *others)

    def look_again(self) -> None:
        """Some of ours may be gone."""
        if self._passed:
            self._pass_over()

    def restore(self) -> None:
        """Ours are gone, or will be soon."""
        with self._lock:
            first, *others = gc.get_threshold()
            if first in self._raised:
                gc.set_threshold(self._own, *others)
            self._made = self._passed = 0


collector = Collector()
