"""A framework that is none: its tensors are lists of numbers. For what the engine does whatever the framework is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tensorprobe.capture.framework import Undo
from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.session import Session
from tensorprobe.config import load_config
from tensorprobe.errors import UsageError
from tensorprobe.model.record import Stats, TensorLeaf, Value


class Numbers(list[float]):
    """A tensor."""


class FakeReader:
    tensor_type = Numbers
    atoms: tuple[type, ...] = (Numbers,)
    verifies = False

    def __init__(self) -> None:
        self.fetched = 0
        self.forgotten = 0

    def read(self, tensor: Numbers, produced_by: str | None) -> TensorLeaf:
        return TensorLeaf("fake.Numbers", "float", (len(tensor),), False, Value(Stats(max(tensor), min(tensor))))

    def begin_fetch(self) -> bool:
        return False

    def copy(self, tensor: Numbers) -> Numbers:
        return Numbers(tensor)

    def lend(self, tensor: Numbers) -> Numbers | None:
        return tensor

    def hold(self, tensor: Numbers) -> Numbers:
        return tensor

    def content_key(self, tensor: Numbers) -> None:
        return None

    def size_bytes(self, tensor: Numbers) -> int:
        return 8 * len(tensor)

    def add(self, first: Any, second: Any) -> Any:
        return Numbers(one + other for one, other in zip(first, second, strict=True))

    def write_file(self, copy: Numbers, file: BinaryIO) -> None:
        file.write(repr(list(copy)).encode())

    def holds(self, path: Path, tensor: Numbers) -> bool:
        return True

    def describe_object(self, value: Any) -> dict[str, Any] | None:
        return None

    def fetch(self) -> None:
        self.fetched += 1

    def forget(self) -> None:
        self.forgotten += 1


@dataclass
class FakeFramework:
    """Sees the calls that a test makes with `call`."""

    name: str = "fake"
    file_suffix: str = "txt"
    rank_number: int | None = None
    failures: dict[str, Exception] = field(default_factory=dict)
    installed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader = FakeReader()

    def has_idle_core(self) -> bool:
        return True

    def count_writers(self) -> int:
        return 1

    def rank(self) -> int | None:
        return self.rank_number

    def takes_part(self) -> bool:
        return True

    def check_models(self, model: Any) -> list[tuple[str, Any]]:
        if model is not None and not isinstance(model, str):
            raise UsageError("a model is a text here")
        return [] if model is None else [("", model)]

    def make_reader(self, *, has_stats: bool, digest_kind: str | None) -> FakeReader:
        return self.reader

    def is_noise(self, path: str) -> bool:
        return False

    def caller_of(self, path: str) -> str | None:
        return None

    def install(self, recorder: Recorder, models: Sequence[tuple[str, Any]]) -> Undo:
        self._fail("install")
        self.installed.append("patch")

        def undo() -> None:
            self.installed.pop()
            self._fail("undo")

        return undo

    def end_step(self) -> None:
        self._fail("end_step")

    def watch_gradient(
        self,
        recorder: Recorder,
        tensors: Sequence[Any],
        receive: Callable[[int, Any], None],
        finish: Callable[[], None],
    ) -> Undo | None:
        return None

    def hidden(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def circumstances(self) -> dict[str, Any]:
        self._fail("circumstances")
        return {}

    def _fail(self, where: str) -> None:
        if where in self.failures:
            raise self.failures[where]


def make_session(dump_path: Path, framework: FakeFramework | None = None, **options: Any) -> Session:
    return Session(load_config(None, dump_path=dump_path, **options), framework or FakeFramework())


def call(session: Session, name: str = "Torch.sin", *args: Any) -> None:
    """One call of an API inside the window; the window sees nothing by itself here."""
    recorder = session.recorder
    begun = recorder.begin_api(name, sys._getframe(1))
    if begun is not None:
        recorder.add_inputs(begun, args, {})
        recorder.finish(begun, Numbers([1.0, 2.0]))
