"""ViT training, ported to MindSpore (PyNative). Weights come from the checkpoint of the torch script."""
import os
import sys

import mindspore as ms
import numpy as np
import torch  # only to read the checkpoint
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

from tensorprobe.mindspore import PrecisionDebugger

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

cfg = dict(image_size=16, patch_size=4, dim=24, heads=3, depth=2, num_classes=7)
LR, MIN_LR, WEIGHT_DECAY, LABEL_SMOOTHING = 2e-3, 1e-5, 0.05, 0.1


class DropPath(nn.Cell):
    """Stochastic depth."""

    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.keep_prob = 1.0 - drop_prob
        self.dropout = nn.Dropout(p=drop_prob)

    def construct(self, x):
        if self.keep_prob == 1.0 or not self.training:
            return x
        mask = self.dropout(ops.ones((x.shape[0], 1, 1), x.dtype))
        return x * mask


class PatchEmbedding(nn.Cell):
    def __init__(self, patch_size, dim):
        super().__init__()
        self.conv = nn.Conv2d(3, dim, patch_size, stride=patch_size, pad_mode="valid", has_bias=True)

    def construct(self, x):
        x = self.conv(x)
        b, c, h, w = x.shape
        return ops.transpose(ops.reshape(x, (b, c, h * w)), (0, 2, 1))


class Attention(nn.Cell):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = Tensor(self.head_dim ** -0.5, ms.float32)
        self.q = nn.Dense(dim, dim)
        self.k = nn.Dense(dim, dim, has_bias=False)
        self.v = nn.Dense(dim, dim)
        self.out = nn.Dense(dim, dim)
        self.softmax = nn.Softmax(axis=-1)
        self.q_matmul_k = ops.BatchMatMul(transpose_b=True)
        self.attn_matmul_v = ops.BatchMatMul()

    def split_heads(self, x):
        b, n, _ = x.shape
        return x.reshape(b, n, self.num_heads, self.head_dim).transpose(0, 2, 1, 3)

    def construct(self, x):
        b, n, c = x.shape
        q, k, v = self.split_heads(self.q(x)), self.split_heads(self.k(x)), self.split_heads(self.v(x))
        scores = self.q_matmul_k(q, k) * self.scale
        context = self.attn_matmul_v(self.softmax(scores), v)
        context = context.transpose(0, 2, 1, 3).reshape(b, n, c)
        return self.out(context)


class FeedForward(nn.Cell):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.net = nn.SequentialCell(
            nn.Dense(dim, hidden_dim),
            nn.GELU(approximate=False),
            nn.Dense(hidden_dim, dim),
        )

    def construct(self, x):
        return self.net(x)


class Layer(nn.Cell):
    def __init__(self, dim, num_heads, drop_path=0.0):
        super().__init__()
        self.ln_1 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.attention = Attention(dim, num_heads)
        self.ln_2 = nn.LayerNorm((dim,), epsilon=1e-6)
        self.mlp = FeedForward(dim, dim * 2)
        self.scale_1 = Parameter(ops.ones((dim,)), name="scale_1")
        self.scale_2 = Parameter(ops.ones((dim,)), name="scale_2")
        self.drop_path = DropPath(drop_path)

    def construct(self, x):
        x = x + self.drop_path(self.attention(self.ln_1(x)) * self.scale_1)
        return x + self.drop_path(self.mlp(self.ln_2(x)) * self.scale_2)


class ViT(nn.Cell):
    def __init__(self, image_size, patch_size, dim, heads, depth, num_classes):
        super().__init__()
        self.embed = PatchEmbedding(patch_size, dim)
        self.cls_token = Parameter(ops.zeros((1, 1, dim)), name="cls_token")
        self.pos_embed = Parameter(ops.zeros((1, (image_size // patch_size) ** 2 + 1, dim)), name="pos_embed")
        self.layers = nn.SequentialCell([Layer(dim, heads) for _ in range(depth)])
        self.ln = nn.LayerNorm((dim,), epsilon=1e-6)
        self.classifier = nn.Dense(dim, num_classes)

    def construct(self, image):
        x = self.embed(image)
        cls = ops.tile(self.cls_token, (x.shape[0], 1, 1))
        x = ops.concat((cls, x), axis=1) + self.pos_embed
        x = self.ln(self.layers(x))
        return self.classifier(x[:, 0])


class MixupLoss(nn.Cell):
    """Cross entropy of soft targets; the smoothing is in the one-hot values."""

    def __init__(self, num_classes, smoothing):
        super().__init__()
        off_value = smoothing / num_classes
        self.num_classes = num_classes
        self.on_value = Tensor(1.0 - smoothing + off_value, ms.float32)
        self.off_value = Tensor(off_value, ms.float32)
        self.log_softmax = nn.LogSoftmax(axis=-1)

    def construct(self, logits, label, lam):
        y = ops.one_hot(label, self.num_classes, self.on_value, self.off_value)
        y = lam * y + (1 - lam) * ops.flip(y, (0,))
        return -(y * self.log_softmax(logits)).sum(axis=-1).mean()


def load_torch_checkpoint(net, path):
    sd = {k: v.numpy() for k, v in torch.load(path).items()}
    new = {"cls_token": sd["cls_token"], "pos_embed": sd["pos_embed"],
           "embed.conv.weight": sd["patch_embed.proj.weight"], "embed.conv.bias": sd["patch_embed.proj.bias"],
           "ln.gamma": sd["norm.weight"], "ln.beta": sd["norm.bias"],
           "classifier.weight": sd["head.weight"], "classifier.bias": sd["head.bias"]}
    for i in range(cfg["depth"]):
        old, to = f"blocks.{i}.", f"layers.{i}."
        wq, wk, wv = np.split(sd[old + "attn.qkv.weight"], 3)
        new.update({to + "attention.q.weight": wq, to + "attention.k.weight": wk, to + "attention.v.weight": wv,
                    to + "attention.q.bias": sd[old + "attn.q_bias"], to + "attention.v.bias": sd[old + "attn.v_bias"],
                    to + "attention.out.weight": sd[old + "attn.proj.weight"], to + "attention.out.bias": sd[old + "attn.proj.bias"],
                    to + "mlp.net.0.weight": sd[old + "mlp.fc1.weight"], to + "mlp.net.0.bias": sd[old + "mlp.fc1.bias"],
                    to + "mlp.net.2.weight": sd[old + "mlp.fc2.weight"], to + "mlp.net.2.bias": sd[old + "mlp.fc2.bias"]})
        for j in (1, 2):
            new.update({f"{to}ln_{j}.gamma": sd[f"{old}norm{j}.weight"], f"{to}ln_{j}.beta": sd[f"{old}norm{j}.bias"],
                        f"{to}scale_{j}": sd[f"{old}gamma_{j}"]})
    missing, unexpected = ms.load_param_into_net(net, {k: Parameter(Tensor(v), name=k) for k, v in new.items()})
    assert not missing and not unexpected, (missing, unexpected)


NO_DECAY = (".bias", ".beta", ".gamma", "scale_1", "scale_2", "cls_token", "pos_embed")


def group_params(params, weight_decay):
    def is_plain(p):
        return p.name.endswith(NO_DECAY)

    return [
        {"params": [p for p in params if not is_plain(p)], "weight_decay": weight_decay},
        {"params": [p for p in params if is_plain(p)], "weight_decay": 0.0},
    ]


def get_batch(step):
    rng = np.random.RandomState(7 + step)
    image = rng.randn(6, 3, cfg["image_size"], cfg["image_size"]).astype(np.float32)
    label = rng.randint(0, cfg["num_classes"], 6)
    image += 0.3 * label[:, None, None, None].astype(np.float32) / cfg["num_classes"]
    return Tensor(image), Tensor(label, ms.int32), float(rng.beta(0.8, 0.8))


net = ViT(**cfg)
load_torch_checkpoint(net, os.path.join(os.environ["WEIGHTS"], "vit.pth"))
net.set_train()
loss_fn = MixupLoss(cfg["num_classes"], LABEL_SMOOTHING)
optimizer = optim.AdamW(group_params(net.trainable_params(), WEIGHT_DECAY), lr=LR)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3, eta_min=MIN_LR)


def forward_fn(image, label, lam):
    image = lam * image + (1 - lam) * ops.flip(image, (0,))
    return loss_fn(net(image), label, lam)


grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params())
order = [p.name for p in optimizer.parameters]
debugger = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))

for step in range(int(os.environ.get("STEPS", 3))):
    image, label, lam = get_batch(step)
    debugger.start(net)
    loss, grads = grad_fn(image, label, lam)
    by_name = {p.name: g for p, g in zip(net.trainable_params(), grads)}
    optimizer([by_name[name] for name in order])
    debugger.stop()
    debugger.step()
    scheduler.step()
    total = lambda ts: np.sqrt(sum((t.asnumpy().astype(np.float64) ** 2).sum() for t in ts))
    norms = total(p for p in net.trainable_params() if "ln" in p.name)
    print(f"step {step} loss {float(loss.asnumpy()):.8f} gnorm {total(grads):.8f} wnorm {total(net.trainable_params()):.8f} norms {norms:.8f}")
