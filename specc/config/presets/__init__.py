"""Serving engines that programs are built for, one file each. This table is the only list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from specc.config.presets.preset import Preset
from specc.config.presets.sglang import SGLANG
from specc.config.presets.vllm import VLLM

__all__ = ["ENGINES", "PRESETS", "Engine", "Preset"]

Engine = Literal["sglang", "vllm"]

ENGINES: tuple[Engine, ...] = get_args(Engine)

PRESETS: Mapping[Engine, Preset] = {"sglang": SGLANG, "vllm": VLLM}
"""What each engine asks of a configuration."""
