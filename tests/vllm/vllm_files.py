"""Where the environments of vLLM are, and what they run on.

Imports the standard library, and of specc what needs no more.
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT)]

from engine_environment import Environment  # noqa: E402 (make_environment.py is run as a script)

from specc.engines.vllm import TESTED  # noqa: E402

NEWEST = TESTED[-1]
CHOICE = "SPECC_TEST_VLLM"
"""The environment variable that says in which version of vLLM tests run; the newest if it does not."""
VERSION = os.environ.get(CHOICE) or NEWEST


def environment(version: str) -> Environment:
    """That of a version; all but the newest have vLLM alone, and everything else from that one's."""
    variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    return Environment(ROOT / (".vllm" if version == NEWEST else f".vllm-{version}"), "vLLM", variables)


ENVIRONMENT = environment(VERSION)
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
DEVICE = json.loads(READY.read_text()).get("device", "cpu") if READY.exists() else "cpu"
"""`cpu`, or `cuda` in an environment of `on_gpu.sh`."""
ON_GPU = DEVICE == "cuda"
