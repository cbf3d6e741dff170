"""Named-entity tagger: embeddings + character CNN, packed bidirectional LSTM, linear-chain CRF."""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tensorprobe.pytorch import PrecisionDebugger

N_WORDS, N_CHARS, WORD_DIM, CHAR_DIM, HIDDEN, TAGS = 50, 20, 12, 6, 10, 5


class CRF(nn.Module):
    """In the manner of pytorch-crf, batch first."""

    def __init__(self, num_tags):
        super().__init__()
        self.start_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.end_transitions = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))

    def forward(self, emissions, tags, mask):
        emissions, tags, mask = emissions.transpose(0, 1), tags.transpose(0, 1), mask.transpose(0, 1)
        numerator = self._score(emissions, tags, mask)
        denominator = self._normalizer(emissions, mask)
        return (denominator - numerator).mean()

    def _score(self, emissions, tags, mask):
        length, batch = tags.shape
        m = mask.float()
        rows = torch.arange(batch)
        score = self.start_transitions[tags[0]] + emissions[0, rows, tags[0]]
        for i in range(1, length):
            score = score + self.transitions[tags[i - 1], tags[i]] * m[i]
            score = score + emissions[i, rows, tags[i]] * m[i]
        last = mask.long().sum(0) - 1
        return score + self.end_transitions[tags[last, rows]]

    def _normalizer(self, emissions, mask):
        score = self.start_transitions + emissions[0]
        for i in range(1, emissions.shape[0]):
            nxt = score.unsqueeze(2) + self.transitions + emissions[i].unsqueeze(1)
            nxt = torch.logsumexp(nxt, dim=1)
            score = torch.where(mask[i].unsqueeze(1), nxt, score)
        return torch.logsumexp(score + self.end_transitions, dim=1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(N_WORDS, WORD_DIM, padding_idx=0)
        self.chars = nn.Embedding(N_CHARS, CHAR_DIM, padding_idx=0)
        self.char_conv = nn.Conv1d(CHAR_DIM, 8, 3, padding=1)
        self.lstm = nn.LSTM(WORD_DIM + 8, HIDDEN, num_layers=1, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * HIDDEN)
        self.emit = nn.Linear(2 * HIDDEN, TAGS)
        self.crf = CRF(TAGS)

    def features(self, words, chars):
        b, t, c = chars.shape
        x = self.chars(chars.view(b * t, c)).transpose(1, 2)
        x = torch.tanh(self.char_conv(x)).max(dim=2)[0].view(b, t, -1)
        return torch.cat([self.words(words), x], dim=-1)

    def forward(self, words, chars, lengths, tags):
        x = self.features(words, chars)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=words.shape[1])
        emissions = self.emit(self.norm(out))
        mask = torch.arange(words.shape[1])[None, :] < lengths[:, None]
        return self.crf(emissions, tags, mask)


def batch(step):
    rng = np.random.RandomState(40 + step)
    lengths = np.array([5, 7, 3, 6])
    words = rng.randint(1, N_WORDS, (4, 7))
    chars = rng.randint(1, N_CHARS, (4, 7, 5))
    tags = rng.randint(0, TAGS, (4, 7))
    valid = np.arange(7)[None] < lengths[:, None]
    chars[..., 3:][rng.rand(4, 7) < 0.4] = 0
    return words * valid, chars * valid[..., None], lengths, tags * valid


def main():
    torch.manual_seed(11)
    model = Tagger()
    np.savez(os.path.join(os.environ["WEIGHTS"], "tagger.npz"), **{k: v.numpy() for k, v in model.state_dict().items()})
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        words, chars, lengths, tags = (torch.as_tensor(a, dtype=torch.long) for a in batch(step))
        dbg.start(model)
        opt.zero_grad()
        loss = model(words, chars, lengths, tags)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        dbg.stop()
        dbg.step()
        gnorm = np.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in model.parameters()))
        first = np.sqrt(float(model.words.weight.grad.double().pow(2).sum()))
        wnorm = np.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in model.parameters()))
        print(f"step {step} loss {loss.item():.8f} clipped gnorm {gnorm:.8f} of words {first:.8f} wnorm {wnorm:.8f}")


if __name__ == "__main__":
    main()
