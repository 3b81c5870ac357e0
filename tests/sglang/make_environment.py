"""Make the environment of the real SGLang, `.sglang/`: it serves there on a CPU; `tests/conformance` runs its kernels.

    [SPECC_TEST_SGLANG=0.5.22] python tests/sglang/make_environment.py [--force]

Needs Python 3.11 or later and a package index, no GPU; takes 2.3 GB. Does nothing when the environment is there and
made of the same requirements. A torch for CPUs is enough; where pip finds one is up to its configuration. What
SGLang's CPU path needs and no index has is in `stand_ins/`, which is read where it is. That of an older version,
`.sglang-0.5.22/`, has SGLang alone, 0.3 GB, and finds everything else in `.sglang/`, which is made first.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from sglang_files import ENVIRONMENT, HERE, NEWEST, VERSION, Environment, environment

REQUIREMENTS = HERE / "requirements.txt"
TORCHVISION = "torchvision==0.28.0"
BASE = environment(NEWEST)
STAND_INS = HERE / "stand_ins"
CHECK = """
import json, torch, sgl_kernel, xgrammar
from importlib.metadata import version
from sglang.srt.entrypoints import engine, http_server
from sglang.srt.speculative import eagle_worker_v2
print(json.dumps({"sglang": version("sglang"), "torch": torch.__version__, "sgl_kernel": sgl_kernel.__file__}))
"""


def fill() -> dict[str, str]:
    """Install the newest version and what it imports, and try the imports: the versions."""
    print(f"installing what SGLang {NEWEST} imports, 2.3 GB in all", flush=True)
    BASE.install("--requirement", str(REQUIREMENTS))
    BASE.install("--no-deps", f"sglang=={NEWEST}", TORCHVISION)
    site = BASE.site
    quiet_torchvision(site)
    # Behind site-packages in sys.path: a stand-in hides nothing real.
    (site / "specc_stand_ins.pth").write_text(f"{STAND_INS}\n", encoding="utf-8")
    return tried(BASE, NEWEST)


def fill_older() -> dict[str, str]:
    """Install an older version beside what the newest imports, and try the imports: the versions."""
    print(f"installing SGLang {VERSION}, 0.3 GB", flush=True)
    ENVIRONMENT.install("--no-deps", f"sglang=={VERSION}")
    ENVIRONMENT.build_on(BASE)
    return tried(ENVIRONMENT, VERSION)


def tried(made: Environment, version: str) -> dict[str, str]:
    """Try the imports: the versions. SystemExit when others are imported than were meant."""
    print("trying the imports", flush=True)
    versions = json.loads(made.run("-c", CHECK).splitlines()[-1])
    if not versions.pop("sgl_kernel").startswith(str(STAND_INS)):
        raise SystemExit("the package index has an sgl_kernel of its own, which hides the one of stand_ins/")
    if versions["sglang"] != version:
        raise SystemExit(f"SGLang {version} was installed, and {versions['sglang']} is found")
    return versions


def quiet_torchvision(site: Path) -> None:
    """Let torchvision be imported, which SGLang does though only images need it.

    An index may have it built for CUDA: beside a torch for CPUs its library does not load, and to declare the shapes
    of its operators fails then. Nothing else is wrong with it.
    """
    if subprocess.run([str(BASE.python), "-c", "import torchvision"], capture_output=True, check=False).returncode:
        (site / "torchvision" / "_meta_registrations.py").write_text("", encoding="utf-8")


if __name__ == "__main__":
    digest = BASE.digest(REQUIREMENTS, f"sglang=={NEWEST}", TORCHVISION, HERE)
    if VERSION == NEWEST or BASE.found() != digest:
        BASE.make(__doc__, digest, fill)
    if VERSION != NEWEST:
        ENVIRONMENT.make(__doc__, BASE.digest(REQUIREMENTS, VERSION, digest), fill_older)
