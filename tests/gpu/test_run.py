"""`specc run` on a GPU: real models, real text, compared with what transformers' `generate` writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from .conftest import EXAMPLES, ROOT, Built

PROMPTS = ("def main():\n", "import os\nimport sys\n\n", "class Node:\n", "x", "for index in range(")
DRAFTS = {"standalone-chain": "standalone", "eagle-chain": "eagle"}


@pytest.mark.parametrize("name", sorted(DRAFTS))
def test_text_equals_generate(name: str, example: Callable[[str], Built]) -> None:
    pytest.importorskip("transformers")
    models = EXAMPLES / "models"
    command = [sys.executable, "-m", "specc.cli.main", "run", str(example(name).wheel), "--device", "cuda"]
    command += ["--target", str(models / "target"), "--draft", str(models / DRAFTS[name])]
    command += ["--check", "--format", "json", "--max-new-tokens", "48"]
    command += [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)
    assert [item["check"]["identical"] for item in record["completions"]] == [True] * len(PROMPTS)
    assert record["stats"]["mean_accept_len"] > 1.2
