"""Pictures and captions in one space: a pool of attention, a queue of captions; the loss by hand after the refactor."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from held_out.fault import Fault
from held_out.weight import Weights

SIDE, PATCH, WIDTH, HEADS, HIDDEN, WORDS, TIME, SPACE, BATCH = 12, 4, 16, 2, 24, 20, 7, 16, 5
COUNT, SIZE, EPSILON, MOST = (SIDE // PATCH) ** 2, WIDTH // HEADS, 1e-5, 100.0


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)  # @gelu


class AttentionPool2d(nn.Module):
    """The mean asks, and all places answer."""

    def __init__(self) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.zeros(COUNT + 1, WIDTH))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.c_proj = nn.Linear(WIDTH, SPACE)

    def forward(self, x):
        x = x.flatten(start_dim=2).permute(2, 0, 1)
        x = torch.cat([x.mean(dim=0, keepdim=True), x], dim=0)  # @mean
        x = x + self.positional_embedding[:, None, :]  # @placed
        x, _ = F.multi_head_attention_forward(  # @asked @scores @soft @mixed @out
            query=x[:1],
            key=x,
            value=x,
            embed_dim_to_check=WIDTH,
            num_heads=HEADS,
            in_proj_weight=None,
            in_proj_bias=torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.c_proj.weight,
            out_proj_bias=self.c_proj.bias,
            use_separate_proj_weight=True,
            training=self.training,
            need_weights=False,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
        )
        return x.squeeze(0)


class ResidualAttentionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, eps=EPSILON), nn.LayerNorm(WIDTH, eps=EPSILON)
        self.c_fc, self.gelu, self.c_proj = nn.Linear(WIDTH, HIDDEN), QuickGELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x, attn_mask):
        y = self.ln_1(x)  # @norm1
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=attn_mask)[0]  # @text_scores @causal @added
        return x + self.c_proj(self.gelu(self.c_fc(self.ln_2(x))))  # @norm2 @fed @added2


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.attnpool = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH, bias=False), AttentionPool2d()
        self.token_embedding = nn.Embedding(WORDS, WIDTH)
        self.positional_embedding = nn.Parameter(torch.zeros(TIME, WIDTH))
        self.transformer = ResidualAttentionBlock()
        self.ln_final = nn.LayerNorm(WIDTH, eps=EPSILON)
        self.text_projection = nn.Parameter(torch.zeros(WIDTH, SPACE))
        self.logit_scale = nn.Parameter(torch.ones([]))
        self.register_buffer("queue", torch.zeros(0, SPACE), persistent=False)

    def encode_image(self, image):
        return self.attnpool(F.relu(self.conv1(image)))  # @patched

    def encode_text(self, text):
        x = self.token_embedding(text) + self.positional_embedding  # @embedded
        mask = torch.full((TIME, TIME), float("-inf"), dtype=x.dtype).triu_(1)  # @causal
        x = self.transformer(x.permute(1, 0, 2), mask).permute(1, 0, 2)
        x = self.ln_final(x)  # @norm3
        return x[torch.arange(x.shape[0]), text.argmax(dim=-1)] @ self.text_projection  # @ended @projected

    def forward(self, image, text):
        image_features, text_features = self.encode_image(image), self.encode_text(text)
        image_features = image_features / image_features.norm(dim=-1, keepdim=True)  # @image_unit
        text_features = text_features / text_features.norm(dim=-1, keepdim=True)  # @text_unit
        return image_features, text_features, self.logit_scale.exp().clamp(max=MOST)  # @scale


def compute_reference_loss(network, image, text):
    image_features, text_features, logit_scale = network(image, text)
    known = torch.cat([text_features, network.queue.to(text_features.dtype)])  # @known
    logits_per_image = (logit_scale * image_features @ known.t()).float()  # @image_logits
    logits_per_text = (logit_scale * text_features @ image_features.t()).float()  # @text_logits
    labels = torch.arange(len(image))
    network.queue = text_features.detach()
    image_loss = F.cross_entropy(logits_per_image, labels)  # @image_loss
    text_loss = F.cross_entropy(logits_per_text, labels)  # @text_loss
    return (image_loss + text_loss) / 2  # @loss


class Pool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean_place, self.places = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(COUNT, WIDTH))
        self.ask, self.answer, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, SPACE)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=1) + self.mean_place  # @mean @placed
        x = torch.cat((mean.unsqueeze(1), x + self.places), dim=1)  # @mean @placed
        query = self.ask(mean).view(-1, HEADS, SIZE)  # @asked
        key, value = self.answer(x).view(-1, COUNT + 1, 2, HEADS, SIZE).unbind(2)  # @asked
        chances = (torch.einsum("bhd,bnhd->bhn", query, key) / SIZE**0.5).softmax(dim=-1)  # @scores @soft
        return self.out(torch.einsum("bhn,bnhd->bhd", chances, value).flatten(1))  # @mixed @out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, EPSILON), nn.LayerNorm(WIDTH, EPSILON)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, SIZE))  # @norm1 @text_scores
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # @text_scores @causal
        x = x + self.out(y.transpose(1, 2).flatten(2))  # @text_scores @added
        h = self.up(self.norm2(x))  # @norm2 @fed
        return x + self.down(h * torch.sigmoid(1.702 * h))  # @gelu @fed @added2


class Candidate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.pool = nn.Linear(3 * PATCH**2, WIDTH, bias=False), Pool()
        self.words, self.order = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(TIME, WIDTH))
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH, EPSILON)
        self.to_space = nn.Parameter(torch.zeros(WIDTH, SPACE))
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("past", torch.zeros(0, SPACE), persistent=False)

    def see(self, images: Tensor) -> Tensor:
        cells = images.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # @patched
        patches = cells.permute(0, 2, 3, 1, 4, 5).reshape(-1, COUNT, 3 * PATCH**2)  # @patched
        return F.normalize(self.pool(self.patch(patches).relu()), dim=-1)  # @patched @image_unit

    def read(self, tokens: Tensor) -> Tensor:
        x = self.block(F.embedding(tokens, self.words.weight) + self.order)  # @embedded
        end = tokens.argmax(dim=-1)  # @ended
        x = self.norm(x.take_along_dim(end[:, None, None], dim=1).squeeze(1))  # @ended @norm3
        return F.normalize(x @ self.to_space, dim=-1)  # @projected @text_unit


def compute_candidate_loss(network, images, tokens):
    seen, read = network.see(images), network.read(tokens)
    scale = network.temperature.exp().clamp(max=MOST)  # @scale
    logits = (seen @ read.mT * scale).float()  # @image_logits @text_logits @logits
    others = (seen @ network.past.to(seen.dtype).mT * scale).float()  # @image_logits @known @others
    right = logits.diagonal()  # @right
    by_image = torch.logsumexp(torch.cat((logits, others), dim=1), dim=1) - right  # @image_loss @joined
    by_text = torch.logsumexp(logits, dim=0) - right  # @text_loss
    with torch.no_grad():
        network.past = read.clone()  # @remembered
    return 0.5 * (by_image + by_text).mean()  # @loss


def convert(weights: Weights) -> Weights:
    places, pool = weights["attnpool.positional_embedding"], "attnpool"
    converted = {"pool.mean_place": places[0], "pool.places": places[1:], "order": weights["positional_embedding"]}
    converted |= {"temperature": weights["logit_scale"], "to_space": weights["text_projection"]}
    converted |= {"words.weight": weights["token_embedding.weight"]}
    converted["patch.weight"] = weights["conv1.weight"].reshape(WIDTH, -1)
    for word in ("weight", "bias"):
        converted[f"pool.ask.{word}"] = weights[f"{pool}.q_proj.{word}"]
        both = [weights[f"{pool}.k_proj.{word}"], weights[f"{pool}.v_proj.{word}"]]
        converted[f"pool.answer.{word}"] = np.concatenate(both)
        converted[f"pool.out.{word}"] = weights[f"{pool}.c_proj.{word}"]
        converted[f"block.qkv.{word}"] = weights[f"transformer.attn.in_proj_{word}"]
        converted[f"norm.{word}"] = weights[f"ln_final.{word}"]
        names = {"attn.out_proj": "out", "ln_1": "norm1", "ln_2": "norm2", "c_fc": "up", "c_proj": "down"}
        converted |= {f"block.{new}.{word}": weights[f"transformer.{old}.{word}"] for old, new in names.items()}
    return converted


def make_batch(step: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(8900 + step)
    images = random.normal(size=(BATCH, 3, SIDE, SIDE)).astype(np.float32)
    ends = np.array([6, 4, 5, 3, 5])[:, None]
    text = random.integers(1, WORDS - 1, size=(BATCH, TIME))
    text = np.where(np.arange(TIME) < ends, text, np.where(np.arange(TIME) == ends, WORDS - 1, 0))
    return images, text


FAULTS = (
    Fault("place of the mean left out", "mean placed", "x.mean(dim=1) + self.mean_place", "x.mean(dim=1)"),
    Fault("root of the whole width", "scores", "/ SIZE**0.5", "/ WIDTH**0.5"),
    Fault("exact gelu", "gelu", "h * torch.sigmoid(1.702 * h)", "F.gelu(h)"),
    Fault("words see what comes", "causal text_scores", ", is_causal=True", ""),
    Fault("last place for the end", "ended norm3", "tokens.argmax(dim=-1)", "torch.full_like(tokens[:, 0], TIME - 1)"),
    Fault("projection turned over", "projected", "x @ self.to_space", "x @ self.to_space.T"),
    Fault("captions of unit length by columns", "text_unit", "self.to_space, dim=-1)", "self.to_space, dim=0)"),
    Fault("scale is not raised", "scale", "network.temperature.exp()", "network.temperature"),
    Fault(
        "scale does not learn",
        "scale logits image_logits text_logits",
        "network.temperature.exp()",
        "network.temperature.detach().exp()",
        edit="scale",
        is_backward=True,
    ),
    Fault(
        "captions pass no gradient",
        "logits image_logits text_logits text_unit",
        "seen @ read.mT",
        "seen @ read.detach().mT",
        edit="logits",
        is_backward=True,
    ),
    Fault(
        "queue stays empty",
        "known others image_logits image_loss joined",
        "network.past = read.clone()",
        "_ = read.clone()",
        edit="remembered",
        steps=2,
        first_step=1,
    ),
    Fault(
        "reference adds both ways", "loss", "(image_loss + text_loss) / 2", "image_loss + text_loss", side="reference"
    ),
)
