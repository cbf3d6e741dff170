"""What is recorded for a store: written into a folder of this machine, and sent from there, step by step, by a process
of its own.

Few finished steps wait for the network at a time; then the program waits for it. Where the store cannot be reached it
does not: everything stays in the folder, and the message at the end says where it is and how to send it.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from tensorprobe.errors import ConfigError
from tensorprobe.model.count import count_noun
from tensorprobe.model.url import read_url
from tensorprobe.store import cache, upload_worker

logger = logging.getLogger("tensorprobe")

MAX_WAITING = 4
_TERMINATED_SECONDS = 20.0
"""How long the end of a process that was told to end waits; the other goes on alone."""
_START = (
    "import sys; sys.path[:] = json.loads(sys.argv.pop()); from tensorprobe.store.upload_worker import main; main()"
)


class Channel(Protocol):
    """The way to what sends, and back."""

    def write(self, places: tuple[str, ...]) -> None: ...

    def read(self) -> dict[str, Any] | None:
        """The next answer; None when there are no more."""

    def end(self) -> None:
        """No more requests come."""

    def abandon(self) -> None:
        """In a forked child."""


class Uploader:
    """The store of one session."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.folder = cache.spool_of(url)
        self._sent = 0
        self._failed: dict[tuple[str, ...], str] = {}
        self._waiting = 0
        self._changed = threading.Condition()
        self._channel: Channel = _open_channel(self.folder, url)
        first = self._channel.read() or {"refused": f"{url}: the process that sends to it could not be started."}
        if "refused" in first:
            self._channel.end()
            raise ConfigError(f"dump_path: {first['refused']}")
        self._reader = threading.Thread(target=self._read, name="tensorprobe-upload", daemon=True)
        self._reader.start()

    def show(self, folder: Path) -> str:
        """Where a folder of this machine will be."""
        return "/".join((self.url, *folder.relative_to(self.folder).parts))

    def put(self, folder: Path) -> None:
        """A step is over: it may be sent."""
        places = folder.relative_to(self.folder).parts
        with self._changed:
            while self._waiting >= MAX_WAITING and not self._failed and self._reader.is_alive():
                self._changed.wait(1.0)
            self._waiting += 1
        try:
            self._channel.write(places)
        except (OSError, ValueError) as error:
            self._note(places, f"the process that sends it has ended ({error})")

    def close(self, ending: str | None) -> None:
        """Wait until all is sent; say what was not."""
        self._channel.end()
        self._reader.join(_TERMINATED_SECONDS if ending == "SIGTERM" else None)
        if self._reader.is_alive():
            logger.warning("%s are still being sent to %s, from %s", self._count(self._waiting), self.url, self.folder)
        if self._failed:
            logger.error(
                "%s could not be sent to %s (%s). Nothing is lost: it is in %s. Send it with: tensorprobe upload %s %s",
                self._count(len(self._failed)),
                self.url,
                next(iter(self._failed.values())).rstrip("."),
                self.folder,
                shlex.quote(str(self.folder)),
                shlex.quote(self.url),
            )
        elif self._sent:
            logger.info("%s sent to %s", self._count(self._sent), self.url)

    def abandon(self) -> None:
        self._channel.abandon()

    def _count(self, number: int) -> str:
        return count_noun(number, "step", "steps")

    def _read(self) -> None:
        while (answer := self._channel.read()) is not None:
            self._note(tuple(answer["places"]), answer["error"], is_again=bool(answer.get("is_last")))
        with self._changed:
            self._changed.notify_all()

    def _note(self, places: tuple[str, ...], error: str | None, *, is_again: bool = False) -> None:
        with self._changed:
            self._waiting -= not is_again
            if error is None:
                self._sent += 1
                self._failed.pop(places, None)
            else:
                if not self._failed:
                    logger.warning("%s is not sent to %s yet: %s", "/".join(places), self.url, error)
                self._failed[places] = error
            self._changed.notify_all()


def start_uploader(dump_path: Path) -> Uploader | None:
    """For a dump_path that is an address; ConfigError if nothing can be put there."""
    url = read_url(dump_path)
    return None if url is None else Uploader(url)


def _open_channel(folder: Path, url: str) -> Channel:
    # What is in the memory of this process no other one can reach.
    return _ThreadChannel(folder, url) if url.startswith("memory://") else _ProcessChannel(folder, url)


class _ProcessChannel:
    def __init__(self, folder: Path, url: str) -> None:
        paths = json.dumps([path or str(Path.cwd()) for path in sys.path])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TENSORPROBE")}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", f"import json, {_START.removeprefix('import ')}", str(folder), url, paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=kept,
            start_new_session=True,  # Ctrl-C is for the program; what it has recorded is sent all the same
        )

    def write(self, places: tuple[str, ...]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(places).encode() + b"\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            logger.debug("the process that sends to a store had ended before")

    def abandon(self) -> None:
        """Only the descriptors: as long as a child has them, the other process waits for more."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.close(pipe.fileno())


class _ThreadChannel:
    def __init__(self, folder: Path, url: str) -> None:
        self._requests: SimpleQueue[str | None] = SimpleQueue()
        self._answers: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(folder, url), name="tensorprobe-store", daemon=True).start()

    def _work(self, folder: Path, url: str) -> None:
        try:
            upload_worker.serve(iter(self._requests.get, None), self._answers.put, folder, url)
        finally:
            self._answers.put(None)

    def write(self, places: tuple[str, ...]) -> None:
        self._requests.put(json.dumps(places))

    def read(self) -> dict[str, Any] | None:
        return self._answers.get()

    def end(self) -> None:
        self._requests.put(None)

    def abandon(self) -> None:
        """The thread is the parent's."""
