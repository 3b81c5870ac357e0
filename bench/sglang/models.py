"""The models of the variants: models.py OUT MODELS [KIND ...], KIND being example, small or large.

MODELS is examples/models. Kinds, all by default, folders that are there already are kept:

* example: the target and draft of specc's examples, and its EAGLE head in SGLang's layout.
* small: a random Llama, 512 wide, 4 layers, target and draft in one.
* large: random, of a real size: a target of 1.2 B parameters, a draft of 4 layers, an EAGLE head of one of the target's
  layers. Drafts mean nothing, so that measuring sets the accepted length (SGLANG_SIMULATE_ACC_LEN).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

LARGE_VOCAB = 128256
STD = {"small": 0.08, "large": 0.05}
"""Of the weights: so wide that argmax is not the same token everywhere."""


def llama(kind: str, vocab: int, width: int, layers: int, kv_heads: int, inner: int) -> LlamaConfig:
    """Sizes of a random model; heads have 64 elements."""
    return LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=kv_heads,
        head_dim=64,
        intermediate_size=inner,
        vocab_size=vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=STD[kind],
    )


def save_random(path: Path, config: LlamaConfig) -> LlamaForCausalLM:
    """A model of random weights, in bf16."""
    torch.manual_seed(6)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(path)
    return model


def save_head(path: Path, config: dict[str, object], weights: dict[str, Tensor]) -> None:
    """An EAGLE head in SGLang's layout: LlamaForCausalLMEagle, whose first layer has no input norm."""
    path.mkdir(parents=True, exist_ok=True)
    kept = {name: tensor for name, tensor in weights.items() if "input_layernorm" not in name}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in kept.items()}
    save_file(tensors, path / "model.safetensors")
    named = {"architectures": ["LlamaForCausalLMEagle"], "tie_word_embeddings": False}
    (path / "config.json").write_text(json.dumps(config | named))


def example(out: Path, models: Path) -> None:
    """ex_target, ex_standalone, ex_eagle."""
    for name in ("target", "standalone"):
        shutil.copytree(models / name, out / f"ex_{name}", dirs_exist_ok=True)
    old = load_file(models / "eagle" / "model.safetensors")
    weights = {name.replace("layer.", "layers.0.", 1): tensor for name, tensor in old.items()}
    weights["fc.bias"] = torch.zeros_like(old["fc.weight"][:, 0])
    weights["embed_tokens.weight"] = load_file(models / "target" / "model.safetensors")["model.embed_tokens.weight"]
    save_head(out / "ex_eagle", json.loads((models / "eagle" / "config.json").read_text()), weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models / "eagle" / name, out / "ex_eagle" / name)


def small(out: Path, _: Path) -> None:
    """small_target."""
    save_random(out / "small_target", llama("small", 32000, 512, 4, 4, 1536))


def large(out: Path, _: Path) -> None:
    """large_target, large_standalone, large_eagle; made on a GPU where there is one."""
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_default_dtype(torch.bfloat16)
    target = save_random(out / "large_target", llama("large", LARGE_VOCAB, 2048, 16, 8, 8192))
    save_random(out / "large_standalone", llama("large", LARGE_VOCAB, 1024, 4, 8, 4096))
    config = llama("large", LARGE_VOCAB, 2048, 1, 8, 8192)
    layer = LlamaForCausalLM(config).state_dict()
    weights = {name.removeprefix("model."): tensor for name, tensor in layer.items() if "layers.0" in name}
    weights["fc.weight"] = torch.randn(2048, 2 * 2048) * 0.02
    weights["fc.bias"] = torch.zeros(2048)
    weights["embed_tokens.weight"] = target.state_dict()["model.embed_tokens.weight"]
    types = {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    save_head(out / "large_eagle", config.to_dict() | types, weights)


KINDS = {"example": (example, "ex_eagle"), "small": (small, "small_target"), "large": (large, "large_eagle")}
"""What makes the models of a kind, and the folder that is finished last."""


def main(out: Path, models: Path, kinds: list[str]) -> None:
    """Make what is not there."""
    out.mkdir(parents=True, exist_ok=True)
    for kind in kinds or KINDS:
        make, last = KINDS[kind]
        if not (out / last / "config.json").exists():
            make(out, models)
    print("models:", *sorted(folder.name for folder in out.iterdir()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
