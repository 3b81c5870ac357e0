"""A small Qwen3-Next with a module of multi-token prediction, whose texts are what its recurrent state remembers.

Nothing is trained. A token is one of `SUCCESSORS`, which follows from the last token alone, and some bits. Each bit is
what a head of a recurrent layer has stored last for a class of tokens. So a text is another one from where a state is
that of other tokens. What decides on a token is far larger than what rounding does to it, in 16 bits, too.

Behind a quarter of the tokens the bits are in a table instead. The module has that table and sees no state: it knows
the successor of any token, and the whole next token about one time in four.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from head_layouts import write
from torch import Tensor

SUCCESSORS, BITS, CLASSES = 32, 6, 8
VOCAB = SUCCESSORS << BITS
TABLED = SUCCESSORS // 4
"""Tokens of these first successors have the bits behind them in the table."""
LAYERS, HEADS, WINDOW = 3, 2, 4
"""Recurrent layers, the heads of each, and the tokens that its convolution reads."""
QUERIES, KEYS, ROTARY, CODE = 4, 4, 32, 96
"""Heads of attention, and how many entries of each are rotated, and are the code of a token."""
EXPERTS, INNER = 4, 64
MARK, OPEN, SHARP, NOISE = 4.0, 3.0, 3.0, 0.05
"""How large a mark is in a head, how far a gate opens, how much a token attends to itself, and how large noise is."""
SUCCESSOR, BIT, UNSET = 2.0, 2.0, 1.0
"""How much the successor counts, and a bit of the table; by how much a bit of which nothing is stored is rather 0."""
SIZES = {
    "bias": 1,
    "tabled": 1,
    "code": CODE,
    "store": BITS * CLASSES,
    "ask": BITS * CLASSES,
    "value": BITS * 2,
    "next": SUCCESSORS,
    "table": BITS * 2,
    "successor": SUCCESSORS,
    "bits": BITS * 2,
    "spare": 90,
}
"""Parts of the residual stream. Up to `table` they are of the token, and from `successor` on layers write them."""
BEGINS = dict(zip(SIZES, accumulate(SIZES.values(), initial=0), strict=False))
HIDDEN = sum(SIZES.values())


def part(name: str, number: int = 0, of: int = 1) -> slice:
    """Return where a part of the residual stream is, or one of so many equal pieces of it."""
    size = SIZES[name] // of
    return slice(BEGINS[name] + number * size, BEGINS[name] + (number + 1) * size)


class Draw:
    """What is drawn from a seed, in one order."""

    def __init__(self, seed: int) -> None:
        """Begin."""
        self._generator = torch.Generator().manual_seed(seed)

    def noise(self, *shape: int) -> Tensor:
        """Draw numbers of the deviation `NOISE`."""
        return NOISE * torch.randn(shape, generator=self._generator)

    def below(self, end: int, *shape: int) -> Tensor:
        """Draw integers."""
        return torch.randint(end, shape, generator=self._generator)


def one_hot(numbers: Tensor, of: int) -> Tensor:
    """Return marks f32[..., n * of] of numbers i64[..., n]."""
    return torch.nn.functional.one_hot(numbers, of).float().flatten(-2)


def embedding(draw: Draw, table: Tensor) -> Tensor:
    """Return what each token brings; the bits behind some are in a table i64[SUCCESSORS, BITS]."""
    made = torch.zeros(VOCAB, HIDDEN)
    successor = torch.arange(VOCAB) >> BITS
    tabled = (successor < TABLED).float()[:, None]
    following = (successor + 1 + draw.below(SUCCESSORS - 1, VOCAB)) % SUCCESSORS
    made[:, part("bias")] = 1
    made[:, part("tabled")] = tabled
    made[:, part("code")] = draw.noise(VOCAB, CODE).sign()
    made[:, part("next")] = one_hot(following[:, None], SUCCESSORS)
    made[:, part("table")] = one_hot(table[successor], 2) * tabled
    for name, of in (("store", CLASSES), ("ask", CLASSES), ("value", 2)):
        made[:, part(name)] = one_hot(draw.below(of, VOCAB, BITS), of)
    return made


def head(draw: Draw) -> Tensor:
    """Return what scores tokens by the successor and the bits that layers have written."""
    tokens = torch.arange(VOCAB)[:, None]
    bits = tokens >> torch.arange(BITS) & 1
    made = torch.zeros(VOCAB, HIDDEN)
    made[:, part("successor")] = one_hot(tokens >> BITS, SUCCESSORS)
    made[:, part("bits")] = one_hot(bits, 2)
    made[:, part("bias")] = -UNSET * bits.sum(1, keepdim=True)
    made[:, part("spare")] = 0.1 * draw.noise(VOCAB, SIZES["spare"])
    return made


def vocabulary(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Return a table, and of it what tokens bring and what scores them: of all models the same, if drawn first."""
    table = draw.below(2, SUCCESSORS, BITS)
    return table, embedding(draw, table), head(draw)


class Delta(NamedTuple):
    """Heads of delta rules, each of which stores a bit of a token by the class of a later one.

    The two have as many tokens between them as there are layers before this one. The entries of a value behind the bit
    are noise, up to `wide`.

    Attributes:
        gates: [HEADS, 2, HIDDEN], of which the first open to what is new, and the others are noise.
        read: to queries, keys and values [HEADS, 3, wide, HIDDEN].
        window: the convolution [3, HEADS, wide, 1, WINDOW].
        written: what values write [HIDDEN, HEADS, wide].

    """

    gates: Tensor
    read: Tensor
    window: Tensor
    written: Tensor


def delta(draw: Draw, layer: int, wide: int, much: float) -> Delta:
    """Return the heads of a layer, whose bits are written that much."""
    gates, read = draw.noise(HEADS, 2, HIDDEN), torch.zeros(HEADS, 3, wide, HIDDEN)
    window, written = torch.zeros(3, HEADS, wide, 1, WINDOW), torch.zeros(HIDDEN, HEADS, wide)
    for number in range(HEADS):
        bit = layer * HEADS + number
        for rows, name in zip(read[number], ("ask", "store", "value"), strict=True):
            marks = SIZES[name] // BITS
            rows[:marks, part(name, bit, BITS)] = MARK * torch.eye(marks)
        read[number, 2, 2:, part("code")] = MARK / 2 * draw.noise(wide - 2, CODE)
        gates[number, 0, part("bias")] += OPEN
        written[part("bits", bit, BITS), number, :2] = much * torch.eye(2)
        written[part("spare"), number, 2:] = 0.1 * draw.noise(SIZES["spare"], wide - 2)
    window[:2, ..., -1] = 1
    window[2, ..., -2 - layer] = 1
    return Delta(gates, read, window, written)


def recurrent(draw: Draw, layer: int, wide: int) -> dict[str, Tensor]:
    """Return a recurrent layer, which reads nothing behind a token of the table."""
    made, opened = delta(draw, layer, wide, 0.12), torch.zeros(HEADS, 1, wide, HIDDEN)
    opened[..., part("bias")], opened[..., part("tabled")] = OPEN, -2 * OPEN
    return {
        "in_proj_qkvz.weight": torch.cat((made.read, opened), 1).flatten(0, 2),
        "in_proj_ba.weight": made.gates.flatten(0, 1),
        "conv1d.weight": made.window.flatten(0, 2),
        "A_log": torch.zeros(HEADS),
        "dt_bias": torch.full((HEADS,), -6.0),
        "norm.weight": torch.ones(wide),
        "out_proj.weight": made.written.flatten(1),
    }


def parted(mixed: Mapping[str, Tensor], wide: int) -> dict[str, Tensor]:
    """Return a recurrent layer as Qwen3.5 has it: what makes queries of all heads, then keys, then values."""
    read = mixed["in_proj_qkvz.weight"].view(HEADS, 4, wide, HIDDEN).transpose(0, 1)
    scores, decays = mixed["in_proj_ba.weight"].view(HEADS, 2, HIDDEN).unbind(1)
    apart = {"qkv": read[:3].flatten(0, 2), "z": read[3].flatten(0, 1), "b": scores, "a": decays}
    rest = {name: tensor for name, tensor in mixed.items() if not name.startswith("in_proj")}
    return rest | {f"in_proj_{name}.weight": tensor for name, tensor in apart.items()}


def attention(*, plain: bool = False) -> dict[str, Tensor]:
    """Return a layer in which a token attends to itself: heads write its successor, or the bits of its table.

    A `plain` one has no rotation, gates and norms.
    """
    width, halves = (0 if plain else ROTARY) + CODE, (("next", "successor", SUCCESSOR), ("table", "bits", BIT))
    queries, keys, values = (torch.zeros(n, width, HIDDEN) for n in (QUERIES, KEYS, KEYS))
    written = torch.zeros(HIDDEN, QUERIES, width)
    for rows in (queries, keys):
        rows[:, -CODE:, part("code")] = torch.eye(CODE) * (SHARP**0.5 if plain else 1)
    for number in range(QUERIES):
        read, wrote, much = halves[2 * number // QUERIES]
        values[number * KEYS // QUERIES, : SIZES[read], part(read)] = torch.eye(SIZES[read])
        written[part(wrote), number, : SIZES[read]] = 2 * much / QUERIES * torch.eye(SIZES[read])
    read = {"q_proj": queries, "k_proj": keys, "v_proj": values}
    made = {f"{name}.weight": rows.flatten(0, 1) for name, rows in read.items()} | {"o_proj.weight": written.flatten(1)}
    if plain:
        return made
    opened = torch.zeros(QUERIES, width, HIDDEN)
    opened[..., part("bias")] = OPEN
    made["q_proj.weight"] = torch.stack((queries, opened), 1).flatten(0, 2)
    return made | {f"{name}_norm.weight": torch.full((width,), SHARP - 1) for name in "qk"}


def feed_forward(draw: Draw, *, experts: bool) -> dict[str, Tensor]:
    """Return noise, which writes to the spare entries alone."""

    def dense(before: str) -> dict[str, Tensor]:
        down = torch.zeros(HIDDEN, INNER)
        down[part("spare")] = draw.noise(SIZES["spare"], INNER)
        up = {f"{before}{name}.weight": draw.noise(INNER, HIDDEN) for name in ("gate_proj", "up_proj")}
        return up | {f"{before}down_proj.weight": down}

    if not experts:
        return dense("")
    made = dense("shared_expert.") | {"shared_expert_gate.weight": draw.noise(1, HIDDEN)}
    for number in range(EXPERTS):
        made |= dense(f"experts.{number}.")
    return made | {"gate.weight": draw.noise(EXPERTS, HIDDEN)}


def fused(draw: Draw, table: Tensor) -> Tensor:
    """Return what the module makes of a token and the hidden state before it, whose successor has bits in the table."""
    token, before = torch.zeros(2, HIDDEN, HIDDEN)
    token.fill_diagonal_(0.5)
    token[part("table")] = 0
    before[part("bits"), part("successor")] = one_hot(table, 2).T
    before[part("spare"), part("spare")] = draw.noise(SIZES["spare"], SIZES["spare"])
    return torch.cat((token, before), 1)


def layer(before: str, mixer: str, mixed: Mapping[str, Tensor], fed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a layer whose norms change nothing: their weights are counted from 1."""
    made = {f"{before}.{name}.weight": torch.zeros(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
    made |= {f"{before}.{mixer}.{name}": tensor for name, tensor in mixed.items()}
    return made | {f"{before}.mlp.{name}": tensor for name, tensor in fed.items()}


def decided(scores: Callable[[Tensor], Tensor]) -> tuple[int, float]:
    """Return how many tokens follow one of no table behind 64 texts, and how far the best are ahead at any place.

    `scores` gives logits [n, length, VOCAB] of texts i64[n, length].
    """
    texts = torch.randint(VOCAB, (64, 24), generator=torch.Generator().manual_seed(3))
    texts[:, -1] = VOCAB - 1
    with torch.inference_mode():
        best = scores(texts).topk(2)
    first, second = best.values.unbind(-1)
    return len(set(best.indices[:, -1, 0].tolist())), (first - second).min().item()


def write_qwen3_next(folder: Path, wide: int, *, dense: Sequence[int] = range(1, LAYERS + 1)) -> None:
    """Write the model and its module; `wide` entries of a recurrent head's keys and values make its state large.

    All layers but those of `dense` have experts. vLLM does not load a model of this class in which none has, and SGLang
    none in which some have not.
    """
    made = weights_of(wide, dense)
    sizes = {"linear_key_head_dim": wide, "linear_value_head_dim": wide, "mlp_only_layers": list(dense)}
    write(folder, made, CONFIG | sizes)


def write_qwen3_5(folder: Path, wide: int) -> None:
    """Write the language model of a Qwen3.5 without experts, and its module; `wide` as of `write_qwen3_next`."""
    made = parted_weights_of(wide, range(LAYERS + 2))
    write(folder, made, DENSE | {"linear_key_head_dim": wide, "linear_value_head_dim": wide})


def parted_weights_of(wide: int, dense: Container[int]) -> dict[str, Tensor]:
    """Return `weights_of`, as Qwen3.5 has recurrent layers."""
    made = weights_of(wide, dense)
    for number in range(LAYERS):
        before = f"model.layers.{number}.linear_attn."
        mixed = {name.removeprefix(before): made.pop(name) for name in [*made] if name.startswith(before)}
        made |= {f"{before}{name}": tensor for name, tensor in parted(mixed, wide).items()}
    return made


def weights_of(wide: int, dense: Container[int]) -> dict[str, Tensor]:
    """Return weights by their names in a Qwen3-Next: those of its layers, the last of which is the module's."""
    draw = Draw(7)
    table, known, scores = vocabulary(draw)
    made = {"model.embed_tokens.weight": known, "lm_head.weight": scores}
    for number in range(LAYERS):
        fed = feed_forward(draw, experts=number not in dense)
        made |= layer(f"model.layers.{number}", "linear_attn", recurrent(draw, number, wide), fed)
    made |= layer(f"model.layers.{LAYERS}", "self_attn", attention(), feed_forward(draw, experts=LAYERS not in dense))
    of_module = feed_forward(draw, experts=LAYERS + 1 not in dense)
    made |= layer("mtp.layers.0", "self_attn", attention(), of_module)
    made["mtp.fc.weight"] = fused(draw, table)
    norms = ("model.norm", "mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
    made |= {f"{name}.weight": torch.zeros(HIDDEN) for name in norms}
    return {name: tensor if name.endswith("A_log") else tensor.bfloat16() for name, tensor in made.items()}


CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS + 1,
    "full_attention_interval": LAYERS + 1,
    "num_attention_heads": QUERIES,
    "num_key_value_heads": KEYS,
    "head_dim": ROTARY + CODE,
    "partial_rotary_factor": ROTARY / (ROTARY + CODE),
    "linear_conv_kernel_dim": WINDOW,
    "linear_num_key_heads": HEADS,
    "linear_num_value_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": INNER,
    "shared_expert_intermediate_size": INNER,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
OF_EXPERTS = "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"
DENSE = {name: value for name, value in CONFIG.items() if name not in (*OF_EXPERTS, "decoder_sparse_step")} | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": CONFIG["rope_theta"],
        "partial_rotary_factor": CONFIG["partial_rotary_factor"],
    },
}
