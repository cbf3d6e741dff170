"""CLIP again, functional, every cast written out by hand (our accelerator has no autocast).
Rule: matmuls in low precision, residual stream, norms and softmax in float32."""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tensorprobe.pytorch import PrecisionDebugger

LOW = getattr(torch, os.environ.get("DTYPE", "bfloat16"))
WIDTH, HEADS, PATCH, CONTEXT, VOCAB = 16, 2, 4, 9, 30


def linear(x, w, b=None):
    return F.linear(x.to(LOW), w.to(LOW), None if b is None else b.to(LOW))


def norm(x, p):
    return F.layer_norm(x, (WIDTH,), p["weight"], p["bias"], 1e-5)


def mlp(x, p):
    h = linear(x, p["fc_w"], p["fc_b"])
    h = h * (1.702 * h).sigmoid()
    return linear(h, p["proj_w"], p["proj_b"])


def attention(x, p, bias=None):
    b, n, w = x.shape
    qkv = linear(x, p["qkv"]).view(b, n, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.unbind(0)
    scores = (q @ k.mT) * (w // HEADS) ** -0.5
    if bias is not None:
        scores = scores + bias
    probs = torch.softmax(scores, dim=-1, dtype=torch.float32)
    y = probs.to(LOW) @ v
    return linear(y.permute(0, 2, 1, 3).flatten(2), p["out_w"], p["out_b"])


def block(x, p, bias=None):
    x = x + attention(norm(x, p["ln_1"]), p["attn"], bias)
    return x + mlp(norm(x, p["ln_2"]), p["mlp"])


def encode_image(image, p):
    n, c, s, _ = image.shape
    g = s // PATCH
    patches = image.view(n, c, g, PATCH, g, PATCH).permute(0, 2, 4, 1, 3, 5).reshape(n, g * g, -1)
    x = linear(patches, p["patch"]).float()
    x = torch.cat([p["cls"].expand(n, 1, -1), x], dim=1) + p["pos"]
    x = norm(x, p["ln_pre"])
    for layer in p["blocks"]:
        x = block(x, layer)
    return linear(norm(x[:, 0], p["ln_post"]), p["proj"].t())


def encode_text(text, p):
    x = F.embedding(text, p["table"]) + p["pos"]
    bias = torch.zeros(CONTEXT, CONTEXT).masked_fill(~torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril(), -torch.inf)
    for layer in p["blocks"]:
        x = block(x, layer, bias)
    end = (text == VOCAB - 1).int().argmax(dim=1)
    x = x.gather(1, end[:, None, None].expand(-1, 1, WIDTH)).squeeze(1)
    return linear(norm(x, p["ln"]), p["proj"].t())


def unit(x):
    length = x.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return x / length


def contrastive_loss(image, text, tree):
    a = unit(encode_image(image, tree["image"]).float())
    b = unit(encode_text(text, tree["text"]).float())
    temperature = tree["logit_scale"].exp()
    logits = ((temperature * a).to(LOW) @ b.to(LOW).t()).float()
    image_loss = -logits.log_softmax(dim=1).diagonal().mean()
    text_loss = -logits.log_softmax(dim=0).diagonal().mean()
    return 0.5 * (image_loss + text_loss)


def build_tree(sd):
    def leaf(name):
        return nn.Parameter(sd[name].clone())

    def ln(name):
        return {"weight": leaf(name + ".weight"), "bias": leaf(name + ".bias")}

    def layer(pre):
        return {
            "ln_1": ln(pre + "ln_1"),
            "ln_2": ln(pre + "ln_2"),
            "attn": {"qkv": leaf(pre + "to_qkv.weight"), "out_w": leaf(pre + "out_proj.weight"), "out_b": leaf(pre + "out_proj.bias")},
            "mlp": {"fc_w": leaf(pre + "mlp.0.weight"), "fc_b": leaf(pre + "mlp.0.bias"),
                    "proj_w": leaf(pre + "mlp.2.weight"), "proj_b": leaf(pre + "mlp.2.bias")},
        }

    image = {"patch": nn.Parameter(sd["visual.conv1.weight"].flatten(1).clone()), "cls": leaf("visual.class_embedding"),
             "pos": leaf("visual.positional_embedding"), "ln_pre": ln("visual.ln_pre"), "blocks": [layer("visual.blocks.0.")],
             "ln_post": ln("visual.ln_post"), "proj": leaf("visual.proj")}
    text = {"table": leaf("text.token_embedding.weight"), "pos": leaf("text.positional_embedding"),
            "blocks": [layer(f"text.blocks.{i}.") for i in range(2)], "ln": ln("text.ln_final"), "proj": leaf("text.text_projection")}
    return {"image": image, "text": text, "logit_scale": leaf("logit_scale")}


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    return [x for child in children for x in leaves(child)]


class Wrapper(nn.Module):
    """the debugger wants a module"""

    def __init__(self, tree):
        super().__init__()
        self.tree = tree
        self.flat = nn.ParameterList(leaves(tree))

    def forward(self, image, text):
        return contrastive_loss(image, text, self.tree)


class Momentum:
    """SGD with dampening; as in torch, the first gradient fills the buffer as it is"""

    def __init__(self, params, lr=0.05, momentum=0.9, dampening=0.2):
        self.params, self.lr, self.momentum, self.dampening = params, lr, momentum, dampening
        self.buffers = None

    @torch.no_grad()
    def step(self, grads):
        if self.buffers is None:
            self.buffers = [g.clone() for g in grads]
        else:
            for buffer, g in zip(self.buffers, grads):
                buffer.mul_(self.momentum).add_(g, alpha=1 - self.dampening)
        for p, buffer in zip(self.params, self.buffers):
            p.sub_(self.lr * buffer)


def get_batch(step, n=5):
    rng = np.random.default_rng(8000 + step)
    image = rng.standard_normal((n, 3, 12, 12)).astype(np.float32)
    text = np.zeros((n, CONTEXT), dtype=np.int64)
    for i in range(n):
        length = rng.integers(2, CONTEXT)
        text[i, : length + 1] = [*rng.integers(1, VOCAB - 1, length), VOCAB - 1]
    return torch.from_numpy(image), torch.from_numpy(text)


def main():
    tree = build_tree(torch.load(os.path.join(os.environ["WEIGHTS"], "clip.pt")))
    model = Wrapper(tree)
    params = list(model.flat)
    optimizer = Momentum(params)
    loss_scale, growth_interval = 512.0, 2
    probe = PrecisionDebugger(dump_path=sys.argv[1], level=os.environ.get("LEVEL", "L1"), task=os.environ.get("TASK", "tensor"))
    for step in range(int(os.environ.get("STEPS", "2"))):
        image, text = get_batch(step)
        probe.start(model)
        loss = model(image, text)
        grads = torch.autograd.grad(loss * loss_scale, params)
        grads = [g / loss_scale for g in grads]
        if all(g.isfinite().all() for g in grads):
            optimizer.step(grads)
            loss_scale = loss_scale * 2 if (step + 1) % growth_interval == 0 else loss_scale
        else:
            loss_scale = loss_scale / 2
        probe.stop()
        total = sum(g.double().square().sum() for g in grads).sqrt()
        size = sum(p.detach().double().square().sum() for p in params).sqrt()
        print(f"step {step} loss {loss.item():.8f} grad {total:.8f} params {size:.8f}")
        probe.step()


if __name__ == "__main__":
    main()
