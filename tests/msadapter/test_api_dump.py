"""api_dump of a program whose torch is MSAdapter's: PyTorch's names, in files with a word of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorprobe.migrator import api_dump_init
from tests.migrator.api_dump_run import Dumped, forget_session, window
from tests.msadapter.program import F, nn, torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return F.softmax(self.layers(x), dim=1)


def test_layers_are_one_call_and_functions_outside_of_them_another(tmp_path: Path) -> None:
    net, x = Net(), torch.ones(2, 3)
    api_dump_init(net, tmp_path, retain_backward=True)
    with window():
        net(x).sum().backward()
    forget_session()
    forward = ["NN_Linear_0_forward", "NN_ReLU_0_forward", "Functional_softmax_0_forward", "Tensor_sum_0_forward"]
    found = Dumped(tmp_path, "mindtorch")
    assert found.calls[:4] == forward
    assert "NN_Linear_0_backward" in found.calls
    assert found.records["NN_Linear_0_forward"]["module_path"] == "layers.0"
