"""Tiny models of many families of transformers, each against itself in another way, and with one norm 1 % too large.

    python benchmarks/family.py                  all families
    python benchmarks/family.py falcon deepseek

A pair without a fault should agree, unless the way changes what is computed (a batch norm that sees half a batch). A
fault should be named in the module of the norm; where the next norm takes it back, it has no effect.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn

import tensorprobe

WORDS = 40
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
ONE_KEY = {"num_key_value_heads": 1}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
WHOLE = slice(None)


@dataclass(frozen=True)
class Family:
    """A class of models, what its configuration is, and what the model is given; labels are the words themselves."""

    model: str
    settings: dict[str, Any]
    inputs: Callable[[], dict[str, Tensor]]
    has_loss: bool = False

    def make(self, attention: str) -> nn.Module:
        kind = getattr(transformers, self.model)
        settings = kind.config_class(**self.settings)
        settings._attn_implementation = attention
        model: nn.Module = kind(settings)
        return model

    def find_loss(self, model: nn.Module, part: slice) -> Tensor:
        inputs = {name: content[part] for name, content in self.inputs().items()}
        if self.has_loss:
            loss: Tensor = model(**inputs, labels=inputs["input_ids"]).loss
            return loss
        states: Tensor = model(**inputs).last_hidden_state
        return states.square().mean()


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def draw_words(count: int = 8) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, WORDS, (2, count), generator=torch.Generator().manual_seed(0))}


def speaking(model: str, **settings: Any) -> Family:
    return Family(model, {"vocab_size": WORDS, **settings}, draw_words, has_loss=True)


def reading(model: str, count: int = 8, **settings: Any) -> Family:
    return Family(model, {"vocab_size": WORDS, **settings}, lambda: draw_words(count))


def seeing(model: str, size: int = 32, **settings: Any) -> Family:
    return Family(model, settings, lambda: {"pixel_values": draw(2, 3, size, size)})


FAMILIES = {
    "olmo2": speaking("Olmo2ForCausalLM", **SMALL),
    "phi3": speaking("Phi3ForCausalLM", pad_token_id=0, **SMALL, **ONE_KEY),
    "bloom": speaking("BloomForCausalLM", hidden_size=16, n_layer=2, n_head=2),
    "mpt": speaking("MptForCausalLM", d_model=16, n_heads=2, n_layers=2),
    "falcon": speaking("FalconForCausalLM", hidden_size=16, num_hidden_layers=2, num_attention_heads=2),
    "gptj": speaking("GPTJForCausalLM", n_embd=16, n_layer=2, n_head=2, rotary_dim=4),
    "codegen": speaking("CodeGenForCausalLM", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "opt": speaking("OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=16, dropout=0.0, **SMALL),
    "xglm": speaking("XGLMForCausalLM", d_model=16, num_layers=2, attention_heads=2, ffn_dim=32, dropout=0.0),
    "deepseek": speaking(
        "DeepseekV3ForCausalLM",
        **SMALL,
        num_key_value_heads=2,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    ),
    "jamba": speaking(
        "JambaForCausalLM",
        **SMALL,
        **ONE_KEY,
        use_mamba_kernels=False,
        mamba_d_state=4,
        mamba_dt_rank=4,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
    ),
    "qwen3next": speaking(
        "Qwen3NextForCausalLM",
        **SMALL,
        **ONE_KEY,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "gemma2": speaking("Gemma2ForCausalLM", head_dim=8, query_pre_attn_scalar=8, sliding_window=4, **SMALL, **ONE_KEY),
    "xlnet": speaking("XLNetLMHeadModel", d_model=16, n_layer=2, n_head=2, d_inner=32, dropout=0.0),
    "albert": reading("AlbertModel", embedding_size=16, **SMALL, **STILL),
    "longformer": reading("LongformerModel", attention_window=4, **SMALL, **STILL),
    "bigbird": reading("BigBirdModel", attention_type="original_full", **SMALL, **STILL),
    "funnel": reading(
        "FunnelModel",
        16,
        block_sizes=[1, 1],
        d_model=16,
        n_head=2,
        d_head=8,
        d_inner=32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
    ),
    "nystrom": reading("NystromformerModel", 16, num_landmarks=4, segment_means_seq_len=16, **SMALL, **STILL),
    "fnet": reading("FNetModel", hidden_size=16, num_hidden_layers=2, intermediate_size=32, hidden_dropout_prob=0.0),
    "perceiver": Family(
        "PerceiverModel",
        {
            "num_latents": 6,
            "d_latents": 16,
            "d_model": 16,
            "num_blocks": 1,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 2,
            "attention_probs_dropout_prob": 0.0,
        },
        lambda: {"inputs": draw(2, 10, 16)},
    ),
    "swin2": seeing(
        "Swinv2Model",
        image_size=32,
        patch_size=4,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        drop_path_rate=0.0,
    ),
    "segformer": seeing(
        "SegformerModel",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[3, 3],
        strides=[2, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        drop_path_rate=0.0,
        **STILL,
    ),
    "dinov2": seeing(
        "Dinov2Model", image_size=32, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    ),
    "poolformer": seeing(
        "PoolFormerModel",
        depths=[1, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[3, 3],
        strides=[2, 2],
        padding=[1, 1],
        num_encoder_blocks=2,
        drop_path_rate=0.0,
    ),
    "levit": seeing(
        "LevitModel",
        64,
        image_size=64,
        hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 2, 2],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        drop_path_rate=0,
        attention_ratio=[1, 1, 1],
        mlp_ratio=[2, 2, 2],
    ),
    "regnet": seeing("RegNetModel", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    "mobilevit": seeing(
        "MobileViTModel",
        64,
        image_size=64,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32],
        num_attention_heads=2,
        **STILL,
    ),
    "hubert": Family(
        "HubertModel",
        {
            **SMALL,
            **dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout"), 0.0),
            "conv_dim": (8, 8),
            "conv_kernel": (10, 3),
            "conv_stride": (5, 2),
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "num_feat_extract_layers": 2,
            "layerdrop": 0.0,
            "mask_time_prob": 0.0,
        },
        lambda: {"input_values": draw(2, 400)},
    ),
}


@dataclass(frozen=True)
class Way:
    attention: str = "eager"
    dtype: torch.dtype = torch.float32
    is_halved: bool = False
    has_fault: bool = False


WAYS = {
    "fused attention": Way("sdpa"),
    "halves of the batch": Way(is_halved=True),
    "bfloat16": Way(dtype=torch.bfloat16),
    "fault": Way(has_fault=True),
    "fault, fused attention": Way("sdpa", has_fault=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    names = parser.parse_args().names or list(FAMILIES)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for line in try_family(FAMILIES[name], Path(folder)):
                print(f"{name:12s} {line}", flush=True)


def try_family(family: Family, folder: Path) -> Iterator[str]:
    record(family, Way(), folder / "reference")
    for number, (what, way) in enumerate(WAYS.items()):
        try:
            norm = record(family, way, folder / str(number))
        except (RuntimeError, ValueError) as error:  # not every family runs in every way
            yield f"{what:24s} cannot run: {str(error).splitlines()[0][:80]}"
            continue
        begin = time.process_time()
        verdict = tensorprobe.compare(folder / "reference", folder / str(number), processes=1).verdict
        seconds = time.process_time() - begin
        calls = (*verdict.call.reference, *verdict.call.candidate) if verdict.call is not None else ()
        is_named = any(lies_in(norm, call.module_path or "") for call in calls)
        result = "named" if way.has_fault and is_named else verdict.kind
        yield f"{what:24s} {result:14s} {seconds:5.1f} s  {'' if result in ('agree', 'named') else verdict.headline}"


def lies_in(norm: str, path: str) -> bool:
    """Is one of these modules the other one, or in it?"""
    return bool(path) and (f"{norm}.".startswith(f"{path}.") or f"{path}.".startswith(f"{norm}."))


def record(family: Family, way: Way, folder: Path) -> str:
    """One training step. Returns the name of the norm that has the fault."""
    torch.manual_seed(0)
    model = family.make(way.attention).train()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.to(way.dtype)
    norms = [(name, module) for name, module in model.named_modules() if "Norm" in type(module).__name__]
    name, norm = norms[len(norms) // 2]
    if way.has_fault:
        norm.register_forward_hook(lambda module, given, result: 1.01 * result)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tensorprobe.capture(model, str(folder), level="L1", task="tensor"):
        parts = [slice(0, 1), slice(1, 2)] if way.is_halved else [WHOLE]
        for part in parts:
            loss = family.find_loss(model, part)
            (loss / 2 if way.is_halved else loss).backward()
        optimizer.step()
    return name


if __name__ == "__main__":
    main()
