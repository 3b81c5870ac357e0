"""Where SGLang's environment is. Imports the standard library only."""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from engine_environment import Environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENT = Environment(ROOT / ".sglang", "SGLang", {"SGLANG_USE_CPU_ENGINE": "1"})
PYTHON, READY = ENVIRONMENT.python, ENVIRONMENT.ready
DEVICE = json.loads(READY.read_text()).get("device", "cpu") if READY.exists() else "cpu"
"""`cpu`, or `cuda` in an environment of `on_gpu.sh`."""
ON_GPU = DEVICE == "cuda"
BACKEND = os.environ.get("SPECC_TEST_BACKEND", "fa3")
"""The attention backend of engines on a GPU."""
