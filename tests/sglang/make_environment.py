"""Make the environment of the real SGLang, `.sglang/`: it serves there on a CPU; `tests/conformance` runs its kernels.

    python tests/sglang/make_environment.py [--force]

Needs Python 3.11 or later and a package index, no GPU; takes 2.3 GB. Does nothing when the environment is there and
made of the same requirements. A torch for CPUs is enough; where pip finds one is up to its configuration. What
SGLang's CPU path needs and no index has is in `stand_ins/`, which is read where it is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys

from sglang_files import ENVIRONMENT, HERE, PYTHON, READY

REQUIREMENTS = HERE / "requirements.txt"
SGLANG = "sglang==0.5.23"
TORCHVISION = "torchvision==0.28.0"
STAND_INS = HERE / "stand_ins"
CHECK = """
import json, torch, sgl_kernel, xgrammar
from importlib.metadata import version
from sglang.srt.entrypoints import engine
from sglang.srt.speculative import eagle_worker_v2
print(json.dumps({"sglang": version("sglang"), "torch": torch.__version__, "sgl_kernel": sgl_kernel.__file__}))
"""


def main() -> None:
    """Make the environment unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="make it anew")
    if found() == digest() and not parser.parse_args().force:
        print(f"{ENVIRONMENT} is there: {READY.read_text().strip()}")
        return
    make()
    print(f"made {ENVIRONMENT}: {READY.read_text().strip()}")


def digest() -> str:
    """What the environment is made of."""
    return hashlib.sha256(REQUIREMENTS.read_bytes() + f"{SGLANG} {TORCHVISION} {HERE}".encode()).hexdigest()[:16]


def found() -> str | None:
    """What the environment that is there was made of."""
    return json.loads(READY.read_text()).get("digest") if READY.exists() else None


def make() -> None:
    """Create the environment, install, and try the imports."""
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    (ENVIRONMENT / ".gitignore").write_text("*\n", encoding="utf-8")
    print(f"installing what {SGLANG} imports, 2.3 GB in all", flush=True)
    install("--requirement", str(REQUIREMENTS))
    install("--no-deps", SGLANG, TORCHVISION)
    print("trying the imports", flush=True)
    site = run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    quiet_torchvision(site)
    # Behind site-packages in sys.path: a stand-in hides nothing real.
    with open(f"{site}/specc_stand_ins.pth", "w", encoding="utf-8") as file:
        file.write(f"{STAND_INS}\n")
    versions = json.loads(run("-c", CHECK).splitlines()[-1])
    if not versions.pop("sgl_kernel").startswith(str(STAND_INS)):
        raise SystemExit("the package index has an sgl_kernel of its own, which hides the one of stand_ins/")
    READY.write_text(json.dumps({**versions, "digest": digest()}) + "\n", encoding="utf-8")


def quiet_torchvision(site: str) -> None:
    """Let torchvision be imported, which SGLang does though only images need it.

    An index may have it built for CUDA: beside a torch for CPUs its library does not load, and to declare the shapes
    of its operators fails then. Nothing else is wrong with it.
    """
    if subprocess.run([str(PYTHON), "-c", "import torchvision"], capture_output=True, check=False).returncode:
        with open(f"{site}/torchvision/_meta_registrations.py", "w", encoding="utf-8"):
            pass


def install(*arguments: str) -> None:
    """Run pip inside the environment. That SGLang's requirements are not met is on purpose: no warnings about it."""
    quietly = ("--quiet", "--no-warn-conflicts", "--disable-pip-version-check")
    subprocess.run([str(PYTHON), "-m", "pip", "install", *quietly, *arguments], check=True)


def run(*arguments: str) -> str:
    """Run the environment's Python: what it prints."""
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run([str(PYTHON), *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"SGLang does not start:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
