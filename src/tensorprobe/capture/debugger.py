"""`PrecisionDebugger`, as the faces of all frameworks have it: one per process, reachable from any file through the
class."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from tensorprobe.capture.context import make_session
from tensorprobe.capture.process import describe_ending
from tensorprobe.capture.session import Session
from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.errors import UsageError

StrPath = str | os.PathLike[str]

_FIELDS = tuple(CaptureConfig.__dataclass_fields__)

Face = TypeVar("Face", bound="Debugger")


class Debugger:
    """Records what a program computes, between `start` and `stop`. A face says of which framework."""

    framework: ClassVar[str]
    _instance: ClassVar[Debugger | None] = None
    _session: Session

    def __new__(
        cls: type[Face],
        config_path: StrPath | None = None,
        task: str | None = None,
        dump_path: StrPath | None = None,
        level: str | None = None,
        step: Any = None,
        **options: Any,
    ) -> Face:
        existing = cast("Face | None", cls._instance)
        arguments = {"task": task, "dump_path": dump_path, "level": level, "step": step, **options}
        given = {name for name, value in arguments.items() if value is not None}
        if existing is not None and config_path is None and not given and not options:
            return existing
        config = load_config(config_path, **arguments)
        if existing is not None and not existing._session.is_closed:
            _check_same(existing._session.config, config, given if config_path is None else set(_FIELDS))
            return existing
        created = object.__new__(cls)
        created._session = make_session(config, cls.framework)
        cls._instance = created
        return created

    @classmethod
    def start(cls, model: Any = None) -> None:
        """Begin to record. `model`: a model, or a list or tuple of models; needed at levels L0 and mix."""
        cls._current("start").start(model)

    @classmethod
    def stop(cls) -> None:
        """Stop recording; the files are complete after it. The backward of what was recorded is still recorded until
        `step`."""
        cls._current("stop").stop()

    @classmethod
    def step(cls) -> None:
        """End the training step: names start anew, and what follows goes into the next folder."""
        cls._current("step").step()

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """The number of the step that follows, for a program that goes on where an earlier one ended. A step with
        another number that is not over is ended first."""
        cls._current("set_init_step").set_step(step)

    @classmethod
    def forward_backward_dump_end(cls) -> None:
        """The old name of `stop`."""
        session = cls._current("forward_backward_dump_end")
        warnings.warn(
            "forward_backward_dump_end() will be removed; call stop() instead", DeprecationWarning, stacklevel=2
        )
        session.stop()

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one variable (any nesting of dict, list, tuple, tensors and plain values), and its gradient when it
        comes."""
        cls._current("save").save(variable, name, save_backward)

    @classmethod
    def close(cls, error: BaseException | None = None) -> None:
        """Complete the files. Nothing is recorded any more, until another debugger is made; `save` does nothing.
        `error` is the exception that ended the program before its time."""
        cls._current("close").close(None if error is None else describe_ending(error))

    @classmethod
    def _current(cls, method: str) -> Session:
        if cls._instance is None:
            raise UsageError(
                f"PrecisionDebugger.{method}() was called before there is a debugger: "
                "construct PrecisionDebugger(...) first"
            )
        return cls._instance._session

    @classmethod
    def reset(cls) -> None:
        """Stop recording, complete the files and forget the debugger, so that another can be made in this process, with
        other options. Without a debugger it does nothing."""
        existing, cls._instance = cls._instance, None
        if existing is not None:
            existing._session.close()


def _check_same(existing: CaptureConfig, wanted: CaptureConfig, names: set[str]) -> None:
    """Do the options that were given agree with those of the debugger that exists?"""
    differences = [
        f"{name}={_show(getattr(wanted, name))}, where it has {_show(getattr(existing, name))}"
        for name in _FIELDS
        if name in names and getattr(existing, name) != getattr(wanted, name)
    ]
    if differences:
        raise UsageError(
            f"there is a PrecisionDebugger in this process already, with other options: {'; '.join(differences)}. "
            "Use PrecisionDebugger() or the class for the one that exists, or call PrecisionDebugger.reset() first, "
            "which completes its files, to begin anew"
        )


def _show(value: Any) -> str:
    if isinstance(value, frozenset):
        return repr(sorted(value))
    return repr(str(value)) if isinstance(value, Path) else repr(value)
