"""Without MSAdapter: what is said of models that belong to another framework. With it: tests/msadapter."""

from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.capture.mindspore.adapter import adapter_dialect, explain_foreign


def model_of(package: str) -> Any:
    return type("Net", (), {"__module__": f"{package}.nn.modules.linear"})()


def test_mindspore_alone_is_not_taken_for_the_adapter() -> None:
    assert adapter_dialect() is None


@pytest.mark.parametrize(
    ("package", "advice"),
    [
        ("torch", "use tensorprobe.pytorch, or import msadapter before torch"),
        ("msadapter", "import msadapter first"),
    ],
)
def test_a_model_of_another_framework_is_known(package: str, advice: str) -> None:
    assert explain_foreign(model_of(package)).endswith(advice)


def test_nothing_is_said_of_other_objects() -> None:
    assert explain_foreign(3) == ""
