"""Code of training libraries that keeps books: it adds up the loss or a metric over the steps, for the log.

Its sums depend on when the training was started, and nothing that is trained depends on them: a run that was resumed
has others than one that went through. So its calls are told from those of the program, as those of an optimizer are.
"""

from __future__ import annotations

from types import CodeType

CALLER = "logging"

# Functions whose own calls are for the log; what they call in turn is the training itself.
_LOOPS = (("/transformers/trainer.py", ("_run_epoch", "_inner_training_loop")),)
# Files that do nothing else, with all that they call.
_FILES = (
    "/lightning/pytorch/trainer/connectors/logger_connector/result.py",
    "/pytorch_lightning/trainer/connectors/logger_connector/result.py",
)


def is_loop(code: CodeType) -> bool:
    """Are the calls for the log that this function itself makes?"""
    return any(_is_at(code, file) and code.co_name in functions for file, functions in _LOOPS)


def keeps_books(code: CodeType) -> bool:
    """Is all that happens inside this function for the log?"""
    return any(_is_at(code, file) for file in _FILES)


def _is_at(code: CodeType, file: str) -> bool:
    return code.co_filename.replace("\\", "/").endswith(file)
