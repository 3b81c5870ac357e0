"""The example DFlash head, with a Markov head, with a selector, and their target, in the layouts that SGLang reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from head_layouts import CONFIG, EMBEDDING, EXAMPLES, dflash, mask_token, read, write
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

RANK, HEEDED = 24, 0.2
"""How many entries rows of the Markov head, and of the selector, have, and how much a draft heeds it."""
CANDIDATES, TAPS, GROUP = 4, 2, 16
"""Of the draft with a selector: candidates of a place, rows that a convolution reads, and elements of its groups."""
CARRIED, SWAYED = 0.02, 0.002
"""How much of the row before a convolution adds, and how large the weights are by which a row changes that."""
NEAR = 4
"""Tokens that layers of a draft with windows see. It accepts an eighth less where they see one less."""


def write_blocks(folder: Path) -> None:
    """Write `dflash`, `dflash2`, `dspark` and their target `masked` beside `target` of `write_models`.

    It has the texts of that. All drafts are there a second time, such as `dflash-near`, with layers that see a window,
    in which places see each other.
    Its mask is a token of the target's, whose head scores it as ever. The draft reads what the last
    layer leaves, which SGLang captures where another one begins; see `write_models`.
    """
    weights, config = read("dflash")
    target, of = folder / "target", read("target")[1]
    kept = load_file(target / "model.safetensors")
    layers = of["num_hidden_layers"] + 1
    options = config["dflash_config"] | {"mask_token_id": mask_token()}
    more = {"num_target_layers": layers, "dflash_config": options}
    laid = dflash(weights, config["head_dim"])
    write(folder / "dflash", laid, config | more | {"architectures": ["DFlashDraftModel"]})
    corrected = {"architectures": ["Qwen3DSparkModel"], "markov_rank": RANK, "markov_head_type": "vanilla"}
    more["dflash_config"] = options | {"block_size": options["block_size"] - 1}
    more |= {"sample_from_anchor": False}  # which this head was not trained for
    before, behind, leaning = behind_each_token()
    head = {"markov_head.markov_w1.weight": before, "markov_head.markov_w2.weight": behind}
    write(folder / "dspark", laid | head, config | more | corrected)
    sizes = {"selector_rank": RANK, "selector_top_k": CANDIDATES, "conv_kernel_size": TAPS, "conv_group_size": GROUP}
    more = {"num_target_layers": layers, "dflash_config": options | sizes, "architectures": ["DFlash2DraftModel"]}
    made = laid | convolutions(config) | selector(before, behind, leaning)
    write(folder / "dflash2", made, config | more)
    for name in ("dflash", "dflash2", "dspark"):
        shutil.copytree(folder / name, folder / f"{name}-near")
        about = json.loads((folder / name / CONFIG).read_text())
        seen = {"layer_types": ["sliding_attention"] * about["num_hidden_layers"], "sliding_window": NEAR}
        (folder / f"{name}-near" / CONFIG).write_text(json.dumps(about | seen | {"is_causal": False}))
    embedding = kept[EMBEDDING].clone()
    embedding[mask_token()] = weights["mask"]
    sizes = {"num_hidden_layers": layers, "tie_word_embeddings": False}
    untied = {EMBEDDING: embedding, "lm_head.weight": kept[EMBEDDING]}
    write(folder / "masked", kept | untied, of | sizes)


def behind_each_token() -> tuple[Tensor, Tensor, Tensor]:
    """What the target scores behind each token alone, as far as tables [V, RANK] of so few entries have it.

    The third is what its last rows [H] have in common.
    """
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "target", dtype=torch.float32)
    with torch.inference_mode():
        given = model(torch.arange(model.config.vocab_size)[:, None], output_hidden_states=True)
    scores = given.logits[:, 0].log_softmax(-1)
    rows, sizes, columns = torch.linalg.svd(scores - scores.mean(0))
    return rows[:, :RANK] * sizes[:RANK] * HEEDED, columns[:RANK].T, given.hidden_states[-1][:, 0].mean(0)


def selector(before: Tensor, behind: Tensor, leaning: Tensor) -> dict[str, Tensor]:
    """A selector that scores as those tables do, the more of a place the more its row [H] leans as others do."""
    projection = (leaning / leaning.square().sum()).expand(RANK, -1)
    return {
        "candidate_selector.predecessor_codebook": before,
        "candidate_selector.successor_codebook": behind,
        "candidate_selector.hidden_projection.weight": projection,
    }


def convolutions(config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those around every part of a layer: rows stay what they are but for a little of the row before, each its own."""
    source, width = torch.Generator().manual_seed(6), config["hidden_size"]
    made = dict[str, Tensor]()
    for layer in range(config["num_hidden_layers"]):
        for part in ("attention_conv", "mlp_conv"):
            base = torch.stack((torch.ones(width), torch.full((width,), CARRIED)))
            projection = torch.randn(2 * TAPS * (width // GROUP), width, generator=source) * SWAYED
            made[f"layers.{layer}.{part}.base_kernel"] = base.expand(2, -1, -1)
            made[f"layers.{layer}.{part}.kernel_projection.weight"] = projection
    return made
