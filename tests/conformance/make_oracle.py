"""Make the oracle's own virtual environment, `.oracle/`: SGLang's Triton kernels, to run in Triton's interpreter.

    python tests/conformance/make_oracle.py [--force]

Needs Python 3.11 or later and a package index, no GPU. Does nothing when the environment is there and complete. A torch
for CPUs is enough; where pip finds one is up to its configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from oracle_files import HERE, ORACLE, PYTHON, READY

# numpy 2.4 makes the interpreter of Triton 3.6 fail on scalars.
PINNED = ("torch==2.13.0", "triton==3.6.0", "numpy<2.4")
# SGLang pins another torch and requires all of a server; its speculative kernels import only what follows.
SGLANG = "sglang==0.5.23"
IMPORTED = (
    *("orjson", "psutil", "pybase64", "requests", "packaging", "pillow", "starlette"),
    *("msgspec", "pydantic", "pyzmq", "tqdm", "ipython", "aiohttp"),
)


def main() -> None:
    """Make the environment unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="make it anew")
    if READY.exists() and not parser.parse_args().force:
        print(f"{ORACLE} is there: {READY.read_text().strip()}")
        return
    make()
    print(f"made {ORACLE}: {READY.read_text().strip()}")


def make() -> None:
    """Create the environment, install, and try the imports."""
    shutil.rmtree(ORACLE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(ORACLE)], check=True)
    (ORACLE / ".gitignore").write_text("*\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text("\n".join(PINNED), encoding="utf-8")
        install(*PINNED)
        install("--no-deps", SGLANG)
        install("--constraint", str(pins), *IMPORTED)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [str(PYTHON), str(HERE / "oracle.py"), "--versions"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"the oracle does not start:\n{found.stderr}")
    READY.write_text(json.dumps(json.loads(found.stdout)) + "\n", encoding="utf-8")


def install(*arguments: str) -> None:
    """Run pip inside the environment. That SGLang's requirements are not met is on purpose: no warnings about it."""
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-warn-conflicts", *arguments]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
