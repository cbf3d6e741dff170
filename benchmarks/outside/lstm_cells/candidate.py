"""The character model without cuDNN: cells in a loop, all gates by one product, an optimizer of our own, a mean of the weights in a list."""
import math, os, sys, zlib
import numpy as np
import torch
from torch import nn
import tensorprobe

CHARS, DIM, HIDDEN, LAYERS, BATCH, LENGTH = 23, 8, 10, 2, 4, 6


class Cell(nn.Module):
    """An LSTM with a projection of what it gives; input and state are multiplied together."""

    def __init__(self, size):
        super().__init__()
        self.gates = nn.Parameter(torch.empty(size + DIM, 4, HIDDEN))
        self.bias_in, self.bias_state = nn.Parameter(torch.empty(4, HIDDEN)), nn.Parameter(torch.empty(4, HIDDEN))
        self.project = nn.Parameter(torch.empty(DIM, HIDDEN))

    def forward(self, x, h, c):
        z = torch.tensordot(torch.cat((x, h), dim=1), self.gates, 1) + self.bias_in + self.bias_state
        i, f, g, o = z.unbind(dim=1)
        c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
        return (o.sigmoid() * c.tanh()) @ self.project.mT, c


class Chars(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.empty(CHARS, DIM))
        self.cells = nn.ModuleList([Cell(DIM) for _ in range(LAYERS)])
        self.gain, self.shift = nn.Parameter(torch.empty(DIM)), nn.Parameter(torch.empty(DIM))
        self.offset = nn.Parameter(torch.empty(CHARS))

    def forward(self, chars, state):
        """chars: (batch, time)"""
        words = self.table[chars]
        outs = []
        for t in range(chars.shape[1]):
            x, following = words[:, t], []
            for cell, (h, c) in zip(self.cells, state):
                x, c = cell(x, h, c)
                following.append((x, c))
            state = following
            outs.append(x)
        raw = torch.stack(outs, dim=1)
        std, mean = torch.std_mean(raw, dim=-1, keepdim=True, correction=0)
        normed = (raw - mean) * (std.square() + 1e-5).rsqrt() * self.gain + self.shift
        return normed @ self.table.mT + self.offset, raw, state


class Adam:
    """AdamW with the largest second moment kept."""

    def __init__(self, groups, lr, betas=(0.9, 0.999), eps=1e-5):
        self.groups, self.lr, self.betas, self.eps, self.t = groups, lr, betas, eps, 0
        self.state = {p: [torch.zeros_like(p) for _ in range(3)] for params, _ in groups for p in params}

    @torch.no_grad()
    def step(self, factor):
        self.t += 1
        b1, b2 = self.betas
        for params, decay in self.groups:
            for p in params:
                m, v, top = self.state[p]
                g = p.grad * factor
                m.lerp_(g, 1 - b1)
                v.mul_(b2).addcmul_(g, g, value=1 - b2)
                torch.maximum(top, v, out=top)
                p.mul_(1 - self.lr * decay)
                p.addcdiv_(m, (top / (1 - b2**self.t)).sqrt_().add_(self.eps), value=-self.lr / (1 - b1**self.t))


def smoothed(logits, y, smoothing=0.1):
    surplus = logits.logsumexp(-1)
    return (surplus - (1 - smoothing) * logits.gather(-1, y[..., None])[..., 0] - smoothing * logits.mean(-1)).mean()


def initial(name, *shape):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    value = rng.standard_normal(shape)
    value = 1 + 0.1 * value if name == "norm.weight" else value * (0.3 if len(shape) == 1 else 0.9 / np.sqrt(shape[-1]))
    return torch.tensor(value, dtype=torch.float32)


@torch.no_grad()
def load(model):
    model.table.copy_(initial("embed.weight", CHARS, DIM))
    model.gain.copy_(initial("norm.weight", DIM))
    model.shift.copy_(initial("norm.bias", DIM))
    model.offset.copy_(initial("decoder.bias", CHARS))
    for k, cell in enumerate(model.cells):
        joined = torch.cat([initial(f"rnn.weight_{s}_l{k}", 4 * HIDDEN, DIM) for s in ("ih", "hh")], dim=1)
        cell.gates.copy_(joined.T.unflatten(1, (4, HIDDEN)))
        cell.bias_in.copy_(initial(f"rnn.bias_ih_l{k}", 4 * HIDDEN).view(4, HIDDEN))
        cell.bias_state.copy_(initial(f"rnn.bias_hh_l{k}", 4 * HIDDEN).view(4, HIDDEN))
        cell.project.copy_(initial(f"rnn.weight_hr_l{k}", DIM, HIDDEN))


def main():
    model = Chars()
    load(model)
    weights = [model.table, model.gain] + [p for cell in model.cells for p in (cell.gates, cell.project)]
    biases = [model.shift, model.offset] + [p for cell in model.cells for p in (cell.bias_in, cell.bias_state)]
    optimizer = Adam([(weights, 0.05), (biases, 0.0)], lr=3e-3)
    mean = None
    text = torch.from_numpy(np.random.default_rng(3).integers(0, CHARS, (40, BATCH))).T
    state = [(torch.zeros(BATCH, DIM), torch.zeros(BATCH, HIDDEN)) for _ in range(LAYERS)]
    with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            at = step * LENGTH
            logits, raw, state = model(text[:, at : at + LENGTH], state)
            loss = smoothed(logits, text[:, at + 1 : at + LENGTH + 1])
            loss = loss + 0.01 * raw.square().mean() + 0.1 * raw.diff(dim=1).square().mean()
            model.zero_grad()
            loss.backward()
            norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
            optimizer.step((0.5 / (norm + 1e-6)).clamp(max=1.0))
            now = [p.detach().clone() for p in model.parameters()]
            mean = now if mean is None else torch._foreach_lerp(mean, now, 0.1)
            state = [(h.detach(), c.detach()) for h, c in state]
            run.step()
            print(f"{step} {loss.item():.8f} {norm.item():.8f} {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f} {sum(p.double().abs().sum() for p in mean):.8f}")


if __name__ == "__main__":
    main()
