"""What the path of a layer says, however it is spelt."""

from __future__ import annotations

import pytest

from tensorprobe.migrator.weight_word import Naming, split_words


def words(*paths: str, shape: tuple[int, ...] = (4,)) -> list[frozenset[str]]:
    parts = [tuple(path.split(".")) for path in paths]
    naming = Naming(dict.fromkeys(parts, (shape,)))
    return [naming.meaning(path).words for path in parts]


@pytest.mark.parametrize(
    ("names", "others"),
    [
        ("input_layernorm post_attention_layernorm", "attention_norm ffn_norm"),
        ("input_layernorm post_attention_layernorm", "norm1 norm2"),
        ("ln_1 ln_2", "attn_norm mlp_norm"),
        ("layernorm_before layernorm_after", "layer_norm1 layer_norm2"),
        ("attention.output.LayerNorm output.LayerNorm", "norm1 norm2"),
        ("self_attn_layer_norm final_layer_norm", "attention_norm feed_forward_norm"),
        ("self_attn_layer_norm encoder_attn_layer_norm final_layer_norm", "norm1 norm2 norm3"),
        ("gate_proj down_proj up_proj", "w1 w2 w3"),
        ("intermediate.dense output.dense", "mlp.fc1 mlp.fc2"),
        ("mlp.c_fc mlp.c_proj", "feed_forward.linear1 feed_forward.linear2"),
        ("q_proj k_proj v_proj o_proj", "wq wk wv wo"),
        ("wte wpe", "tok_emb pos_emb"),
    ],
)
def test_siblings_with_other_names_are_known_by_each_other(names: str, others: str) -> None:
    said, other_said = words(*names.split()), words(*others.split())
    assert said == other_said
    assert len(set(said)) == len(said)


def test_a_block_with_four_norms_is_not_taken_for_one_with_two() -> None:
    names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    assert words(*names)[1] == {"post", "attention"}


def test_norms_inside_the_attention_do_not_count_among_those_of_the_block() -> None:
    paths = [("norm1",), ("norm2",), ("attn", "q_norm")]
    naming = Naming({paths[0]: ((8,),), paths[1]: ((8,),), paths[2]: ((2,),)})
    assert naming.meaning(paths[1]).words == {"family 0 1"}


def test_two_halves_are_known_where_a_network_has_no_others() -> None:
    assert words("down1", "up1") == words("enc1", "dec1")
    assert words("encoder.down", "decoder.up")[0] == {"encoder", "down"}


def test_a_number_says_which_of_its_siblings_a_layer_is() -> None:
    paths = [("stage", "1", "conv3"), ("stage", "2", "conv3"), ("stage", "4", "conv3")]
    naming = Naming(dict.fromkeys(paths, ((4, 4),)))
    assert [naming.meaning(path).numbers for path in paths] == [((3, 0, ""),), ((3, 1, ""),), ((3, 2, ""),)]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("conv2d", ("conv",)),
        ("LayerNorm", ("norm",)),
        ("RMSNorm", ("norm",)),
        ("embed_tokens", ("embedding", "token")),
        ("h", ("h",)),
        ("_", ()),
    ],
)
def test_words_have_one_spelling(part: str, expected: tuple[str, ...]) -> None:
    assert split_words(part) == expected
