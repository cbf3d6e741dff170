"""Phones to spectrograms in MindSpore: cells from formulas, the query and the location join one projection, masked losses."""
import os
import sys
import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import tensorprobe

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

PHONES, ENC, MEL, ATT, FILTERS, RNN, PRE, BATCH, TEXT, FRAMES = 13, 8, 5, 7, 3, 9, 6, 3, 6, 8


def matrix(name, *shape):
    return Parameter(Tensor(np.zeros(shape), ms.float32), name=name)


def batch_norm(x, gamma, beta):
    """Of (batch, time, channel), by the statistics of the batch."""
    centred = x - x.mean(axis=(0, 1), keep_dims=True)
    variance = ops.square(centred).mean(axis=(0, 1), keep_dims=True)
    return centred * ops.rsqrt(variance + 1e-5) * gamma + beta


def convolve(x, weight, bias=None):
    """Along the time of (batch, time, channel): one product for each place of the kernel."""
    width = weight.shape[2]
    padded = ops.pad(x, (0, 0, width // 2, width // 2))
    out = sum(ops.matmul(padded[:, i : i + x.shape[1]], weight[:, :, i].T) for i in range(width))
    return out if bias is None else out + bias


class GRU(nn.Cell):
    def __init__(self, size_in, size):
        super().__init__()
        self.w, self.b = matrix("w", size_in, 3 * size), matrix("b", 3 * size)
        self.u, self.c = matrix("u", size, 3 * size), matrix("c", 3 * size)

    def construct(self, x, h):
        xr, xz, xn = ops.chunk(ops.matmul(x, self.w) + self.b, 3, axis=-1)
        hr, hz, hn = ops.chunk(ops.matmul(h, self.u) + self.c, 3, axis=-1)
        r, z = ops.sigmoid(xr + hr), ops.sigmoid(xz + hz)
        n = ops.tanh(xn + r * hn)
        return n + z * (h - n)


class LSTM(nn.Cell):
    def __init__(self, size_in, size):
        super().__init__()
        self.w, self.b = matrix("w", size_in + size, 4 * size), matrix("b", 2, 4 * size)

    def construct(self, x, h, c):
        gates = ops.matmul(ops.concat((x, h), axis=-1), self.w) + self.b.sum(axis=0)
        i, f, g, o = ops.chunk(gates, 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        return ops.sigmoid(o) * ops.tanh(c), c


class TextEncoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = matrix("table", PHONES, ENC)
        self.kernel, self.kernel_bias = matrix("kernel", ENC, ENC, 3), matrix("kernel_bias", ENC)
        self.gamma, self.beta = matrix("gamma", ENC), matrix("beta", ENC)
        self.ahead, self.back = GRU(ENC, ENC // 2), GRU(ENC, ENC // 2)

    def run(self, cell, x, alive, order):
        h, states = ops.zeros((x.shape[0], ENC // 2), ms.float32), {}
        for t in order:
            keep = alive[:, t : t + 1]
            h = ops.where(keep, cell(x[:, t], h), h)
            states[t] = ops.where(keep, h, ops.zeros_like(h))
        return ops.stack([states[t] for t in range(x.shape[1])], axis=1)

    def construct(self, text, alive):
        x = self.table[text] * alive.expand_dims(-1)
        x = ops.relu(batch_norm(convolve(x, self.kernel, self.kernel_bias), self.gamma, self.beta))
        steps = range(x.shape[1])
        return ops.concat((self.run(self.ahead, x, alive, steps), self.run(self.back, x, alive, reversed(steps))), axis=-1)


class FrameDecoder(nn.Cell):
    def __init__(self):
        super().__init__()
        self.pre1, self.pre2 = matrix("pre1", MEL, PRE), matrix("pre2", PRE, PRE)
        self.gru, self.lstm = GRU(PRE + ENC, RNN), LSTM(RNN + ENC, RNN)
        self.key = matrix("key", ENC, ATT)
        self.query = matrix("query", RNN + FILTERS, ATT)
        self.place = matrix("place", FILTERS, 2, 3)
        self.score, self.score_bias = matrix("score", ATT), matrix("score_bias", 1)
        self.out, self.out_bias = matrix("out", RNN + ENC, MEL + 1), matrix("out_bias", MEL + 1)

    def construct(self, memory, alive, mels):
        b, n = memory.shape[:2]
        h = s = c = ops.zeros((b, RNN), ms.float32)
        now = summed = ops.zeros((b, n), ms.float32)
        context = ops.zeros((b, ENC), ms.float32)
        keys = ops.matmul(memory, self.key)
        outs = []
        for t in range(mels.shape[1]):
            before = ops.zeros((b, MEL), ms.float32) if t == 0 else mels[:, t - 1]
            x = ops.relu(ops.matmul(ops.relu(ops.matmul(before, self.pre1)), self.pre2))
            h = self.gru(ops.concat((x, context), axis=-1), h)
            places = convolve(ops.stack((now, summed), axis=-1), self.place)
            asked = ops.concat((ops.broadcast_to(h.expand_dims(1), (b, n, RNN)), places), axis=-1)
            energy = (ops.tanh(ops.matmul(asked, self.query) + keys) * self.score).sum(axis=-1) + self.score_bias
            energy = ops.where(alive, energy, ops.full_like(energy, -1e9))
            now = ops.softmax(energy, axis=-1)
            summed = summed + now
            context = (now.expand_dims(-1) * memory).sum(axis=1)
            s, c = self.lstm(ops.concat((h, context), axis=-1), s, c)
            outs.append(ops.concat((s, context), axis=-1))
        out = ops.matmul(ops.stack(outs, axis=1), self.out) + self.out_bias
        return out[..., :MEL], out[..., MEL]


class Synthesizer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = TextEncoder(), FrameDecoder()
        self.k1, self.b1, self.gamma, self.beta = matrix("k1", 6, MEL, 5), matrix("b1", 6), matrix("gamma", 6), matrix("beta", 6)
        self.k2, self.b2 = matrix("k2", MEL, 6, 5), matrix("b2", MEL)

    def construct(self, text, alive, mels, seen, wanted):
        coarse, stops = self.decoder(self.encoder(text, alive), alive, mels)
        hidden = ops.tanh(batch_norm(convolve(coarse, self.k1, self.b1), self.gamma, self.beta))
        fine = coarse + convolve(hidden, self.k2, self.b2)
        count = seen.sum() * MEL
        errors = ops.square(coarse - mels) + ops.square(fine - mels)
        mel_loss = (errors * seen.expand_dims(-1)).sum() / count
        stop_loss = (1 - wanted) * stops + (1 + 2 * wanted) * ops.softplus(-stops)
        return mel_loss + stop_loss.mean()


def initial(name, *shape):
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


def gru_weights(new, old, size_in, size, suffix=""):
    return {
        f"{new}.w": initial(f"{old}.weight_ih{suffix}", 3 * size, size_in).T, f"{new}.b": initial(f"{old}.bias_ih{suffix}", 3 * size),
        f"{new}.u": initial(f"{old}.weight_hh{suffix}", 3 * size, size).T, f"{new}.c": initial(f"{old}.bias_hh{suffix}", 3 * size),
    }


def load(net):
    e, d, a = "encoder", "decoder", "decoder.attention"
    w = {"encoder.table": initial(e + ".embedding.weight", PHONES, ENC), "encoder.kernel": initial(e + ".conv.weight", ENC, ENC, 3)}
    w |= {"encoder.kernel_bias": initial(e + ".conv.bias", ENC), "encoder.gamma": initial(e + ".bn.weight", ENC), "encoder.beta": initial(e + ".bn.bias", ENC)}
    w |= gru_weights("encoder.ahead", "encoder.gru", ENC, ENC // 2, "_l0")
    w |= gru_weights("encoder.back", "encoder.gru", ENC, ENC // 2, "_l0_reverse")
    w |= gru_weights("decoder.gru", "decoder.attention_rnn", PRE + ENC, RNN)
    w["decoder.pre1"], w["decoder.pre2"] = initial(d + ".prenet.0.weight", PRE, MEL).T, initial(d + ".prenet.2.weight", PRE, PRE).T
    r = d + ".decoder_rnn."
    w["decoder.lstm.w"] = np.concatenate([initial(r + "weight_ih", 4 * RNN, RNN + ENC), initial(r + "weight_hh", 4 * RNN, RNN)], 1).T
    w["decoder.lstm.b"] = np.stack([initial(r + "bias_ih", 4 * RNN), initial(r + "bias_hh", 4 * RNN)])
    w["decoder.key"], w["decoder.place"] = initial(a + ".memory.weight", ATT, ENC).T, initial(a + ".location_conv.weight", FILTERS, 2, 3)
    w["decoder.query"] = np.concatenate([initial(a + ".query.weight", ATT, RNN), initial(a + ".location.weight", ATT, FILTERS)], 1).T
    w["decoder.score"], w["decoder.score_bias"] = initial(a + ".v.weight", 1, ATT)[0], initial(a + ".v.bias", 1)
    w["decoder.out"] = np.concatenate([initial(d + ".frame.weight", MEL, RNN + ENC), initial(d + ".stop.weight", 1, RNN + ENC)]).T
    w["decoder.out_bias"] = np.concatenate([initial(d + ".frame.bias", MEL), initial(d + ".stop.bias", 1)])
    w["k1"], w["b1"], w["gamma"], w["beta"] = initial("postnet.0.weight", 6, MEL, 5), initial("postnet.0.bias", 6), initial("postnet.1.weight", 6), initial("postnet.1.bias", 6)
    w["k2"], w["b2"] = initial("postnet.3.weight", MEL, 6, 5), initial("postnet.3.bias", MEL)
    for name, p in net.parameters_and_names():
        p.set_data(Tensor(np.ascontiguousarray(w[name])))


def make_batch(step):
    rng = np.random.RandomState(40 + step)
    text_lengths, lengths = np.array([6, 4, 5]), np.array([7, 8, 5])
    text = rng.randint(1, PHONES, (BATCH, TEXT)) * (np.arange(TEXT)[None] < text_lengths[:, None])
    mels = rng.standard_normal((BATCH, FRAMES, MEL)) * (np.arange(FRAMES)[None] < lengths[:, None])[..., None]
    alive = np.arange(TEXT)[None] < text_lengths[:, None]
    seen = np.arange(FRAMES)[None] < lengths[:, None]
    wanted = np.arange(FRAMES)[None] >= lengths[:, None] - 1
    return text.astype(np.int32), alive, mels.astype(np.float32), seen.astype(np.float32), wanted.astype(np.float32)


def main():
    net = Synthesizer()
    load(net)
    net.set_train()
    params = net.trainable_params()
    groups = [{"params": params, "weight_decay": 1e-3}]
    optimizer = nn.Momentum(groups, learning_rate=0.05, momentum=0.9)
    grad_fn = ms.value_and_grad(net, None, params)
    with tensorprobe.capture(net, sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor")) as run:
        for step in range(int(os.environ.get("STEPS", 1))):
            loss, grads = grad_fn(*(Tensor(a) for a in make_batch(step)))
            optimizer(ops.clip_by_global_norm(grads, 1.0))
            run.step()
            print(f"step {step} loss {float(loss.asnumpy()):.8f} w {sum((p.asnumpy().astype(np.float64) ** 2).sum() for p in params):.8f}")


if __name__ == "__main__":
    main()
