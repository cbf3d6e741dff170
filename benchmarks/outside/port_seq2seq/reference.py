"""Neural machine translation with attention: bidirectional GRU encoder, GRUCell decoder with additive attention, teacher forcing.

The weights are drawn from numpy by name, so that the other implementation can draw the same.
"""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tensorprobe.pytorch import PrecisionDebugger

PAD, BOS, EOS = 0, 1, 2
SRC_VOCAB, TGT_VOCAB = 40, 36
EMB, ENC, DEC = 16, 12, 20
CLIP = 0.5


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SRC_VOCAB, EMB)
        self.rnn = nn.GRU(EMB, ENC, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(2 * ENC, DEC)

    def forward(self, src, src_len):
        embedded = self.embedding(src)
        packed = pack_padded_sequence(embedded, src_len, batch_first=True, enforce_sorted=False)
        outputs, hidden = self.rnn(packed)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True)
        # hidden: [forward, backward]
        hidden = torch.tanh(self.bridge(torch.cat((hidden[-2], hidden[-1]), dim=1)))
        return outputs, hidden


class AdditiveAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Linear(2 * ENC + DEC, DEC)
        self.v = nn.Linear(DEC, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask):
        src_len = encoder_outputs.shape[1]
        hidden = hidden.unsqueeze(1).repeat(1, src_len, 1)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        scores = self.v(energy).squeeze(2)
        scores = scores.masked_fill(mask == 0, -1e10)
        return F.softmax(scores, dim=1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TGT_VOCAB, EMB)
        self.attention = AdditiveAttention()
        self.cell = nn.GRUCell(EMB + 2 * ENC, DEC)
        self.fc_out = nn.Linear(DEC + 2 * ENC + EMB, TGT_VOCAB)

    def forward(self, token, hidden, encoder_outputs, mask):
        embedded = self.embedding(token)
        a = self.attention(hidden, encoder_outputs, mask)
        context = torch.bmm(a.unsqueeze(1), encoder_outputs).squeeze(1)
        hidden = self.cell(torch.cat((embedded, context), dim=1), hidden)
        prediction = self.fc_out(torch.cat((hidden, context, embedded), dim=1))
        return prediction, hidden


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, src, src_len, trg, teacher_forcing):
        encoder_outputs, hidden = self.encoder(src, src_len)
        mask = src[:, : encoder_outputs.shape[1]] != PAD
        outputs = []
        token = trg[:, 0]
        for t in range(1, trg.shape[1]):
            prediction, hidden = self.decoder(token, hidden, encoder_outputs, mask)
            outputs.append(prediction)
            token = trg[:, t] if teacher_forcing[t] else prediction.argmax(1)
        return torch.stack(outputs, dim=1)


def init_by_name(model):
    for name, param in model.named_parameters():
        rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
        bound = 0.6 if "embedding" in name else 1.2 / np.sqrt(param.shape[-1])
        with torch.no_grad():
            param.copy_(torch.from_numpy(rng.uniform(-bound, bound, tuple(param.shape)).astype(np.float32)))


def batch(step):
    rng = np.random.RandomState(55 + step)
    src_len, trg_len = np.array([7, 5, 8, 4]), np.array([6, 7, 4, 5])
    src = rng.randint(3, SRC_VOCAB, (4, 8)) * (np.arange(8)[None] < src_len[:, None])
    trg = rng.randint(3, TGT_VOCAB, (4, 7))
    trg[:, 0] = BOS
    trg[np.arange(4), trg_len - 1] = EOS
    trg = trg * (np.arange(7)[None] < trg_len[:, None])
    return src, src_len, trg, rng.rand(7) < 0.7


def train_step(model, optimizer, criterion, src, src_len, trg, teacher_forcing):
    optimizer.zero_grad()
    output = model(src, src_len, trg, teacher_forcing)
    loss = criterion(output.reshape(-1, TGT_VOCAB), trg[:, 1:].reshape(-1))
    loss.backward()
    total_norm = clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    return loss, total_norm


def norm(tensors):
    return np.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


if __name__ == "__main__":
    model = Seq2Seq()
    init_by_name(model)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-12, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        src, src_len, trg, teacher = batch(step)
        src, trg = torch.from_numpy(src), torch.from_numpy(trg)
        debugger.start(model)
        loss, total_norm = train_step(model, optimizer, criterion, src, torch.from_numpy(src_len), trg, teacher)
        debugger.stop()
        debugger.step()
        clipped = norm(p.grad for p in model.parameters())
        enc, dec = (norm(p.grad for p in part.parameters()) for part in (model.encoder, model.decoder))
        print(f"step {step} loss {loss.item():.8f} clipped {clipped:.8f} encoder {enc:.8f} decoder {dec:.8f} wnorm {norm(model.parameters()):.8f} emb {norm([model.encoder.embedding.weight]):.8f}")
