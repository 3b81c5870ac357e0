"""What `specc tune --shapes` does: a program, its models and the reference engine, whose steps are timed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from specc.compiler.codegen.cache import Cache
from specc.compiler.config import LoadedConfig
from specc.compiler.driver.build import build_program, compile_machine_code
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.lab.commands.reference import started
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.loading import load_corpus, load_draft, load_target
from specc.lab.engine.observe.step_times import keep_times, step_times
from specc.lab.engine.wheel import load_program, package
from specc.runtime.plan.shape import Shape


def time_shapes(
    loaded: LoadedConfig, device: torch.device, place: Path, begin: Callable[[str], object]
) -> dict[Shape, Mapping[int, float]]:
    """Milliseconds of a step by shape and bucket, which are written to a file, too.

    Args:
        loaded: a configuration for this GPU whose models are there.
        device: the GPU.
        place: the file.
        begin: hears what is done next.

    Raises:
        DiagnosticError: it does not compile, its models cannot be run, or ``emit/io``.

    """
    build = build_program(loaded)
    compile_machine_code(build, loaded.config.archs, cache=Cache.default())
    with tempfile.TemporaryDirectory(prefix="specc-shapes-") as folder:
        (wheel,) = emit_wheel(build, Path(folder))
        with package(str(wheel)) as module:
            begin("loading the models")
            engine = _engine(loaded, load_program(module, str(device)), device)
            begin("timing steps")
            times = step_times(engine)
            keep_times(engine, times, place)
            return dict(times)


def _engine(loaded: LoadedConfig, program: Any, device: torch.device) -> Engine:
    """The reference engine on the configuration's models."""
    config, directory, draft = loaded.config, loaded.model_dir("target"), loaded.model_dir("draft")
    assert directory is not None  # `specc tune` has asked for it
    target = load_target(directory, program.plan, str(device))
    corpus = getattr(config.options, "corpus", None)
    tables = {} if corpus is None else {"corpus": load_corpus(loaded.path.parent / corpus, target)}
    drafter = None if draft is None else load_draft(draft, program.plan, target)
    return started(program, target, drafter, tables=tables)
