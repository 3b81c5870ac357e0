"""Every example for every kind of GPU, and the kernels in the interpreter, under several releases of Triton.

    python tests/triton_versions.py 3.6.0 3.9.0 [--quick]

Each release is put into a folder of its own, before what is installed. --quick builds two chains and a tree for two
kinds of GPU, and tests some kernels, those of `make test`. Ends with exit code 1 where anything fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "triton"
RANDOM = "random-qwen3-chain"
"""The example whose models a script makes."""
QUICK = ("eagle-chain-budget", "eagle-tree", "dflash2-chain")
QUICK_TESTS = ("test_prepare.py", "test_vocab.py", "test_tree.py", "test_frontiers.py", "test_carry.py")


def main() -> int:
    """Go through the releases; the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="of Triton")
    parser.add_argument("--quick", action="store_true", help="a subset, for every change")
    given = parser.parse_args()
    if not given.quick:
        run({}, "examples/random_models.py", "build/random-qwen3")
    failed = [version for version in given.versions if not tried(version, given.quick)]
    print(f"{len(given.versions) - len(failed)} passed, {len(failed)} failed", *failed)
    return bool(failed)


def tried(version: str, quick: bool) -> bool:
    """Whether everything works under one release."""
    start = time.monotonic()
    environment = {"PYTHONPATH": os.pathsep.join([str(installed(version)), str(ROOT)])}
    imported = run(
        environment, "-c", "import triton, importlib.metadata as m; print(triton.__version__, m.version('triton'))"
    )
    if imported.stdout.split() != [version, version]:
        raise SystemExit(f"Triton {version} was installed, and Python finds {imported.stdout or imported.stderr}")
    archs = "sm_90,gfx942" if quick else "sm_80,sm_90,sm_100,gfx942"
    configs = [path for path in sorted((ROOT / "examples").glob("*.yaml")) if not quick or path.stem in QUICK]
    out = FOLDER / "out"
    built = [
        run(environment, "-m", "specc.cli.main", "build", str(path), "--arch", archs, "-o", str(out), "--quiet")
        for path in configs
    ]
    tests = [*(f"tests/kernels/{name}" for name in QUICK_TESTS), "-m", "not slow"] if quick else ["tests/kernels"]
    pytest = ["-m", "pytest", "-W", "error", "--timeout", "600", "tests/aot/test_compile.py", *tests]
    tested = run(environment, *pytest, "-n", "2")
    lines = tested.stdout.strip().splitlines()
    bad = [path.stem for path, done in zip(configs, built, strict=True) if done.returncode]
    print(f"Triton {version}: {len(configs)} configurations for {archs}, failed: {', '.join(bad) or 'none'}")
    print(f"Triton {version}: tests ended with {tested.returncode}: {lines[-1] if lines else tested.stderr}")
    for done in (*built, tested):
        if done.returncode:
            print(done.stdout, done.stderr)
    print(f"Triton {version}: {time.monotonic() - start:.0f} s", flush=True)
    return not bad and tested.returncode == 0


def installed(version: str) -> Path:
    """The folder with this release, installed if it is not there."""
    folder = FOLDER / version
    if not (folder / f"triton-{version}.dist-info").is_dir():
        pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder))
        done = run({}, *pip, f"triton=={version}")
        if done.returncode:
            raise SystemExit(f"Triton {version} cannot be installed: {done.stderr}")
    return folder


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository."""
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


if __name__ == "__main__":
    sys.exit(main())
