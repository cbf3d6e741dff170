"""v-prediction diffusion in MindSpore. Attention has three Dense layers on tokens instead of a joined 1x1 convolution."""
import math
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.experimental import optim

from tensorprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

TIMESTEPS, CH, TDIM, SIZE, BATCH = 50, 12, 16, 6, 3


class SinusoidalPosEmb(nn.Cell):
    def __init__(self, dim, theta=10000.0):
        super().__init__()
        half_dim = dim // 2
        freqs = np.exp(-math.log(theta) * np.arange(half_dim) / half_dim)
        self.freqs = Tensor(freqs, ms.float32)

    def construct(self, t):
        emb = t.astype(ms.float32)[:, None] * self.freqs[None, :]
        return ops.concat((ops.cos(emb), ops.sin(emb)), axis=-1)


def conv3x3(cin, cout):
    return nn.Conv2d(cin, cout, 3, pad_mode="pad", padding=1, has_bias=True)


class ResnetBlock(nn.Cell):
    def __init__(self, cin, cout, tdim, groups=3):
        super().__init__()
        self.block1 = nn.SequentialCell(nn.GroupNorm(groups, cin), nn.SiLU(), conv3x3(cin, cout))
        self.mlp = nn.SequentialCell(nn.SiLU(), nn.Dense(tdim, cout * 2))
        self.norm2 = nn.GroupNorm(groups, cout)
        self.act = nn.SiLU()
        self.conv2 = conv3x3(cout, cout)
        self.res_conv = nn.Conv2d(cin, cout, 1, has_bias=True) if cin != cout else nn.Identity()

    def construct(self, x, time_emb):
        emb = self.mlp(time_emb).expand_dims(-1).expand_dims(-1)
        scale, shift = ops.chunk(emb, 2, axis=1)
        h = self.block1(x)
        h = self.norm2(h)
        h = h * (scale + 1) + shift
        return self.conv2(self.act(h)) + self.res_conv(x)


class Attention(nn.Cell):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.norm = nn.GroupNorm(3, dim)
        self.to_q = nn.Dense(dim, dim)
        self.to_k = nn.Dense(dim, dim)
        self.to_v = nn.Dense(dim, dim)
        self.to_out = nn.Dense(dim, dim)
        self.scale = self.head_dim**-0.5

    def split(self, x, b, n):
        return x.reshape(b, n, self.heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x):
        b, c, h, w = x.shape
        n = h * w
        tokens = self.norm(x).reshape(b, c, n).swapaxes(1, 2)
        q, k, v = (self.split(f(tokens), b, n) for f in (self.to_q, self.to_k, self.to_v))
        sim = ops.matmul(q, k.swapaxes(-1, -2)) * self.scale
        attn = ops.softmax(sim, axis=-1)
        out = ops.matmul(attn, v).transpose(0, 2, 1, 3).reshape(b, n, c)
        out = self.to_out(out).swapaxes(1, 2).reshape(b, c, h, w)
        return out + x


class Unet(nn.Cell):
    def __init__(self):
        super().__init__()
        self.time_mlp = nn.SequentialCell(SinusoidalPosEmb(TDIM), nn.Dense(TDIM, 2 * TDIM), nn.SiLU(), nn.Dense(2 * TDIM, TDIM))
        self.init_conv = conv3x3(2, CH)
        self.down = ResnetBlock(CH, CH, TDIM)
        self.pool = nn.AvgPool2d(2, stride=2)
        self.mid = ResnetBlock(CH, CH, TDIM)
        self.mid_attn = Attention(CH)
        self.up = ResnetBlock(2 * CH, CH, TDIM)
        self.final_norm = nn.GroupNorm(3, CH)
        self.final_conv = conv3x3(CH, 1)

    def construct(self, x, time, x_self_cond):
        t = self.time_mlp(time)
        x = self.init_conv(ops.cat((x, x_self_cond), axis=1))
        d = self.down(x, t)
        m = self.mid_attn(self.mid(self.pool(d), t))
        b, c, h, w = m.shape
        m = ops.broadcast_to(m.reshape(b, c, h, 1, w, 1), (b, c, h, 2, w, 2)).reshape(b, c, 2 * h, 2 * w)
        u = self.up(ops.cat((m, d), axis=1), t)
        return self.final_conv(ops.silu(self.final_norm(u)))


class DiffusionLoss(nn.Cell):
    def __init__(self, unet):
        super().__init__(auto_prefix=False)
        self.unet = unet
        steps = np.linspace(0, TIMESTEPS, TIMESTEPS + 1) / TIMESTEPS
        bar = np.cos((steps + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.minimum(1 - bar[1:] / bar[:-1], 0.999)
        alphas_cumprod = np.cumprod(1 - betas)
        snr = alphas_cumprod / (1 - alphas_cumprod)
        self.sqrt_alphas_cumprod = Tensor(np.sqrt(alphas_cumprod), ms.float32)
        self.sqrt_one_minus = Tensor(np.sqrt(1 - alphas_cumprod), ms.float32)
        self.weight = Tensor(np.minimum(snr, 5.0) / (snr + 1), ms.float32)

    def extract(self, a, t):
        return ops.gather(a, t, 0).reshape(-1, 1, 1, 1)

    def construct(self, x0, t, noise):
        a, s = self.extract(self.sqrt_alphas_cumprod, t), self.extract(self.sqrt_one_minus, t)
        xt = a * x0 + s * noise
        x_self = a * xt - s * self.unet(xt, t, ops.zeros_like(xt))
        x_self = ops.stop_gradient(ops.clamp(x_self, -1.0, 1.0))
        v = self.unet(xt, t, x_self)
        loss = ops.mse_loss(v, a * noise - s * x0, reduction="none")
        loss = loss.reshape(loss.shape[0], -1).mean(axis=1) * ops.gather(self.weight, t, 0)
        return loss.mean()


class EMA:
    def __init__(self, params, decay):
        self.params = ParameterTuple(params)
        self.shadow = self.params.clone(prefix="ema", init="same")
        self.decay = Tensor(decay, ms.float32)

    def update(self):
        for s, p in zip(self.shadow, self.params):
            ops.assign(s, self.decay * s + (1 - self.decay) * p)

    def swap_into(self, net):
        for p, s in zip(net.get_parameters(), self.shadow):
            p.set_data(Tensor(s.asnumpy()))


def load_torch(net, w):
    table = {"time_mlp.1.": "time_mlp.0.", "time_mlp.3.": "time_mlp.2.", "init_conv.": "stem.", "block1.0.": "norm1.", "block1.2.": "conv1.", "mlp.1.": "time.",
             "res_conv.": "skip.", "final_norm.": "out_norm.", "final_conv.": "out.", "mid_attn.": "attn.", "to_out.": "proj."}
    q, k, v = np.split(w["attn.qkv.weight"][..., 0], 3)
    bq, bk, bv = np.split(w["attn.qkv.bias"], 3)
    parts = {"to_q.weight": q, "to_k.weight": k, "to_v.weight": v, "to_q.bias": bq, "to_k.bias": bk, "to_v.bias": bv}
    for name, p in net.parameters_and_names():
        short = name.split("mid_attn.")[-1]
        if short in parts:
            value = parts[short]
        else:
            for a, b in table.items():
                name = name.replace(a, b) if not name.startswith("time_mlp") or a.startswith("time_mlp") else name
            value = w[name.replace("gamma", "weight").replace("beta", "bias")]
        p.set_data(Tensor(np.ascontiguousarray(value).reshape(p.shape)))


def batch(step):
    rng = np.random.RandomState(60 + step)
    x0 = np.tanh(rng.standard_normal((BATCH, 1, SIZE, SIZE))).astype(np.float32)
    return x0, rng.randint(2, TIMESTEPS, BATCH).astype(np.int32), rng.standard_normal(x0.shape).astype(np.float32)


def norm(tensors):
    return math.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in tensors))


def main():
    net, ema_net = Unet(), Unet()
    load_torch(net, np.load(os.path.join(os.environ["WEIGHTS"], "ddpm.npz")))
    net.set_train()
    loss_fn = DiffusionLoss(net)
    opt = optim.AdamW(net.trainable_params(), lr=2e-3, weight_decay=0.01)
    ema = EMA(net.trainable_params(), 0.9)
    grad_fn = ms.value_and_grad(loss_fn, None, opt.parameters)
    dbg = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", 2))):
        x0, t, noise = (Tensor(a) for a in batch(step))
        dbg.start(loss_fn)
        loss, grads = grad_fn(x0, t, noise)
        opt(grads)
        ema.update()
        ema.swap_into(ema_net)
        sample = ema_net(noise, t, ops.zeros_like(noise))
        dbg.stop()
        dbg.step()
        print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {norm(grads):.8f} "
              f"wnorm {norm(net.trainable_params()):.8f} ema {norm(ema.shadow):.8f} sample {norm([sample]):.7f}")


if __name__ == "__main__":
    main()
