"""Environments of real engines, made from a package index; what the ones in `sglang/` and `vllm/` share.

Imports the standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a folder, with what the engine's processes need in `variables`."""

    folder: Path
    engine: str
    variables: Mapping[str, str]

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"

    @property
    def ready(self) -> Path:
        """Written last: the sign that the environment is complete."""
        return self.folder / "versions.json"

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    @staticmethod
    def digest(requirements: Path, *others: object) -> str:
        """What an environment is made of, in 16 digits: a file of requirements, and whatever else it depends on."""
        text = requirements.read_bytes() + " ".join(map(str, others)).encode()
        return hashlib.sha256(text).hexdigest()[:16]

    def found(self) -> str | None:
        """The digest of what the environment that is there was made of."""
        return json.loads(self.ready.read_text()).get("digest") if self.ready.exists() else None

    def create(self) -> None:
        """Make an empty one in the place of what is there; a link to another's is no longer one."""
        if self.folder.is_symlink():
            self.folder.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")

    def install(self, *arguments: str) -> None:
        """Let pip install. That an engine's requirements are not all met is on purpose: no warnings about it."""
        self._pip("install", "--no-warn-conflicts", *arguments)

    def build_on(self, base: Environment) -> None:
        """Find in `base` all packages that are not in this one."""
        line = f"import site; site.addsitedir({str(base.site)!r})\n"
        (self.site / "specc_base.pth").write_text(line, encoding="utf-8")

    def download(self, requirement: str, folder: Path) -> Path:
        """Let pip put a package's wheel into a new folder, without what it requires."""
        self._pip("download", "--no-deps", "--only-binary=:all:", f"--dest={folder}", requirement)
        return next(folder.glob("*.whl"))

    def _pip(self, command: str, *arguments: str) -> None:
        quietly = ("--quiet", "--disable-pip-version-check")
        subprocess.run([str(self.python), "-m", "pip", command, *quietly, *arguments], check=True)

    def run(self, *arguments: str) -> str:
        """Run its Python: what it prints. SystemExit with all of it when that fails."""
        environment = {**os.environ, **self.variables}
        command = [str(self.python), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.engine} does not start:\n{done.stdout}{done.stderr}")
        return done.stdout

    def make(self, about: str, wanted: str, fill: Callable[[], Mapping[str, str]]) -> None:
        """The command that makes it, unless it is there and of the digest `wanted`; it waits for whoever does so.

        `fill` installs what belongs into an empty one, tries it, and returns the versions.
        """
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--force", action="store_true", help="make it anew")
        given = parser.parse_args()
        with self.folder.with_name(f"{self.folder.name}-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run beside each other want one environment
            if self.found() == wanted and not given.force:
                print(f"{self.folder} is there: {self.ready.read_text().strip()}")
                return
            self.create()
            self.ready.write_text(json.dumps({**fill(), "digest": wanted}) + "\n", encoding="utf-8")
            print(f"made {self.folder}: {self.ready.read_text().strip()}")
