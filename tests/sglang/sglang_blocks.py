"""The example DFlash head, the same with a Markov head, and their target, in the layouts that SGLang reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from head_layouts import CONFIG, EMBEDDING, EXAMPLES, dflash, mask_token, read, write
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

RANK, HEEDED = 24, 0.2
"""How many entries rows of the Markov head have, and how much a draft heeds it."""
NEAR = 4
"""Tokens that layers of a draft with windows see. It accepts an eighth less where they see one less."""


def write_blocks(folder: Path) -> None:
    """Write `dflash`, `dspark` and their target `masked` beside the `target` of `write_models`, whose texts it has.

    Both are there a second time, `dflash-near` and `dspark-near`, with layers that see a window, in which places see
    each other.
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
    write(folder / "dspark", laid | markov(), config | more | corrected)
    for name in ("dflash", "dspark"):
        shutil.copytree(folder / name, folder / f"{name}-near")
        about = json.loads((folder / name / CONFIG).read_text())
        seen = {"layer_types": ["sliding_attention"] * about["num_hidden_layers"], "sliding_window": NEAR}
        (folder / f"{name}-near" / CONFIG).write_text(json.dumps(about | seen | {"is_causal": False}))
    embedding = kept[EMBEDDING].clone()
    embedding[mask_token()] = weights["mask"]
    sizes = {"num_hidden_layers": layers, "tie_word_embeddings": False}
    untied = {EMBEDDING: embedding, "lm_head.weight": kept[EMBEDDING]}
    write(folder / "masked", kept | untied, of | sizes)


def markov() -> dict[str, Tensor]:
    """What the target scores behind each token alone, as far as tables of so few entries have it."""
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "target", dtype=torch.float32)
    with torch.inference_mode():
        scores = model(torch.arange(model.config.vocab_size)[:, None]).logits[:, 0].log_softmax(-1)
    rows, sizes, columns = torch.linalg.svd(scores - scores.mean(0))
    w1, w2 = rows[:, :RANK] * sizes[:RANK] * HEEDED, columns[:RANK].T
    return {"markov_head.markov_w1.weight": w1, "markov_head.markov_w2.weight": w2}
