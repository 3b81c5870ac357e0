"""An installed vLLM, asked what a command line makes of a server: by its own code for arguments."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.compiler.config.archs import Gpu
from specc.compiler.config.models import Fact
from specc.engines.vllm.check.command_line import Arguments
from specc.engines.vllm.check.preset import VLLM
from specc.engines.vllm.served import Server

SCRIPT = Path(__file__).with_name("answer.py")
SECONDS = 600
"""How long vLLM may take."""
_UNLOADED = "failed to be inspected"
"""What vLLM says of a class whose file it cannot import where it runs: some need the packages of a GPU."""
_SHOWN = 400
"""Most characters of vLLM's message that are shown."""
_VARIABLES = "VLLM_"
"""How the names of variables begin that vLLM is asked with."""


@dataclass(frozen=True)
class ServerAnswer:
    """What vLLM says of a server.

    Attributes:
        values: by name ``version``; ``facts``, the fields of a `Server`; ``num_steps``, ``max_requests``,
            ``largest_graph`` in tokens, 0 where nothing is captured, ``longest``, ``dtype``; ``page_size``, None where
            attention alone decides on it; ``options`` of the program, by name; ``hybrid``.

    """

    values: Mapping[str, Any]

    @property
    def origin(self) -> str:
        """Where its values come from."""
        return f"vLLM {self.values['version']} itself"

    @property
    def facts(self) -> Server:
        """Those on which it hangs whether programs are served."""
        return Server(**self.values["facts"])

    def fact(self, name: str) -> Fact | None:
        """Return a value with where it comes from; None where vLLM leaves it open."""
        value = self.values[name]
        return None if value is None else Fact(value, self.origin)


def case_of(arguments: Arguments, gpu: Gpu) -> dict[str, Any]:
    """Return what `answer.py` is given of a server: its own words, the GPU, and variables of vLLM's."""
    variables = {name: value for name, value in arguments.environment.items() if name.startswith(_VARIABLES)}
    return {"words": arguments.own, "arch": gpu.arch, "memory": gpu.memory, "environment": variables}


def ask(arguments: Arguments, gpu: Gpu, python: Path) -> ServerAnswer | None:
    """Return what the vLLM of a Python makes of the arguments on a GPU, or None after reporting why not.

    It runs in a process of its own, in which nothing is computed on a GPU and nothing is downloaded.
    """
    if not gpu.arch.startswith(VLLM.gpus):
        return None  # which is refused whatever vLLM says
    if gpu.is_cpu:
        arguments.wrong("--exact asks what vLLM does on a GPU", "leave it out, or name the server's GPU with --gpu")
        return None
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder, "job.json"), Path(folder, "out.json")
        job.write_text(json.dumps([case_of(arguments, gpu)]))
        command = [str(python), str(SCRIPT), str(job), str(out)]
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            failed = [{"error": ended.stderr[-_SHOWN:] or f"it ended with {ended.returncode}"}]
            (values,) = failed if ended.returncode else json.loads(out.read_text())
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            arguments.wrong(f"--exact: {error}", "give the Python of an environment with vLLM")
            return None
    if "error" in values:
        message = " ".join(str(values["error"]).split())[:_SHOWN]
        hint = "ask on a machine that serves this model, or leave --exact out" if _UNLOADED in message else None
        arguments.wrong(f"the vLLM of {python} refuses these arguments: {message}", hint)
        return None
    return ServerAnswer(values)
