"""`with tensorprobe.capture(model, dump_path) as run:` the engine as a context manager, for new users."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorprobe.capture.process import describe_ending
from tensorprobe.config import CaptureConfig, load_config
from tensorprobe.config.api_list import load_api_list
from tensorprobe.errors import UsageError

if TYPE_CHECKING:
    from tensorprobe.capture.framework import Framework
    from tensorprobe.capture.session import Session
    from tensorprobe.config.api_list import ApiList

_FRAMEWORKS = ("torch", "mindspore")
_ADAPTER = "msadapter"


def capture(
    model: Any = None,
    dump_path: str | os.PathLike[str] | None = None,
    *,
    level: str | None = None,
    config_path: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Record what `model` computes inside the `with` block.

    >>> with tensorprobe.capture(model, "./dump", level="mix") as run:   # doctest: +SKIP
    ...     for batch in data:
    ...         train_step(model, batch)
    ...         run.step()

    Without a level, it is "mix" when there is a model and "L1" when there is none. `options` are the other keys of
    config.json, flat: `task`, `step`, `rank`, `list`, `scope`, `data_mode`, `summary_mode`, `tensor_list`,
    `async_dump`, `extra_info`, `api_yaml`, `on_nonfinite`, `compiled`, `max_disk`, `min_free`, `flight_recorder`,
    `tensorboard`.
    """
    if level is None and config_path is None:
        level = "mix" if model is not None else "L1"
    return Run(load_config(config_path, dump_path=dump_path, level=level, **options), model)


class Run:
    """A capture that is running: the value of the `with` block."""

    def __init__(self, config: CaptureConfig, model: Any) -> None:
        self.config = config
        self._model = model
        self._session = make_session(config, framework_of(model))

    def __enter__(self) -> Run:
        self._session.start(self._model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close(None if error is None else describe_ending(error))

    def step(self) -> None:
        """End one training step and begin the next."""
        self._session.step()
        self._session.start(self._model)

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one variable at this point, and its gradient when it comes."""
        self._session.save(variable, name, save_backward)


def make_session(config: CaptureConfig, framework: str) -> Session:
    """A session for a framework, which is imported only now."""
    from tensorprobe.capture.session import Session

    api_list = load_api_list(config.api_yaml) if config.api_yaml is not None else None
    return Session(config, make_framework(framework, api_list))


def make_framework(name: str, api_list: ApiList | None = None, *, writes_npy: bool = False) -> Framework:
    """What the engine needs of a framework, which is imported only now. `writes_npy`: its tensor files are such as
    every numpy reads, with bfloat16 as float32."""
    adapter: Any
    if name == "torch":
        from tensorprobe.capture.torch.framework import TorchFramework

        adapter = TorchFramework(api_list, writes_npy=writes_npy)
    else:
        from tensorprobe.capture.mindspore.framework import MindSporeFramework

        adapter = MindSporeFramework(api_list, writes_npy=writes_npy)
    return adapter  # type: ignore[no-any-return]


def framework_of(model: Any) -> str:
    """The framework that a model belongs to, or the one that the program has imported."""
    models = model if isinstance(model, (list, tuple)) else [model]
    for item in models:
        for kind in type(item).__mro__:
            root = kind.__module__.split(".")[0]
            if root in _FRAMEWORKS or root == _ADAPTER:
                return "mindspore" if is_adapter_loaded() else root
    if model is not None:
        raise UsageError(
            "tensorprobe.capture(model) takes a torch.nn.Module, a mindspore.nn.Cell, or a list of them, "
            f"not {type(model).__name__}"
        )
    imported = [name for name in _FRAMEWORKS if name in sys.modules]
    if len(imported) == 1:
        return imported[0]
    if imported and is_adapter_loaded():
        return "mindspore"
    both = "torch and mindspore are both imported: give the model, or use tensorprobe.pytorch or tensorprobe.mindspore"
    none = "import torch or mindspore first, so that it is known what to capture"
    raise UsageError(f"tensorprobe.capture() without a model: {both if imported else none}")


def is_adapter_loaded() -> bool:
    """Is what this program calls torch in truth MindSpore, by MSAdapter?"""
    torch, mindspore = sys.modules.get("torch"), sys.modules.get("mindspore")
    return mindspore is not None and getattr(torch, "Tensor", None) is getattr(mindspore, "Tensor", torch)
