"""The programs of the benchmark: programs.py OUT [--size SIZE] [--drawn] [KIND ...]

Writes a configuration for each kind of draft, and builds its wheel into OUT. specc reads what it needs of the models
from their config.json, which models.py knows without making weights. With --drawn programs draw.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import ENGINES, KINDS, STEPS
from models import SIZES, configs, write_map

ALGORITHMS = {"draft": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "head": "EAGLE", "ngram": "NGRAM"}
DRAWS = {"verify": "target_only", "sampling": ["top_k", "top_p"], "draft_sampling": "coupled"}


def configuration(kind: str, size: str, drawn: bool, models: Path) -> dict[str, Any]:
    """A configuration, as YAML has it."""
    engine, batches = ENGINES[size]
    speculation = KINDS[kind]
    written: dict[str, Any] = {
        "name": "_".join(("bench_vllm", size, *["drawn"] * drawn, kind)),
        "engine": "vllm",
        "algorithm": ALGORITHMS[kind],
        "page_size": engine["block_size"],
        "num_steps": STEPS,
        "buckets": [2**power for power in range(max(batches).bit_length())],
        "archs": ["sm_90"],
        "target": {"model": str(models / "target")},
    }
    written |= DRAWS if drawn else {"verify": "greedy"}
    if kind == "ngram":
        shortest, longest = speculation["prompt_lookup_min"], speculation["prompt_lookup_max"]
        options = {"window": engine["max_model_len"], "shortest": shortest, "longest": longest}
        written.pop("draft_sampling", None)
        return written | {"options": options}
    written["draft"] = {"model": str(models / speculation["model"])}
    if kind == "head":
        written["draft"] |= {"token_map": str(models / "common.json"), "head": "fp8"}
    return written


def main(out: Path, size: str, drawn: bool, kinds: list[str]) -> None:
    """Build all."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, about in configs(size).items():
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(about))
        write_map(folder, size)
        for kind in kinds:
            config = folder / f"{kind}.yaml"
            config.write_text(json.dumps(configuration(kind, size, drawn, folder)))
            subprocess.run([sys.executable, "-m", "specc.cli.main", "build", str(config), "-o", str(out)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--drawn", action="store_true")
    given = parser.parse_intermixed_args()
    main(given.out, given.size, given.drawn, given.kinds or list(KINDS))
