"""Loading: nothing is compiled, and a GPU that the wheel was not built for is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import EXAMPLES, Built

# Loads a program and tells what was imported and which processes were started meanwhile.
LOAD = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.zeros(1, device="cuda")
before, started, popen = set(sys.modules), [], subprocess.Popen.__init__
def record(self, arguments, *rest, **keywords):
    started.append(str(arguments))
    popen(self, arguments, *rest, **keywords)
subprocess.Popen.__init__ = record
package = __import__(sys.argv[2])
program = package.load("cuda")
modules = sorted(set(sys.modules) - before)
print(json.dumps({"modules": modules, "started": started, "device": str(program.device)}))
"""


def load_in_a_process(built: Built, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Load a program in a fresh interpreter, with nothing of this checkout on its path."""
    command = [sys.executable, "-I", "-c", LOAD, str(built.site), built.name]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["standalone-chain", "llama-8b-eagle"])
def test_load_compiles_nothing(name: str, example: Callable[[str], Built], tmp_path: Path) -> None:
    done = load_in_a_process(example(name), tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["device"].startswith("cuda:")
    packages = {module.partition(".")[0] for module in report["modules"]}
    assert not packages & {"triton", "specc", "jinja2"}
    compilers = ("ptxas", "nvcc", "gcc", "clang", "/cc")
    assert not [command for command in report["started"] if any(name in command for name in compilers)]


def test_an_arch_that_is_missing_is_named(build: Callable[..., Built], arch: str, device: object) -> None:
    missing = "sm_80" if arch != "sm_80" else "sm_90"
    path = EXAMPLES / "llama-8b-eagle.yaml"
    text = path.read_text(encoding="utf-8").replace("name: llama_8b_eagle", "name: other_arch")
    package = build(text, (missing,), path).load_module()
    with pytest.raises(package.UnsupportedDeviceError) as caught:
        package.load(device)
    assert arch in str(caught.value)
    assert missing in str(caught.value)
    assert package.load("cpu").device.type == "cpu"
