"""How fast GPUs read memory and multiply, as their makers publish it: for estimates, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specc.compiler.config.archs import Gpu


@dataclass(frozen=True)
class Speed:
    """A GPU's figures: ``bandwidth`` in TB/s, and dense products of 16 bits, ``products``, in Tflop/s."""

    bandwidth: float
    products: float


SPEEDS: Mapping[str, Speed] = {
    "a100": Speed(2.0, 312), "a800": Speed(2.0, 312), "a30": Speed(0.93, 165),
    "a10": Speed(0.6, 125), "a10g": Speed(0.6, 70), "a40": Speed(0.7, 150), "a5000": Speed(0.77, 111),
    "a6000": Speed(0.77, 155), "rtx3060": Speed(0.36, 26), "rtx3070": Speed(0.45, 41), "rtx3080": Speed(0.76, 60),
    "rtx3090": Speed(0.94, 71),
    "l4": Speed(0.3, 121), "l20": Speed(0.86, 119), "l40": Speed(0.86, 181), "l40s": Speed(0.86, 362),
    "rtx4060": Speed(0.27, 30), "rtx4070": Speed(0.5, 58), "rtx4080": Speed(0.72, 98), "rtx4090": Speed(1.01, 165),
    "rtx6000ada": Speed(0.96, 364),
    "h100": Speed(3.35, 989), "h800": Speed(3.35, 989), "h200": Speed(4.8, 989), "h20": Speed(4.0, 148),
    "gh200": Speed(4.0, 989),
    "b100": Speed(8.0, 1750), "b200": Speed(8.0, 2250), "gb200": Speed(8.0, 2500), "b300": Speed(8.0, 2250),
    "gb300": Speed(8.0, 2500),
    "rtx5070": Speed(0.67, 62), "rtx5080": Speed(0.96, 113), "rtx5090": Speed(1.79, 210),
    "rtxpro6000": Speed(1.79, 503),
    "mi210": Speed(1.6, 181), "mi250": Speed(1.6, 181), "mi250x": Speed(1.6, 191), "mi300a": Speed(5.3, 981),
    "mi300x": Speed(5.3, 1307), "mi325x": Speed(6.0, 1307), "mi350x": Speed(8.0, 2300), "mi355x": Speed(8.0, 2500),
}  # fmt: skip
"""By the name of a GPU; of one with several dies those of a die that is a device of its own."""

_USUAL: Mapping[str, str] = {
    "sm_80": "a100", "sm_86": "a6000", "sm_89": "l40s", "sm_90": "h100", "sm_100": "b200", "sm_103": "b300",
    "sm_120": "rtx5090", "gfx90a": "mi250x", "gfx942": "mi300x", "gfx950": "mi350x",
}  # fmt: skip
"""By architecture the GPU that stands for it where no name says which one it is, or nothing is listed of that."""


def speed_of(gpu: Gpu) -> tuple[str, Speed]:
    """Return the name of the GPU whose figures are taken for this one, and the figures."""
    name = gpu.name if gpu.name in SPEEDS else _USUAL[gpu.arch]
    return name, SPEEDS[name]
