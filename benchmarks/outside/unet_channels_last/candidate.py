"""channels_last training of the UNet with nothing but torch around it: own noise schedule, loss, clipping and averaging."""
import math
import os
import sys
import zlib

import numpy as np
import torch
from diffusers.models import UNet2DModel

from tensorprobe.pytorch import PrecisionDebugger


class Cosines:
    """x_t = cos(phi) x + sin(phi) e,  v = cos(phi) e - sin(phi) x"""

    def __init__(self, n=40, low=1e-3, high=0.2):
        beta = torch.linspace(math.sqrt(low), math.sqrt(high), n, dtype=torch.float32) ** 2
        kept = torch.cumprod(1.0 - beta, dim=0)
        self.cos, self.sin = kept.sqrt(), (1.0 - kept).sqrt()

    def at(self, t):
        return self.cos[t].view(-1, 1, 1, 1), self.sin[t].view(-1, 1, 1, 1)

    def corrupt(self, x, e, t):
        c, s = self.at(t)
        return c * x + s * e

    def loss(self, out, x, e, t, cap=5.0):
        c, s = self.at(t)
        residual = out + s * x - c * e
        # min(snr, cap) / (snr + 1) with snr = c^2 / s^2
        weight = torch.minimum(c.square(), cap * s.square())
        return (weight * residual.square()).sum() / residual.numel()


class Average:
    """exponential average, warmed up as 1 - (1 + n) ** -0.75"""

    def __init__(self, params, ceiling=0.995):
        self.params, self.ceiling, self.count = params, ceiling, 0
        self.values = [p.detach().clone(memory_format=torch.preserve_format) for p in params]

    @torch.no_grad()
    def update(self):
        keep = min(self.ceiling, 1.0 - (1.0 + self.count) ** -0.75)
        self.count += 1
        torch._foreach_lerp_(self.values, self.params, 1.0 - keep)


@torch.no_grad()
def clip(params, limit):
    grads = [p.grad for p in params]
    total = torch.stack(torch._foreach_norm(grads)).square().sum().sqrt()
    if total > limit:
        torch._foreach_mul_(grads, limit / (total + 1e-6))
    return total


def unet():
    net = UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
        attention_head_dim=8, norm_num_groups=4,
    )  # fmt: skip
    state = {}
    for name, value in net.state_dict().items():
        draw = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(value.shape))
        if value.ndim > 1:
            draw = draw / math.sqrt(draw[0].size)
        else:
            draw = 0.1 * draw + float(name.endswith("weight"))
        state[name] = torch.as_tensor(draw, dtype=torch.float32)
    net.load_state_dict(state)
    return net.to(memory_format=torch.channels_last)


class Loader:
    def __init__(self, batch=4, size=8, n=40):
        self.batch, self.size, self.n = batch, size, n

    def __getitem__(self, step):
        rs = np.random.RandomState(31 * step + 5)
        rows, cols = np.meshgrid(np.arange(self.size), np.arange(self.size), indexing="ij")
        pictures = []
        for _ in range(self.batch):
            fx, fy, phase = rs.rand(3), rs.rand(3), rs.rand(3) * 6
            pictures.append(np.sin(cols[..., None] * fx + rows[..., None] * fy + phase))
        pictures = np.stack(pictures)
        raw = 127.5 + 100 * pictures + 10 * rs.standard_normal(pictures.shape)
        raw = np.clip(np.round(raw), 0, 255).astype(np.uint8)
        e = rs.standard_normal((self.batch, 3, self.size, self.size)).astype(np.float32)
        t = rs.randint(0, self.n, self.batch)
        # a picture in memory is already height, width, channel: channels_last for nothing
        x = torch.from_numpy(raw).permute(0, 3, 1, 2).float().sub(127.5).div(127.5)
        return x, torch.from_numpy(e).to(memory_format=torch.channels_last), torch.from_numpy(t)


def length(tensors):
    return math.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


def main(dump):
    net, schedule, loader = unet().train(), Cosines(), Loader()
    params = list(net.parameters())
    average = Average(params)
    adam = torch.optim.AdamW(params, lr=2e-3, betas=(0.95, 0.999), weight_decay=1e-2, eps=1e-6, foreach=True)
    probe = PrecisionDebugger(dump_path=dump, level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        x, e, t = loader[step]
        probe.start(net)
        adam.zero_grad()
        (out,) = net(schedule.corrupt(x, e, t), t, return_dict=False)
        loss = schedule.loss(out, x, e, t)
        loss.backward()
        grad = clip(params, 0.5)
        adam.step()
        average.update()
        probe.stop()
        print(f"step {step} loss {loss:.8f} grad {grad:.8f} weights {length(params):.8f} average {length(average.values):.8f}")
        probe.step()


if __name__ == "__main__":
    main(sys.argv[1])
