"""SIGUSR1 as a request to the program that gets it. The handler only sets a flag, and goes on to the handler that was
there before; what is asked for is done when the program ends its step."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

logger = logging.getLogger("tensorprobe")

_NUMBER: Any = getattr(signal, "SIGUSR1", None)  # not on Windows


class SignalRequest:
    """Follows the signal until it is removed."""

    def __init__(self) -> None:
        self._is_asked = False
        self._before: Any = None
        self._is_installed = False

    def install(self) -> None:
        """Only the main thread may do this; another one says that the signal is not followed."""
        if _NUMBER is None or self._is_installed:
            return
        before = signal.getsignal(_NUMBER)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or before is None:  # None: by something that is not Python, and could not be called from here
            why = "another part of the program handles it" if is_main else "this is not the main thread"
            logger.warning("SIGUSR1 does not keep the last steps: %s", why)
            return
        self._before = before
        signal.signal(_NUMBER, self._handle)
        self._is_installed = True

    def remove(self) -> None:
        """Whoever handled it before does so again; where another handler came later, when that one gives way."""
        was_installed, self._is_installed = self._is_installed, False
        is_main = threading.current_thread() is threading.main_thread()
        if was_installed and is_main and signal.getsignal(_NUMBER) == self._handle:
            signal.signal(_NUMBER, self._find_before())

    def _find_before(self) -> Any:
        """What this one has replaced, unless that was one of ours which was removed meanwhile."""
        owner = getattr(self._before, "__self__", None)
        if isinstance(owner, SignalRequest) and not owner._is_installed:
            return owner._find_before()
        return self._before

    def take(self) -> bool:
        """Was it asked for since the last time?"""
        is_asked, self._is_asked = self._is_asked, False
        return is_asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True
        if callable(self._before):
            self._before(number, frame)
