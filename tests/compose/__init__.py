"""Programs composed otherwise than an algorithm composes them: everything compiles, and computes what its ops say.

Fakes and backends are those of other folders.
"""

import os
import sys
from pathlib import Path

if os.environ.get("SPECC_TEST_GPU") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton chooses when it is first imported

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(folder) for folder in (ROOT / "tests", ROOT / "tests" / "property")]
