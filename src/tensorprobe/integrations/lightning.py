"""A callback for the `Trainer` of Lightning, in both of its packages: `lightning` and `pytorch_lightning`.

It returns nothing to the trainer, and saves nothing in checkpoints.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from tensorprobe.integrations.training import TrainingCallback

_PACKAGES = ("lightning", "pytorch_lightning")


def _import_callback() -> Any:
    """The base class, of the package that the program has imported: the other's trainer does not know it."""
    imported = [name for name in _PACKAGES if sys.modules.get(name) is not None]
    installed = [name for name in _PACKAGES if importlib.util.find_spec(name) is not None]
    if not imported and not installed:
        raise ImportError("tensorprobe.integrations.lightning needs Lightning: pip install lightning")
    name = (imported or installed)[0]
    return importlib.import_module("lightning.pytorch" if name == "lightning" else name).Callback


class TensorprobeCallback(TrainingCallback, _import_callback()):  # type: ignore[misc]
    """Records the training steps of a `Trainer`: forward and backward of all batches that are accumulated into one
    optimizer step, in the folder of the trainer's `global_step` when it begins.

    With manual optimization all that one batch does is one step, with several optimizers too, and their calls are
    recorded as well. `options` are the other keys of config.json, flat, as for `tensorprobe.capture`; without a level
    it is mix. Validation, testing and prediction are not recorded.
    """

    _global_step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._global_step = trainer.global_step
        self._training.open_window(pl_module, self._global_step)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if pl_module.automatic_optimization:  # else the batch may go on after it
            self._training.close_window()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._training.close_window()
        if trainer.global_step != self._global_step:
            self._training.end_step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.close_window()  # a batch that the module's own hook refused has no end

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._training.end(exception)
