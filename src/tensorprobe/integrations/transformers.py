"""A callback for the `Trainer` of transformers (and of libraries that build on it, such as TRL).

It tells the trainer nothing: it returns no `TrainerControl`, and changes neither the model nor the state.
"""

from __future__ import annotations

from typing import Any

from tensorprobe.integrations.training import TrainingCallback

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("tensorprobe.integrations.transformers needs transformers: pip install transformers") from error


class TensorprobeCallback(TrainingCallback, TrainerCallback):  # type: ignore[misc]
    """Records the training steps of a `Trainer`: forward and backward of all micro-batches of one optimizer step, in
    the folder of the trainer's `global_step` when it begins.

    `options` are the other keys of config.json, flat, as for `tensorprobe.capture`; without a level it is mix.
    Evaluation and prediction are not recorded.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.begin()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.open_window(kwargs["model"], state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.close_window()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.end_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.end()
