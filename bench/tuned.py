"""A program as a tuning file has it beside the same program as specc builds it, launch by launch.

    python bench/tuned.py CONFIG [--json FILE]

CONFIG has a line `tuning:`. Both must leave the same bits before anything is timed; ratios are the default's time over
the tuned one's, and noise is the default's over its own. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.driver.build import build_program
from specc.lab.measure.session import on
from specc.lab.measure.tuning.file import Gain, noise_of
from specc.lab.measure.tuning.search import THOROUGH, Bench, TunedShape, cut
from specc.lab.measure.tuning.tuned import step_gains
from specc.lab.measure.tuning.variants import DEFAULT, Variant, compiled, with_choices


def main() -> None:
    """Compare the deepest program of a configuration with itself untuned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    loaded = load_config(options.config, names(), needs)
    if loaded.config.tuning is None or not torch.cuda.is_available():
        raise SystemExit("it takes a configuration with a line 'tuning:', and a GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    with tempfile.TemporaryDirectory() as folder:
        sides: list[Variant] = []
        for name, configured in (("default", with_choices(loaded, loaded.config.tuning, ())), ("tuned", loaded)):
            made = compiled(build_program(configured), 0, DEFAULT, Path(folder, name), device)
            assert made is not None
            sides.append(made)
        default, tuned = sides
        gains = {
            f"step at {gain.bucket}": gain for gain in step_gains(default, tuned, loaded.config.file.buckets, device)
        }
        gains |= launches(default, tuned, loaded.config.file.buckets, device)
    for name, gain in gains.items():
        print(f"{name:32} {gain.ratio} noise {gain.noise:.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps({name: asdict(gain) for name, gain in gains.items()}, indent=2) + "\n")


def launches(default: Variant, tuned: Variant, buckets: tuple[int, ...], device: torch.device) -> dict[str, Gain]:
    """Every launch that differs."""
    chosen = {choice.launch for choice in tuned.built.loaded.config.tuning.choices}
    gains: dict[str, Gain] = {}
    shape = TunedShape({DEFAULT: default}, {}, buckets, device)
    with on(device):
        for bucket in buckets:
            session = shape.session(bucket, default)
            for node in session.launches():
                if node.name in chosen:
                    bench, tuned_node = Bench(session, node), cut(tuned, node, bucket)
                    assert bench.equal(tuned, tuned_node), f"{node.name} at {bucket}"
                    graph, twin = bench.graph(default, node), bench.graph(default, node)
                    noise = noise_of(bench.gain(graph, twin, THOROUGH))
                    ratio = bench.gain(graph, bench.graph(tuned, tuned_node), THOROUGH)
                    gains[f"{node.name} at {bucket}"] = Gain(bucket, ratio, noise)
    return gains


if __name__ == "__main__":
    main()
