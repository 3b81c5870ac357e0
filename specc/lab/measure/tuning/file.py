"""The text of a tuning file: what was chosen, and in comments what it gained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.lab.measure.results.ratios import Ratio

HEAD = """\
# Written by specc tune: what was faster than specc's own choices by more than the noise, and gave the same bits.
# Figures are the time of specc's own choice over that of this one.
"""


LEAST_NOISE = 0.01
"""What two times may always differ by."""

LEAST_GAIN = 0.03
"""What a launch must gain alone: in a step its inputs come from elsewhere."""


def noise_of(itself: Ratio) -> float:
    """How far the default's time over its own is from 1, in the middle half of the samples."""
    return max(LEAST_NOISE, abs(itself.low - 1), abs(itself.high - 1))


@dataclass(frozen=True)
class Gain:
    """Of a launch or a step in one bucket: the default's time over the tuned one's, and over its own, the noise."""

    bucket: int
    ratio: Ratio
    noise: float

    @property
    def better(self) -> bool:
        """Whether the tuned one was faster by more than the noise, and enough to be so in a step, too."""
        return self.ratio.median > 1 + max(self.noise, LEAST_GAIN)

    @property
    def slower(self) -> bool:
        """Whether the tuned one was slower by more than two medians of the same differ."""
        return self.ratio.median < 1 - LEAST_NOISE / 2

    def __str__(self) -> str:
        return f"{self.ratio.median:.2f} at {self.bucket} (noise {self.noise:.2f})"


@dataclass(frozen=True)
class Found:
    """What was chosen for launches of one kernel, what specc would choose, and what it gained by bucket."""

    choices: tuple[LaunchChoice, ...]
    default: str
    gains: tuple[Gain, ...]

    def least(self, bucket: int) -> float:
        """The gain in a bucket; where that is not changed, the least anywhere."""
        here = [gain.ratio.median for gain in self.gains if gain.bucket == bucket]
        return min(here or [gain.ratio.median for gain in self.gains])


def tuning_text(tuning: Tuning, winners: Sequence[Found], steps: Mapping[str, Sequence[Gain]]) -> str:
    """A tuning file that reads back as ``tuning``; ``steps`` are the gains of whole steps by shape."""
    lines = [HEAD.rstrip()]
    for shape, gains in steps.items():
        several = f", shape {shape}" if len(steps) > 1 else ""
        lines.append(f"# a whole step, without the forwards{several}: {', '.join(map(str, gains))}")
    named = {"gpu": tuning.gpu, "arch": tuning.arch, "specc": tuning.specc, "triton": tuning.triton}
    lines += [f"{key}: {json.dumps(value)}" for key, value in named.items()]
    lines.append("launches:" if tuning.choices else "launches: []  # nothing was faster by more than the noise")
    for winner in winners:
        lines.append(f"  # instead of {winner.default}: {', '.join(map(str, winner.gains))}")
        launches: dict[str, list[str]] = {}
        for choice in winner.choices:
            launches.setdefault(_chosen(choice), []).append(choice.launch)
        lines += [_entry(names, chosen) for chosen, names in launches.items()]
    return "\n".join(lines) + "\n"


def _entry(launches: Sequence[str], chosen: str) -> str:
    return f"  - launch: {launches[0] if len(launches) == 1 else '[' + ', '.join(launches) + ']'}{chosen}"


def _chosen(choice: LaunchChoice) -> str:
    """What was chosen of a launch, a line each."""
    words = {"shape": choice.shape, "tile": choice.tile, "warps": choice.warps, "stages": choice.stages}
    lines = [f"{key}: {value}" for key, value in words.items() if value is not None]
    if choice.split:
        lines.append(f"split: {{{', '.join(f'{bucket}: {split}' for bucket, split in choice.split.items())}}}")
    return "".join(f"\n    {line}" for line in lines)
