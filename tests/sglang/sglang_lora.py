"""Adapters (LoRA) of random weights, and requests that ask for them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from head_layouts import CONFIG, WEIGHTS, write
from safetensors.torch import load_file, save_file
from sglang_models import write_models
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ADAPTERS: Mapping[str, tuple[int, Sequence[str]]] = {
    "terse": (4, ATTENTION + MLP),
    "vivid": (8, ATTENTION),
    "wry": (2, ATTENTION + MLP),
}
"""By its name the rank of an adapter, and the layers that it changes."""
FUSED = {"in_proj_qkvz": ("in_proj_qkv", "in_proj_z")}
"""Layers that SGLang and its adapters have as one, and others as several, whose rows follow each other."""
STRENGTH, SCALE = 0.4, 2
"""The size of what an adapter adds to weights, as a part of theirs, and how often it adds its product."""


def write_adapted(folder: Path) -> None:
    """Write a target, its head and its adapters below a folder: `adapted`, `eagle`, and those of `ADAPTERS`."""
    write_models(folder)
    shutil.copytree(folder / "target", folder / "adapted")
    write_adapters(folder, "adapted", ADAPTERS)


def write_adapters(folder: Path, target: str, adapters: Mapping[str, tuple[int, Sequence[str]]]) -> None:
    """Write adapters of a target beside it, and what each makes of it; those of a module of its own change nothing."""
    weights, config = load_file(folder / target / WEIGHTS), json.loads((folder / target / CONFIG).read_text())
    draw = torch.Generator().manual_seed(1)
    for name, (rank, layers) in adapters.items():
        factors: dict[str, tuple[Tensor, Tensor]] = {}
        added: dict[str, Tensor] = {}
        for place, parts in _changed(weights, layers):
            whole = [weights[part] for part in parts]
            factors[place] = up, down = _factors(torch.cat(whole).float(), rank, draw)
            changes = (SCALE * up @ down).split([len(weight) for weight in whole])
            added |= {part: weights[part] + change for part, change in zip(parts, changes, strict=True)}
        write(merged(folder, target, name), weights | added, config)
        _write(folder / name, factors, rank, layers)


def merged(folder: Path, target: str, name: str | None) -> Path:
    """Where the target is whose weights an adapter has changed, of all those below a folder; None for no adapter."""
    return folder / (target if name is None else f"{name}-merged")


def _changed(weights: Mapping[str, Tensor], layers: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield of each layer that is changed its weight's name in an adapter, and those of it in the target."""
    for place in weights:
        before, _, layer = place.removesuffix(".weight").rpartition(".")
        named = next((fused for fused, parts in FUSED.items() if layer == parts[0]), layer)
        if named in layers and not before.startswith("mtp."):
            yield f"{before}.{named}.weight", [f"{before}.{part}.weight" for part in FUSED.get(named, [named])]


def _factors(weight: Tensor, rank: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random matrices f32[out, rank] and f32[rank, in] whose product is small beside a weight f32[out, in]."""
    up, down = torch.randn(len(weight), rank, generator=draw), torch.randn(rank, weight.shape[1], generator=draw)
    return up * STRENGTH / SCALE * weight.norm() / (up @ down).norm(), down


def _write(folder: Path, factors: Mapping[str, tuple[Tensor, Tensor]], rank: int, layers: Sequence[str]) -> None:
    """Write an adapter in the layout of PEFT."""
    folder.mkdir()
    weights: dict[str, Tensor] = {}
    for place, (up, down) in factors.items():
        layer = f"base_model.model.{place.removesuffix('.weight')}"
        weights |= {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": SCALE * rank, "target_modules": [*layers], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def with_adapters(
    requests: Sequence[Mapping[str, Any]], seed: int, adapters: Iterable[str] = ADAPTERS
) -> list[dict[str, Any]]:
    """The same requests, of which one in some has no adapter."""
    draw, names = random.Random(seed), (None, *adapters)
    return [{**request, "adapter": draw.choice(names)} for request in requests]
