"""What the engine asks of a framework. `capture/torch` and `capture/mindspore` are its only implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from tensorprobe.model.record import TensorLeaf

if TYPE_CHECKING:
    from tensorprobe.capture.recorder import Recorder

Undo = Callable[[], None]


class TensorReader(Protocol):
    """What is known of tensors. Computes where they live and waits for nothing until `fetch`."""

    tensor_type: type | tuple[type, ...]
    atoms: tuple[type, ...]
    """Types that look like containers and are none: tensors, shapes."""
    verifies: bool
    """Is this verify mode, in which whatever is taken as known is looked at again?"""

    traces_values: bool
    """Does it tell which recorded call made a value, wherever one did?"""
    notes_parts: bool
    """Are the calls that a layer makes noted in its record? A replay makes them in the place of the layer."""

    def begin_fetch(self) -> bool:
        """Another thread will `fetch`, and wait for what a device was given so far; False if there is nothing to wait
        for."""

    def read(self, tensor: Any, produced_by: str | None) -> TensorLeaf:
        """Describe the value that `tensor` has now; `produced_by` names the record whose output it is."""

    def trace(self, tensor: Any, produced_by: str | None) -> dict[str, Any]:
        """Which tensor it is, without its statistics."""

    def copy(self, tensor: Any) -> Any:
        """A copy that nobody will change, to be written later by `write_file`."""

    def lend(self, tensor: Any) -> Any | None:
        """Its content without a copy, to be written by `write_file` at once; None if it is not on the host."""

    def hold(self, tensor: Any) -> Any:
        """The same content, to be kept for a while: a framework may take note of who else holds a gradient."""

    def content_key(self, tensor: Any) -> Any:
        """What only equal contents share, for a framework in which no value is known to be the same as before; None
        where `read` tells that by itself."""

    def size_bytes(self, tensor: Any) -> int:
        """How much memory such a copy takes."""

    def add(self, first: Any, second: Any) -> Any:
        """The sum of two shares of a gradient, unseen by capture and by autograd."""

    def write_file(self, copy: Any, file: BinaryIO) -> None:
        """Write a copy in the framework's own file format."""

    def holds(self, path: Path, tensor: Any) -> bool:
        """In verify mode: is the content of a stored file what `tensor` has now?"""

    def describe_object(self, value: Any) -> dict[str, Any] | None:
        """A leaf for an object of the framework that is no tensor (a dtype, a device); None for others."""

    def fetch(self) -> None:
        """Bring the statistics of everything read so far to the host."""

    def forget(self) -> None:
        """Take nothing that was seen before as known."""


class Framework(Protocol):
    """One framework, as the engine sees it."""

    name: str
    file_suffix: str

    def rank(self) -> int | None:
        """The rank of this process; None outside distributed runs."""

    def takes_part(self) -> bool:
        """False for a process that runs the program only to bring the others together: nothing of it is recorded."""

    def has_idle_core(self) -> bool:
        """Is there a core that the framework does not compute on?"""

    def count_writers(self) -> int:
        """How many threads may write tensor files beside the program?"""

    def check_models(self, model: Any) -> list[tuple[str, Any]]:
        """The models of `start(model)`, each with its name prefix ("" for one, "0", "1" for several)."""

    def check_eager(self) -> None:
        """Can compiled functions be run as they were written? ConfigError if not."""

    def make_reader(self, *, has_stats: bool, digest_kind: str | None) -> TensorReader:
        """A reader for one session."""

    def is_noise(self, path: str) -> bool:
        """Is this source file part of how the framework calls things, of no use in a stack?"""

    def caller_of(self, path: str) -> str | None:
        """Which part of the framework makes calls of its own in this source file: "optimizer", "distributed" … None for
        code that makes the user's calls, and an empty text for code that only passes on the calls of whoever called
        it."""

    def install(self, recorder: Recorder, models: Sequence[tuple[str, Any]]) -> Undo:
        """Begin to see calls; what is returned removes every trace of it."""

    def end_step(self) -> None:
        """Take back what was left on the graphs of the step."""

    def watch_gradient(
        self,
        recorder: Recorder,
        tensors: Sequence[Any],
        receive: Callable[[int, Any], None],
        finish: Callable[[], None],
    ) -> Undo | None:
        """Call `receive(index, gradient)` when the gradient of one of `tensors` is known, and `finish()` when all are;
        None if none of them can have one. What is returned takes the watch back."""

    def hidden(self) -> AbstractContextManager[Any]:
        """Inside, what capture itself computes is not seen."""

    def circumstances(self) -> dict[str, Any]:
        """Versions, devices and settings that change numbers."""
