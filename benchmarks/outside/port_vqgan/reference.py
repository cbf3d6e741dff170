"""VQGAN on tiny images: encoder, codebook with straight-through estimator, decoder; patch discriminator with hinge loss.

Generator and discriminator take turns in each step, as in taming-transformers (there with LPIPS, here without).
"""
import os
import sys
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import tensorprobe

CH, Z_CH, CODES, BETA = 12, 8, 24, 0.25
DISC_WEIGHT, DISC_FACTOR = 0.8, 1.0


def Normalize(channels):
    return nn.GroupNorm(num_groups=4, num_channels=channels, eps=1e-6, affine=True)


class ResnetBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm1 = Normalize(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = Normalize(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return x + h


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(3, CH, 3, padding=1)
        self.down = nn.Conv2d(CH, CH, 3, stride=2, padding=1)
        self.block = ResnetBlock(CH)
        self.norm_out = Normalize(CH)
        self.conv_out = nn.Conv2d(CH, Z_CH, 1)

    def forward(self, x):
        h = self.down(self.conv_in(x))
        h = F.silu(self.norm_out(self.block(h)))
        return self.conv_out(h)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(Z_CH, CH, 3, padding=1)
        self.block = ResnetBlock(CH)
        self.up = nn.ConvTranspose2d(CH, CH, 4, stride=2, padding=1)
        self.norm_out = Normalize(CH)
        self.conv_out = nn.Conv2d(CH, 3, 3, padding=1)

    def forward(self, z):
        h = self.up(self.block(self.conv_in(z)))
        return torch.tanh(self.conv_out(F.silu(self.norm_out(h))))


class VectorQuantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CODES, Z_CH)

    def forward(self, z):
        z = z.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, Z_CH)
        # (z - e)^2 = z^2 + e^2 - 2 e z
        d = torch.sum(flat ** 2, dim=1, keepdim=True) + torch.sum(self.embedding.weight ** 2, dim=1) - 2 * flat @ self.embedding.weight.t()
        indices = torch.argmin(d, dim=1)
        z_q = self.embedding(indices).view(z.shape)
        # beta belongs to the commitment of the encoder
        loss = BETA * torch.mean((z_q.detach() - z) ** 2) + torch.mean((z_q - z.detach()) ** 2)
        z_q = z + (z_q - z).detach()
        used = torch.bincount(indices, minlength=CODES).float() / len(indices)
        perplexity = torch.exp(-torch.sum(used * torch.log(used + 1e-10)))
        return z_q.permute(0, 3, 1, 2).contiguous(), loss, perplexity


class VQModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.quantize = VectorQuantizer()
        self.decoder = Decoder()

    def forward(self, x):
        z_q, codebook_loss, perplexity = self.quantize(self.encoder(x))
        return self.decoder(z_q), codebook_loss, perplexity


class PatchDiscriminator(nn.Module):
    def __init__(self, ndf=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, ndf, 4, 2, 1)
        self.conv2 = nn.Conv2d(ndf, 2 * ndf, 4, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(2 * ndf)
        self.conv3 = nn.Conv2d(2 * ndf, 1, 3, 1, 1)

    def forward(self, x):
        h = F.leaky_relu(self.conv1(x), 0.2)
        h = F.leaky_relu(self.bn(self.conv2(h)), 0.2)
        return self.conv3(h)


def hinge_d_loss(logits_real, logits_fake):
    loss_real = torch.mean(F.relu(1.0 - logits_real))
    loss_fake = torch.mean(F.relu(1.0 + logits_fake))
    return 0.5 * (loss_real + loss_fake)


def init(module, prefix):
    for name, p in module.named_parameters():
        rng = np.random.RandomState(zlib.crc32((prefix + name).encode()) % 2**31)
        if p.ndim > 1:
            v = rng.standard_normal(p.shape) * (0.5 if "embedding" in name else 1.2 / np.sqrt(np.prod(p.shape[1:])))
        else:
            v = rng.uniform(0.8, 1.2, p.shape) if name.endswith("weight") else rng.uniform(-0.1, 0.1, p.shape)
        p.data.copy_(torch.from_numpy(v.astype(np.float32)))


def images(step):
    rng = np.random.RandomState(70 + step)
    yy, xx = np.mgrid[:8, :8] / 8.0
    waves = [np.sin(6 * (a * yy + b * xx) + c) for a, b, c in rng.uniform(-1, 1, (12, 3))]
    x = np.stack(waves).reshape(4, 3, 8, 8) * 0.7 + 0.1 * rng.standard_normal((4, 3, 8, 8))
    return torch.from_numpy(x.astype(np.float32))


def norm(tensors):
    return np.sqrt(sum(float(t.detach().double().pow(2).sum()) for t in tensors))


vq, disc = VQModel(), PatchDiscriminator()
init(vq, "vq.")
init(disc, "disc.")
vq.train(), disc.train()
opt_vq = torch.optim.Adam(vq.parameters(), lr=1e-3, betas=(0.5, 0.9), eps=1e-12)
opt_disc = torch.optim.Adam(disc.parameters(), lr=1e-3, betas=(0.5, 0.9), eps=1e-12)

with tensorprobe.capture([vq, disc], sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
    for step in range(int(os.environ.get("STEPS", 2))):
        x = images(step)
        # generator
        recon, codebook_loss, perplexity = vq(x)
        rec_loss = torch.mean(torch.abs(x - recon))
        for p in disc.parameters():
            p.requires_grad_(False)
        g_loss = -torch.mean(disc(recon))
        for p in disc.parameters():
            p.requires_grad_(True)
        loss = rec_loss + codebook_loss + DISC_WEIGHT * DISC_FACTOR * g_loss
        opt_vq.zero_grad()
        loss.backward()
        opt_vq.step()
        # discriminator
        d_loss = DISC_FACTOR * hinge_d_loss(disc(x), disc(recon.detach()))
        opt_disc.zero_grad()
        d_loss.backward()
        opt_disc.step()
        enc, book, dec = (norm(p.grad for p in part.parameters()) for part in (vq.encoder, vq.quantize, vq.decoder))
        dg = norm(p.grad for p in disc.parameters())
        running = float(disc.bn.running_mean.double().abs().sum() + disc.bn.running_var.double().abs().sum())
        print(f"step {step} loss {loss.item():.8f} enc {enc:.8f} book {book:.8f} dec {dec:.8f} disc {dg:.8f} w {norm(vq.parameters()):.8f} wd {norm(disc.parameters()):.8f} running {running:.6f} perplexity {perplexity.item():.6f}")
        run.step()
