"""Next-character model: two stacked LSTMs, tied softmax, truncated backpropagation, label smoothing, AdamW and a mean of the weights."""
import os, sys, zlib
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
import tensorprobe

CHARS, DIM, HIDDEN, LAYERS, BATCH, LENGTH = 23, 8, 10, 2, 4, 6


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CHARS, DIM)
        self.rnn = nn.LSTM(DIM, HIDDEN, LAYERS, proj_size=DIM)
        self.norm = nn.LayerNorm(DIM)
        self.decoder = nn.Linear(DIM, CHARS)
        self.decoder.weight = self.embed.weight

    def forward(self, chars, state):
        out, state = self.rnn(self.embed(chars), state)
        return self.decoder(self.norm(out)), out, state


def initial(name, shape):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    value = rng.standard_normal(shape)
    value = 1 + 0.1 * value if name == "norm.weight" else value * (0.3 if len(shape) == 1 else 0.9 / np.sqrt(shape[-1]))
    return torch.tensor(value, dtype=torch.float32)


def main():
    model = CharModel()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(initial(name, p.shape))
    decayed = [p for n, p in model.named_parameters() if n.endswith("weight") or "weight_" in n]
    plain = [p for n, p in model.named_parameters() if "bias" in n]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0}], lr=3e-3, weight_decay=0.05, amsgrad=True, eps=1e-5)
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    text = torch.from_numpy(np.random.default_rng(3).integers(0, CHARS, (40, BATCH)))
    state = (torch.zeros(LAYERS, BATCH, DIM), torch.zeros(LAYERS, BATCH, HIDDEN))
    with tensorprobe.capture(model, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 2))):
            x, y = text[step * LENGTH : (step + 1) * LENGTH], text[step * LENGTH + 1 : (step + 1) * LENGTH + 1]
            state = tuple(s.detach() for s in state)
            logits, raw, state = model(x, state)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)
            loss = loss + 1e-2 * raw.pow(2).mean() + 1e-1 * (raw[1:] - raw[:-1]).pow(2).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            mean.update_parameters(model)
            run.step()
            print(f"{step} {loss.item():.8f} {norm.item():.8f} {sum(p.detach().double().abs().sum() for p in model.parameters()):.8f} {sum(p.detach().double().abs().sum() for p in mean.parameters()):.8f}")


if __name__ == "__main__":
    main()
