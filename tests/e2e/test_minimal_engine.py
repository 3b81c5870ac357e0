"""examples/minimal_engine.py: short, without specc, and its texts are those of `generate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from .conftest import ROOT, install, run_command

EXAMPLE = ROOT / "examples" / "minimal_engine.py"
WITHOUT_SPECC = """
import runpy
import sys
for absent in ("specc", "jinja2", "networkx", "triton", "pydantic", "platformdirs"):
    sys.modules[absent] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 100


def test_its_texts_are_those_of_generate(tmp_path: Path) -> None:
    run_command("specc.cli.main", "build", "examples/standalone-chain.yaml", "-o", str(tmp_path), "--emit", "wheel")
    install(tmp_path / "site", *tmp_path.glob("*.whl"))
    command = [sys.executable, "-W", "error", "-c", WITHOUT_SPECC, str(EXAMPLE), "specc_program_standalone_chain"]
    place = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{text}\n-- as generate writes it\n\n" for text in generated())


def generated() -> list[str]:
    """What the target alone writes after the prompts of the examples."""
    folder = ROOT / "examples" / "models" / "target"
    tokenizer, target = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    texts: list[str] = []
    for prompt in json.loads((ROOT / "examples" / "prompts.json").read_text()):
        sequences = target.generate(**tokenizer(prompt, return_tensors="pt"), do_sample=False, max_new_tokens=48)
        texts.append(tokenizer.decode(sequences[0], skip_special_tokens=True))
    return texts
