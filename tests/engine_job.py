"""Jobs for real engines, each in a process of its own in the engine's environment."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from ruamel.yaml import YAML

LIMIT_S = 600
CONFIG = "program.yaml"
SPECC = (sys.executable, "-c", "from specc.cli.main import main; main()")


def run_job(
    script: Sequence[str],
    job: Mapping[str, Any],
    folder: Path,
    *,
    wheel: Path | None = None,
    settings: Mapping[str, str] | None = None,
    limit_s: int = LIMIT_S,
) -> tuple[dict[str, Any], str]:
    """Run `script JOB OUT` in a new folder, where job, answer and log are left: the answer and the log.

    `settings` are environment variables. A wheel is unpacked beside the job, and its program must be active.

    Raises RuntimeError with the end of the log when it exits with an error or takes longer than `limit_s`.
    """
    folder.mkdir(parents=True)
    given, out, log = folder / "job.json", folder / "out.json", folder / "log.txt"
    given.write_text(json.dumps(job))
    with log.open("w") as file:
        process = subprocess.Popen(
            [*script, str(given), str(out)],
            env=environment(folder, wheel) | dict(settings or {}),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            stop_group(process)
    output = log.read_text(errors="replace")
    if code != 0 or not out.exists():
        ended = f"took longer than {limit_s} s" if code is None else f"exited with {code}"
        raise RuntimeError(f"the engine of {folder.name} {ended}\n" + "\n".join(output.splitlines()[-60:]))
    return json.loads(out.read_text()), output


def environment(folder: Path, wheel: Path | None) -> dict[str, str]:
    """Of the engine's processes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPECC_", "TRITON_"))}
    if wheel is None:
        return kept
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return kept | {"PYTHONPATH": str(folder / "site"), "SPECC_PROGRAM": wheel.name.partition("-")[0]}


def plugin_wheel(code: str, folder: Path, group: str, wheels: Sequence[Path] = ()) -> Path:
    """A wheel with a plugin of an engine's group and all that is in other wheels, named as the first of these."""
    made = folder / (wheels[0].name if wheels else "specc_program_plugin-0.1.0-py3-none-any.whl")
    with ZipFile(made, "w") as archive:
        for wheel in wheels:
            with ZipFile(wheel) as source:
                for name in source.namelist():
                    archive.writestr(name, source.read(name))
        about = "specc_program_plugin-0.1.0.dist-info"
        archive.writestr("specc_program_plugin.py", code)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: specc-program-plugin\nVersion: 0.1.0\n")
        archive.writestr(f"{about}/entry_points.txt", f"[{group}]\nx = specc_program_plugin:register\n")
    return made


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of an engine: it has processes of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def specc(*words: str, beside: Path | None = None) -> str:
    """Run a command of specc's: what it said. RuntimeError with that when it fails.

    `beside` is a folder of packages that are installed for it, too.
    """
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), beside and str(beside))))
    ended = subprocess.run([*SPECC, *words], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if ended.returncode != 0:
        raise RuntimeError(f"specc {' '.join(words)}\n{ended.stdout}{ended.stderr}")
    return ended.stdout + ended.stderr


def first_program(
    engine: str, target: Path, draft: Path, flags: Sequence[str], folder: Path, *options: str
) -> tuple[list[str], Path]:
    """The command of a server and the wheel of its program, as somebody has them who comes with two models.

    `init` writes a configuration and prints the command. The server runs on a CPU, where it must have `flags`: so
    `check` writes the configuration again, for the command with these and with `options` of its own, and `build`
    compiles it in the folder.

    RuntimeError with what specc said. AssertionError unless `check` writes for the command alone what `init` has.
    """
    config = str(folder / CONFIG)
    command = initialised(engine, target, draft, folder)
    proposed = YAML(typ="safe").load(Path(config))
    asked = ("--verify", proposed["verify"], "--sampling", ",".join(proposed["sampling"]), "--name", proposed["name"])
    specc(engine, "check", "-o", config, *asked, "--", *command)
    assert YAML(typ="safe").load(Path(config)) == proposed
    specc(engine, "check", "-o", config, *asked, *options, "--", *command, *flags)
    return [*command, *flags], built(folder)


def by_init(engine: str, target: Path, draft: Path, folder: Path, site: Path) -> tuple[list[str], Path]:
    """The same by `init` and `build` alone, where the server needs no flags: the command as it is printed.

    Specc is installed beside the engine, as people have it: of the packages in `site` it sees that the engine is one.
    """
    seen = folder / "seen"
    seen.mkdir()
    [about] = site.glob(f"{engine}-*.dist-info")
    (seen / about.name).symlink_to(about)
    return initialised(engine, target, draft, folder, seen), built(folder)


def initialised(engine: str, target: Path, draft: Path, folder: Path, beside: Path | None = None) -> list[str]:
    """The command of a server that `init` prints, when it has written the configuration into the folder."""
    words = (str(target), str(draft), "--engine", engine, "-o", str(folder / CONFIG))
    output = specc("init", *words, beside=beside)
    match = re.search(r"^the server: (.*)$", output, re.MULTILINE)
    return shlex.split(match[1] if match else "")


def built(folder: Path) -> Path:
    """The wheel of the configuration in a folder."""
    specc("build", str(folder / CONFIG), "-o", str(folder), "--quiet")
    return next(folder.glob("*.whl"))
