"""Where the environments of SGLang are. Imports the standard library, and of specc what needs no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT)]

from engine_environment import Environment  # noqa: E402 (make_environment.py is run as a script)

from specc.engines.sglang import TESTED  # noqa: E402

NEWEST = TESTED[-1]
CHOICE = "SPECC_TEST_SGLANG"
"""The environment variable that says in which version of SGLang tests run; the newest if it does not."""
VERSION = os.environ.get(CHOICE) or NEWEST


def environment(version: str) -> Environment:
    """That of a version; all but the newest have SGLang alone, and everything else from that one's."""
    name = ".sglang" if version == NEWEST else f".sglang-{version}"
    return Environment(ROOT / name, "SGLang", {"SGLANG_USE_CPU_ENGINE": "1"})


ENVIRONMENT = environment(VERSION)
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
DEVICE = json.loads(READY.read_text()).get("device", "cpu") if READY.exists() else "cpu"
"""`cpu`, or `cuda` in an environment of `on_gpu.sh`."""
ON_GPU = DEVICE == "cuda"
BACKEND = os.environ.get("SPECC_TEST_BACKEND", "fa3")
"""The attention backend of engines on a GPU."""
DTYPE = os.environ.get("SPECC_TEST_DTYPE") or ("bfloat16" if ON_GPU else "float32")
"""The element type of engines."""
EXACT = DTYPE == "float32"
"""Whether texts are compared token for token: in 16 bits a near tie may go either way."""
ALONE = ON_GPU and EXACT
"""Whether engines have one attention backend, the one that knows float32."""
PRECISE = {"TRITON_F32_DEFAULT": "ieee", "NVIDIA_TF32_OVERRIDE": "0", "SGLANG_FORCE_FUSED_OP_BACKEND": "torch"}
"""Variables with which nothing multiplies 19 bits of a float32, and torch does what SGLang's kernels do not."""
GPUS = int(os.environ.get("SPECC_TEST_GPUS", "1")) if ON_GPU else 0
"""How many there are, among which engines of one rank are dealt out."""
AT_A_TIME = 4 * GPUS or 2
"""Engines."""
RANKS = GPUS or 4
"""As many as an engine may have."""


def printed(script: str, *words: str) -> str:
    """What a script of this folder prints for words in SGLang's environment, where Triton's kernels are interpreted."""
    variables = os.environ | ENVIRONMENT.variables | {"TRITON_INTERPRET": "1"}
    variables.pop("PYTHONPATH", None)
    command = [PYTHON, "-O", HERE / script, *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
