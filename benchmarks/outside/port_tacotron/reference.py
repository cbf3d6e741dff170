"""Tacotron 2 in small: phones to spectrograms with location sensitive attention, stop tokens and a postnet."""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import tensorprobe

PHONES, ENC, MEL, ATT, FILTERS, RNN, PRE, BATCH, TEXT, FRAMES = 13, 8, 5, 7, 3, 9, 6, 3, 6, 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(PHONES, ENC, padding_idx=0)
        self.conv = nn.Conv1d(ENC, ENC, 3, padding=1)
        self.bn = nn.BatchNorm1d(ENC)
        self.gru = nn.GRU(ENC, ENC // 2, batch_first=True, bidirectional=True)

    def forward(self, text, lengths):
        x = self.embedding(text).transpose(1, 2)
        x = F.relu(self.bn(self.conv(x))).transpose(1, 2)
        x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.gru(x)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=text.size(1))[0]


class LocationAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(RNN, ATT, bias=False)
        self.memory = nn.Linear(ENC, ATT, bias=False)
        self.location_conv = nn.Conv1d(2, FILTERS, 3, padding=1, bias=False)
        self.location = nn.Linear(FILTERS, ATT, bias=False)
        self.v = nn.Linear(ATT, 1)

    def forward(self, query, memory, keys, weights, cumulative, mask):
        places = self.location_conv(torch.stack([weights, cumulative], dim=1)).transpose(1, 2)
        energies = self.v(torch.tanh(self.query(query).unsqueeze(1) + keys + self.location(places))).squeeze(-1)
        energies = energies.masked_fill(mask, -float("inf"))
        weights = F.softmax(energies, dim=1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.prenet = nn.Sequential(nn.Linear(MEL, PRE, bias=False), nn.ReLU(), nn.Linear(PRE, PRE, bias=False), nn.ReLU())
        self.attention_rnn = nn.GRUCell(PRE + ENC, RNN)
        self.attention = LocationAttention()
        self.decoder_rnn = nn.LSTMCell(RNN + ENC, RNN)
        self.frame = nn.Linear(RNN + ENC, MEL)
        self.stop = nn.Linear(RNN + ENC, 1)

    def forward(self, memory, mask, mels):
        b = memory.size(0)
        hidden, cell_h, cell_c = (memory.new_zeros(b, RNN) for _ in range(3))
        weights, cumulative = memory.new_zeros(b, memory.size(1)), memory.new_zeros(b, memory.size(1))
        context = memory.new_zeros(b, ENC)
        keys = self.attention.memory(memory)
        inputs = self.prenet(torch.cat([memory.new_zeros(b, 1, MEL), mels[:, :-1]], dim=1))
        frames, stops = [], []
        for t in range(mels.size(1)):
            hidden = self.attention_rnn(torch.cat([inputs[:, t], context], -1), hidden)
            context, weights = self.attention(hidden, memory, keys, weights, cumulative, mask)
            cumulative = cumulative + weights
            cell_h, cell_c = self.decoder_rnn(torch.cat([hidden, context], -1), (cell_h, cell_c))
            both = torch.cat([cell_h, context], -1)
            frames.append(self.frame(both))
            stops.append(self.stop(both).squeeze(1))
        return torch.stack(frames, 1), torch.stack(stops, 1)


class Tacotron(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.postnet = nn.Sequential(nn.Conv1d(MEL, 6, 5, padding=2), nn.BatchNorm1d(6), nn.Tanh(), nn.Conv1d(6, MEL, 5, padding=2))

    def forward(self, text, text_lengths, mels):
        memory = self.encoder(text, text_lengths)
        mask = torch.arange(text.size(1))[None] >= text_lengths[:, None]
        coarse, stops = self.decoder(memory, mask, mels)
        fine = coarse + self.postnet(coarse.transpose(1, 2)).transpose(1, 2)
        return coarse, fine, stops


def criterion(coarse, fine, stops, mels, lengths):
    seen = torch.arange(mels.size(1))[None] < lengths[:, None]
    wanted = (torch.arange(mels.size(1))[None] >= lengths[:, None] - 1).float()
    mel_loss = F.mse_loss(coarse[seen], mels[seen]) + F.mse_loss(fine[seen], mels[seen])
    stop_loss = F.binary_cross_entropy_with_logits(stops, wanted, pos_weight=torch.tensor(3.0))
    return mel_loss + stop_loss


def initial(name, shape):
    rng = np.random.RandomState(zlib.crc32(name.encode()) % 2**31)
    value = rng.standard_normal(shape)
    if name.endswith(("bn.weight", "postnet.1.weight")):
        value = 1 + 0.2 * value
    elif len(shape) == 1:
        value = 0.2 * value
    else:
        value = value / np.sqrt(np.prod(shape[1:]))
    if name.endswith("embedding.weight"):
        value[0] = 0
    return value.astype(np.float32)


def make_batch(step):
    rng = np.random.RandomState(40 + step)
    text_lengths, lengths = np.array([6, 4, 5]), np.array([7, 8, 5])
    text = rng.randint(1, PHONES, (BATCH, TEXT)) * (np.arange(TEXT)[None] < text_lengths[:, None])
    mels = rng.standard_normal((BATCH, FRAMES, MEL)) * (np.arange(FRAMES)[None] < lengths[:, None])[..., None]
    return text, text_lengths, mels.astype(np.float32), lengths


def main():
    net = Tacotron().train()
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.from_numpy(initial(name, tuple(p.shape))))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 1))):
            text, text_lengths, mels, lengths = (torch.from_numpy(a) for a in make_batch(step))
            loss = criterion(*net(text, text_lengths, mels), mels, lengths)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            run.step()
            print(f"step {step} loss {loss.item():.8f} w {sum(p.detach().double().pow(2).sum() for p in net.parameters()):.8f}")


if __name__ == "__main__":
    main()
