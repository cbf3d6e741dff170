"""What could not be recorded or written. The user's program goes on: each kind of failure is said once, the rest is
counted."""

from __future__ import annotations

import logging
import re

from tensorprobe.errors import NonFiniteError

logger = logging.getLogger("tensorprobe")

_DIGITS = re.compile(r"\d+")


class Failures:
    """The failures of one session; the count is that of the current step."""

    def __init__(self) -> None:
        self.count = 0
        self._said: set[str] = set()

    def note(self, what: str, error: Exception, count: int = 1) -> None:
        """`what` could not be written, and so many things with it. A full disk fails in many places, and is said
        once."""
        self.count += count
        cause = root_cause(error)
        kind = f"errno {cause.errno}" if isinstance(cause, OSError) else f"{what}: {type(cause).__name__}"
        if kind in self._said:
            return
        self._said.add(kind)
        logger.error(
            "%s could not be written (%s: %s); training goes on, further failures of this kind are counted",
            what,
            type(cause).__name__,
            cause,
        )
        logger.debug("the failure in full", exc_info=error)

    def restart(self) -> None:
        """A new step."""
        self.count = 0


def root_cause(error: BaseException) -> BaseException:
    """The error of the operating system behind an error, if there is one: frameworks wrap it in words of their own."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError):
            return current
        current = current.__cause__ or current.__context__
    return error


class ProgramError(Exception):
    """An error of the user's own program that came to light when capture waited for a result. MindSpore tells it once:
    it goes on to the program."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RecordingFailures:
    """What goes wrong while calls are recorded: each kind is said once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, where: str, error: BaseException) -> int:
        """One, to be counted; an error that is the program's own is raised."""
        if isinstance(error, NonFiniteError):
            raise error
        if isinstance(error, ProgramError):
            raise error.error
        if self._is_new(f"{where}: {type(error).__name__}"):
            logger.warning(
                "%s was not recorded (%s: %s); further failures of this kind are counted",
                where,
                type(error).__name__,
                error,
            )
            logger.debug("the failure in full", exc_info=error)
        return 1

    def note_stale(self, slot: str, difference: str) -> None:
        if self._is_new(f"stale: {_DIGITS.sub('', slot)}"):
            logger.error(
                "%s was taken as known and had changed unnoticed: %s. The record has the new value; further ones of "
                "this kind are counted",
                slot,
                difference,
            )

    def _is_new(self, key: str) -> bool:
        is_new = key not in self._logged
        self._logged.add(key)
        return is_new
