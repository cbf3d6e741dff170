"""Views that torch does not tell the origin of are recorded like all others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tensorprobe.capture.torch import look
from tensorprobe.capture.torch.node import find_node
from tests.capture.torch.dump import only_step
from tests.capture.torch.training import open_session


def test_the_node_of_a_result_is_what_torch_says() -> None:
    result = torch.ones(2, requires_grad=True) * 2
    assert find_node(result) is result.grad_fn


def test_a_view_without_gradients_whose_base_was_written_to_has_none() -> None:
    weight = nn.Parameter(torch.ones(3, 4))
    with torch.no_grad():
        view = weight[1:]
        view.mul_(2)
    with pytest.raises(RuntimeError, match="view was created in no_grad mode"):
        _ = view.grad_fn
    assert find_node(view) is None


@pytest.mark.parametrize("way", ["compiled", "plain"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_part_of_a_parameter_is_written_to_without_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, way: str
) -> None:
    if way == "plain":
        monkeypatch.setattr(look, "make_leaf", look.make_leaf_plainly)
    model = nn.Linear(4, 3)
    session = open_session(tmp_path, level=level)
    session.start(model)
    with torch.no_grad():
        part = model.weight[1:]
        part.mul_(2)
        torch.relu(part)
    model(torch.ones(2, 4)).sum().backward()
    failed = session.recorder.coverage.failed
    session.close()
    assert failed == 0
    assert {"Tensor.mul_.0.forward", "Torch.relu.0.forward"} <= set(only_step(tmp_path).records)
