"""The example models in the layouts that SGLang reads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from head_layouts import EMBEDDING, EXAMPLES, eagle, eagle3, read, write
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

TOKEN_MAP = "tokens.pt"
"""The file of some tokens, beside the models."""
ODD = 2
"""How many tokens the target `odd` has more, which make its vocabulary no multiple of what SGLang pads heads to."""
UNTIED = {"tie_word_embeddings": False}
"""SGLang gives a head the target's `lm_head` in the place of its own, so it must have one."""
SHARP, FAINT = 3.0, 0.02
"""How much a token of `write_head`'s sees itself rather than those before it, and what it sees of the target."""
NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
READS = [0, 1, 2]
"""The layers of the target whose results that head reads."""


def write_pair(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folders: Sequence[Path], apart: float
) -> None:
    """Write a target and a draft whose weights differ from it by such a part, into a folder each.

    The model is the draft afterwards.
    """
    target, draft = folders
    model.save_pretrained(target)
    with torch.no_grad():
        for weights in model.parameters():
            weights *= 1 + apart * torch.randn_like(weights)
    model.save_pretrained(draft)
    for folder in folders:
        tokenizer.save_pretrained(folder)


def write_head(folder: Path, target: PreTrainedModel) -> None:
    """Write an EAGLE3 head that scores what follows from a token alone: it hands the token's embedding on.

    Its layer sees the whole text, as those of published heads do.
    """
    of: Any = target.config
    width, heads = of.hidden_size, of.num_attention_heads
    identity, nothing = torch.eye(width), torch.zeros(width, width)
    weights = {
        "fc.weight": torch.randn(width, len(READS) * width) * FAINT,
        "lm_head.weight": target.get_parameter("lm_head.weight").detach().clone(),
        "norm.weight": target.get_parameter("model.norm.weight").detach().clone(),
        **{f"midlayer.{name}.weight": torch.ones(width) for name in NORMS},
        **{f"midlayer.self_attn.{name}_proj.weight": torch.cat((identity * SHARP, nothing), 1) for name in "qk"},
        "midlayer.self_attn.v_proj.weight": torch.cat((identity, nothing), 1),
        "midlayer.self_attn.o_proj.weight": identity,
        **{f"midlayer.mlp.{name}_proj.weight": nothing.clone() for name in ("gate", "up", "down")},
    }
    kept = ("rms_norm_eps", "max_position_embeddings", "vocab_size", "bos_token_id", "eos_token_id")
    config = {name: getattr(of, name) for name in kept} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": width,
        "intermediate_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width // heads,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "draft_vocab_size": of.vocab_size,
        "target_hidden_size": width,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": READS},
    }
    write(folder, weights, config)


def write_models(folder: Path) -> None:
    """Write `target`, `standalone`, `eagle`, `eagle3` and its part, and a token map of three in four below a folder.

    SGLang captures the output of a layer where the next one begins, and the EAGLE3 head reads that of the last one. So
    the target gets a layer more, all zeros, which adds nothing to the residual stream. `odd`, and its head `odd_eagle`,
    have tokens more that score 0, which no text has.
    """
    weights, config = read("target")
    layers = config["num_hidden_layers"]
    config |= {"num_hidden_layers": layers + 1}
    last, another = (f"model.layers.{layer}." for layer in (layers - 1, layers))
    zeros = {name.replace(last, another): torch.zeros_like(weights[name]) for name in weights if name.startswith(last)}
    write(folder / "target", weights | zeros, config)
    odd = {"vocab_size": config["vocab_size"] + ODD}
    write(folder / "odd", weights | zeros | {EMBEDDING: pad(weights[EMBEDDING], (0, 0, 0, ODD))}, config | odd)
    shutil.copytree(EXAMPLES / "standalone", folder / "standalone")
    weights, config = read("eagle")
    head = config | {"architectures": ["LlamaForCausalLMEagle"]} | UNTIED
    biased = eagle(weights) | {"fc.bias": torch.zeros_like(weights["fc.weight"][:, 0])}
    write(folder / "eagle", biased, head)
    write(folder / "odd_eagle", biased, head | odd)
    weights, config = read("eagle3")
    width = config["target_hidden_size"]
    wide = {"hidden_size": width, "num_attention_heads": width // config["head_dim"]}
    vocabulary, architecture = config["vocab_size"], {"architectures": ["LlamaForCausalLMEagle3"]}
    head = eagle3(weights, config)
    write(folder / "eagle3", head, config | wide | architecture | {"draft_vocab_size": vocabulary})
    tokens = torch.tensor([token for token in range(vocabulary) if token % 4 != 3])
    offsets = {"d2t": tokens - torch.arange(len(tokens)), "t2d": torch.arange(vocabulary) % 4 != 3}
    part = head | {"lm_head.weight": head["lm_head.weight"][tokens]} | offsets
    write(folder / "eagle3_part", part, config | wide | architecture | {"draft_vocab_size": len(tokens)})
    torch.save(tokens.tolist(), folder / TOKEN_MAP)


def most_probable(text: str, answer: Sequence[int]) -> list[int]:
    """Of the target by transformers: the most probable token after a prompt and every beginning of an answer."""
    model, tokenizer = _target()
    prompt = tokenizer(text).input_ids
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return logits.argmax(-1).tolist()


@cache
def _target() -> tuple[Any, Any]:
    folder = EXAMPLES / "target"
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
