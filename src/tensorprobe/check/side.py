"""One side of a check, recorded: a function or a model, with inputs and a random state of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorprobe.capture.context import Run, capture, framework_of
from tensorprobe.check.model_search import find_models
from tensorprobe.check.option import CheckOptions
from tensorprobe.errors import TensorprobeError, UsageError

_logger = logging.getLogger("tensorprobe")


@dataclass(frozen=True)
class Side:
    """What is called, and with what."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    trial: ModuleType
    """What it needs of its framework: `capture.torch.trial`, or MindSpore's twin of it."""

    @property
    def models(self) -> list[Any]:
        return find_models([self.function, *self.inputs, *self.kwargs.values()], self.trial.is_model)

    def copied(self, dtype: Any = None, device: Any = None) -> Side:
        """With inputs of its own: fresh leaves, and where a dtype or a device is given a model of its own too."""
        is_converted = dtype is not None or device is not None
        known: dict[int, Any] = {}

        def copy_leaf(value: Any) -> Any:
            if id(value) not in known:
                known[id(value)] = value
                if self.trial.is_tensor(value):
                    known[id(value)] = self.trial.copy_tensor(value, dtype, device)
                elif is_converted and self.trial.is_model(value):
                    known[id(value)] = self.trial.copy_model(value, dtype, device)
            return known[id(value)]

        inputs, kwargs = _map_containers((self.inputs, dict(self.kwargs)), copy_leaf)
        return Side(self.name, self._converted_function(copy_leaf), inputs, kwargs, self.trial)

    def converted(self, options: CheckOptions) -> Side:
        """As the candidate is called; UsageError where that dtype or device is not to be had."""
        try:
            return self.copied(options.dtype, options.device)
        except Exception as error:
            if options.dtype is None and options.device is None:
                raise
            asked = [f"{name}={one!r}" for name, one in (("dtype", options.dtype), ("device", options.device)) if one]
            raise UsageError(
                f"the {self.name} and its inputs cannot be converted to {', '.join(asked)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _converted_function(self, copy_leaf: Callable[[Any], Any]) -> Callable[..., Any]:
        owner = getattr(self.function, "__self__", None)
        if self.trial.is_model(owner) and copy_leaf(owner) is not owner:
            return getattr(copy_leaf(owner), self.function.__name__)  # type: ignore[no-any-return]
        return copy_leaf(self.function)  # type: ignore[no-any-return]

    def call(self) -> Any:
        return self.function(*self.inputs, **self.kwargs)


def _map_containers(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same nesting with other leaves; a container of another kind is a leaf."""
    if type(tree) is dict:
        return {key: _map_containers(value, leaf) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_map_containers(value, leaf) for value in tree)
    if isinstance(tree, tuple) and hasattr(type(tree), "_fields"):
        return type(tree)(*(_map_containers(value, leaf) for value in tree))
    return leaf(tree)


def make_side(name: str, function: Any, inputs: tuple[Any, ...], options: CheckOptions) -> Side:
    """UsageError for what cannot be called."""
    if not callable(function):
        raise UsageError(
            f"the {name} is {function!r} of type {type(function).__name__}. Give a model or a function that takes the "
            "inputs; tensorprobe.compare(reference, candidate) compares two dumps."
        )
    return Side(name, function, inputs, options.kwargs, _load_trial(function, (*inputs, *options.kwargs.values())))


def _load_trial(function: Any, values: tuple[Any, ...]) -> ModuleType:
    """By the framework of the model or of an input; else the one that the program has imported."""
    for value in (function, getattr(function, "__self__", None), *values):
        try:
            name = framework_of(value)
        except UsageError:
            continue
        if value is not None:
            break
    else:
        name = framework_of(None)
    if name == "torch":
        from tensorprobe.capture.torch import trial
    else:
        from tensorprobe.capture.mindspore import trial  # type: ignore[no-redef]
    return trial


def record_side(side: Side, folder: Path, level: str, options: CheckOptions, **more: Any) -> None:
    """Run it once and record it. Whatever it changes of the caller's models and random states is brought back."""
    models = side.models
    model = models[0] if len(models) == 1 else models or None
    setting = options.setting if side.name == "candidate" and options.setting is not None else nullcontext()
    with ExitStack() as stack:
        if options.keep is None:
            stack.enter_context(_no_reports())
        stack.enter_context(side.trial.seed_all(options.seed))
        kept = stack.enter_context(side.trial.Kept(models))
        run = stack.enter_context(capture(model, folder, level=level, task=options.task, **more))
        stack.enter_context(setting)
        _run(side, options, kept, run)


def _run(side: Side, options: CheckOptions, kept: Any, run: Run) -> None:
    try:
        side.trial.run(partial(_call, side, options.loss, run), options.backward, kept)
    except TensorprobeError:
        raise
    except Exception as error:
        raise UsageError(f"the {side.name} raised {type(error).__name__}: {error}") from error


def _call(side: Side, loss: Callable[[Any], Any] | None, run: Run) -> Any:
    """What it returns is saved: nothing else says which of all values is the result."""
    output = side.call()
    run.save(output, "result", save_backward=False)
    return output if loss is None else loss(output)


@contextmanager
def _no_reports() -> Iterator[None]:
    """Where a step was written is nothing to tell of a folder that is removed at once; warnings are told."""

    def is_warning(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    _logger.addFilter(is_warning)
    try:
        yield
    finally:
        _logger.removeFilter(is_warning)
