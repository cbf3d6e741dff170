"""MindSpore version of the VQGAN: two GradOperations, the losses as cells around the networks."""
import os
import sys
import zlib

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import numpy as np
from mindspore import ParameterTuple, Tensor

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


def conv3x3(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 3, stride, pad_mode="pad", padding=1, has_bias=True)


def silu(x):
    return x * ops.sigmoid(x)


class ResBlock(nn.Cell):
    def __init__(self, channels):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels, eps=1e-6), nn.GroupNorm(4, channels, eps=1e-6)
        self.conv1, self.conv2 = conv3x3(channels, channels), conv3x3(channels, channels)

    def construct(self, x):
        h = self.conv1(silu(self.norm1(x)))
        return x + self.conv2(silu(self.norm2(h)))


class Encoder(nn.Cell):
    def __init__(self, ch, z_ch):
        super().__init__()
        self.conv_in = conv3x3(3, ch)
        self.down = nn.Conv2d(ch, ch, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.block = ResBlock(ch)
        self.norm_out = nn.GroupNorm(4, ch, eps=1e-6)
        self.conv_out = nn.Conv2d(ch, z_ch, 1, has_bias=True)

    def construct(self, x):
        h = self.block(self.down(self.conv_in(x)))
        return self.conv_out(silu(self.norm_out(h)))


class Decoder(nn.Cell):
    def __init__(self, ch, z_ch):
        super().__init__()
        self.conv_in = conv3x3(z_ch, ch)
        self.block = ResBlock(ch)
        self.up = nn.Conv2dTranspose(ch, ch, 4, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.norm_out = nn.GroupNorm(4, ch, eps=1e-6)
        self.conv_out = conv3x3(ch, 3)
        self.tanh = nn.Tanh()

    def construct(self, z):
        h = self.up(self.block(self.conv_in(z)))
        return self.tanh(self.conv_out(silu(self.norm_out(h))))


class Quantizer(nn.Cell):
    """Nearest code by a one-hot product."""

    def __init__(self, n_codes, dim, beta):
        super().__init__()
        self.codebook = nn.Embedding(n_codes, dim)
        self.n_codes, self.beta = n_codes, beta

    def construct(self, z):
        b, c, h, w = z.shape
        tokens = ops.transpose(z, (0, 2, 3, 1)).reshape(-1, c)
        table = self.codebook.embedding_table
        distance = (tokens ** 2).sum(axis=1, keepdims=True) + (table ** 2).sum(axis=1) - 2 * ops.matmul(tokens, table.T)
        nearest = ops.argmin(distance, axis=1)
        one_hot = ops.one_hot(nearest, self.n_codes, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))
        codes = ops.matmul(one_hot, table)
        commitment = ops.mse_loss(tokens, ops.stop_gradient(codes))
        codebook = ops.mse_loss(codes, ops.stop_gradient(tokens))
        loss = self.beta * commitment + codebook
        codes = tokens + ops.stop_gradient(codes - tokens)
        used = one_hot.mean(axis=0)
        perplexity = ops.exp(-(used * ops.log(used + 1e-10)).sum())
        return ops.transpose(codes.reshape(b, h, w, c), (0, 3, 1, 2)), loss, perplexity


class VQModel(nn.Cell):
    def __init__(self, ch=12, z_ch=8, n_codes=24, beta=0.25):
        super().__init__()
        self.encoder, self.decoder = Encoder(ch, z_ch), Decoder(ch, z_ch)
        self.quantizer = Quantizer(n_codes, z_ch, beta)

    def construct(self, x):
        codes, loss, perplexity = self.quantizer(self.encoder(x))
        return self.decoder(codes), loss, perplexity


class Discriminator(nn.Cell):
    def __init__(self, ndf=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, ndf, 4, 2, pad_mode="pad", padding=1, has_bias=True)
        self.conv2 = nn.Conv2d(ndf, 2 * ndf, 4, 2, pad_mode="pad", padding=1)
        self.bn = nn.BatchNorm2d(2 * ndf, eps=1e-5, momentum=0.9)
        self.conv3 = nn.Conv2d(2 * ndf, 1, 3, has_bias=True)
        self.act = nn.LeakyReLU(alpha=0.2)

    def construct(self, x):
        return self.conv3(self.act(self.bn(self.conv2(self.act(self.conv1(x))))))


class GeneratorLoss(nn.Cell):
    def __init__(self, vq, disc, disc_weight=0.8):
        super().__init__(auto_prefix=False)
        self.vq, self.disc, self.disc_weight = vq, disc, disc_weight
        self.l1 = nn.L1Loss()

    def construct(self, x):
        recon, codebook_loss, perplexity = self.vq(x)
        g_loss = -self.disc(recon).mean()
        loss = self.l1(recon, x) + codebook_loss + self.disc_weight * g_loss
        return loss, recon, perplexity


class DiscriminatorLoss(nn.Cell):
    """Hinge."""

    def __init__(self, disc):
        super().__init__(auto_prefix=False)
        self.disc = disc

    def construct(self, real, fake):
        real_loss = ops.relu(1 - self.disc(real)).mean()
        fake_loss = ops.relu(1 + self.disc(fake)).mean()
        return (real_loss + fake_loss) / 2


PAIRS = [("norm1.gamma", "norm1.weight"), ("norm1.beta", "norm1.bias"), ("norm2.gamma", "norm2.weight"), ("norm2.beta", "norm2.bias"), ("norm_out.gamma", "norm_out.weight"),
         ("norm_out.beta", "norm_out.bias"), ("bn.gamma", "bn.weight"), ("bn.beta", "bn.bias"), ("quantizer.codebook.embedding_table", "quantize.embedding.weight")]


def init(net, prefix):
    for name, p in net.parameters_and_names():
        if "moving" in name:
            continue
        for ours, theirs in PAIRS:
            name = name.replace(ours, theirs)
        rng = np.random.RandomState(zlib.crc32((prefix + name).encode()) % 2**31)
        if len(p.shape) > 1:
            v = rng.standard_normal(p.shape) * (0.5 if "embedding" in name else 1.2 / np.sqrt(np.prod(p.shape[1:])))
        else:
            v = rng.uniform(0.8, 1.2, p.shape) if name.endswith("weight") else rng.uniform(-0.1, 0.1, p.shape)
        p.set_data(Tensor(v.astype(np.float32)))


def images(step):
    rng = np.random.RandomState(70 + step)
    yy, xx = np.mgrid[:8, :8] / 8.0
    waves = [np.sin(6 * (a * yy + b * xx) + c) for a, b, c in rng.uniform(-1, 1, (12, 3))]
    x = np.stack(waves).reshape(4, 3, 8, 8) * 0.7 + 0.1 * rng.standard_normal((4, 3, 8, 8))
    return Tensor(x.astype(np.float32))


def norm(tensors):
    return np.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in tensors))


vq, disc = VQModel(), Discriminator()
init(vq, "vq.")
init(disc, "disc.")
vq.set_train()
disc.set_train()
vq_params, disc_params = ParameterTuple(vq.trainable_params()), ParameterTuple(disc.trainable_params())
opt_vq = nn.Adam(vq_params, learning_rate=1e-3, beta1=0.5, beta2=0.9, eps=1e-12)
opt_disc = nn.Adam(disc_params, learning_rate=1e-3, beta1=0.5, beta2=0.9, eps=1e-12)
g_net, d_net = GeneratorLoss(vq, disc), DiscriminatorLoss(disc)
g_grad = ms.value_and_grad(g_net, None, vq_params, has_aux=True)
d_grad = ops.GradOperation(get_by_list=True)(d_net, disc_params)

with tensorprobe.capture([vq, disc], sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
    for step in range(int(os.environ.get("STEPS", 2))):
        x = images(step)
        (loss, recon, perplexity), grads = g_grad(x)
        opt_vq(grads)
        d_grads = d_grad(x, recon)
        opt_disc(d_grads)
        part = lambda name: norm(g for g, p in zip(grads, vq_params) if p.name.startswith(name))
        running = sum(np.abs(p.asnumpy().astype(np.float64)).sum() for p in (disc.bn.moving_mean, disc.bn.moving_variance))
        print(f"step {step} loss {float(loss.asnumpy()):.8f} enc {part('encoder'):.8f} book {part('quantizer'):.8f} dec {part('decoder'):.8f} disc {norm(d_grads):.8f} w {norm(vq_params):.8f} wd {norm(disc_params):.8f} running {running:.6f} perplexity {float(perplexity.asnumpy()):.6f}")
        run.step()
