"""Where the dump of a session goes: a folder of this machine; or a store, by way of one."""

from __future__ import annotations

from collections.abc import Collection

from tensorprobe.capture.uploader import start_uploader
from tensorprobe.config import CaptureConfig
from tensorprobe.store import earlier_run
from tensorprobe.store.folder import Folder
from tensorprobe.store.upload import find_unsent


class Destination:
    """The dump_path of a session. What a flight recorder may still remove is sent when the session ends."""

    def __init__(self, config: CaptureConfig) -> None:
        self._is_late = config.flight_recorder is not None
        self._uploader = start_uploader(config.dump_path)
        self.folder = self._uploader.folder if self._uploader is not None else config.dump_path.absolute()
        """On this machine; absolute, because the program may change its working directory."""

    def show(self, folder: Folder) -> str:
        """Where the user will find a folder of it."""
        return str(folder.path) if self._uploader is None else self._uploader.show(folder.path)

    def end_step(self, folder: Folder) -> None:
        """A step is over and on disk."""
        if self._uploader is not None and not self._is_late and earlier_run.has_records(folder):
            self._uploader.put(folder.path)

    def close(self, ending: str | None, names: Collection[str]) -> None:
        """No step follows; `names` are those of the folders of this process."""
        if self._uploader is None:
            return
        if self._is_late:
            for places in find_unsent(self.folder):
                if places[-1] in names:
                    self._uploader.put(self.folder.joinpath(*places))
        self._uploader.close(ending)

    def abandon(self) -> None:
        """In a forked child: the dump is the parent's."""
        if self._uploader is not None:
            self._uploader.abandon()
