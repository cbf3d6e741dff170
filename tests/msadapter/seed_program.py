"""The example of msprobe's page on MSAdapter, with our import and that of the adapter. It is run, not imported."""

# ruff: noqa: I001, RET504  it is left as it stands there
import mindspore as ms
import msadapter  # noqa: F401
import torch
import torch.nn as nn
import torch.nn.functional as F

from tensorprobe.mindspore import PrecisionDebugger

debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(in_features=8, out_features=4)
        self.linear2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x):
        x1 = self.linear1(x)
        x2 = self.linear2(x1)
        logits = F.relu(x2)
        return logits


net = Net()


def train_step(inputs):
    return net(inputs)


if __name__ == "__main__":
    data = (torch.randn(10, 8), torch.randn(10, 8), torch.randn(10, 8))
    grad_fn = ms.value_and_grad(train_step, grad_position=0)

    for inputs in data:
        debugger.start(model=net)

        out, grad = grad_fn(inputs)

        debugger.stop()
        debugger.step()
