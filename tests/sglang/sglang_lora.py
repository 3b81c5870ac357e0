"""Adapters (LoRA) of the example target, of random weights, and requests that ask for them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from head_layouts import read, write
from safetensors.torch import save_file
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
STRENGTH, SCALE = 0.4, 2
"""The size of what an adapter adds to weights, as a part of theirs, and how often it adds its product."""


def write_adapted(folder: Path) -> None:
    """Write a target, its head and its adapters below a folder: `adapted`, `eagle`, and those of `ADAPTERS`."""
    write_models(folder)
    shutil.copytree(folder / "target", folder / "adapted")
    weights, config = read("target")
    draw = torch.Generator().manual_seed(1)
    for name, (rank, layers) in ADAPTERS.items():
        changed = {place: weight for place, weight in weights.items() if place.split(".")[-2] in layers}
        factors = {place: _factors(weight, rank, draw) for place, weight in changed.items()}
        added = {place: weights[place] + SCALE * up @ down for place, (up, down) in factors.items()}
        write(merged(folder, name), weights | added, config)
        _write(folder / name, factors, rank, layers)


def merged(folder: Path, name: str | None) -> Path:
    """Where the target is whose weights an adapter has changed, of all those below a folder; None for no adapter."""
    return folder / ("adapted" if name is None else f"{name}-merged")


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


def with_adapters(requests: Sequence[Mapping[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The same requests, of which one in four has no adapter."""
    draw = random.Random(seed)
    return [{**request, "adapter": draw.choice((None, *ADAPTERS))} for request in requests]
