"""From a loaded configuration to a finished module: what every command that compiles does first."""

from __future__ import annotations

from collections.abc import Sequence

from specc.config import LoadedConfig, ModelConfig
from specc.ir.core import Module
from specc.ir.plan import KvPool, Options
from specc.passes.base import Context
from specc.passes.instruments import CheckEach
from specc.passes.manager import Instrument, run_passes
from specc.passes.pipeline import default_passes


def start_module(loaded: LoadedConfig) -> Module:
    """The module before the first pass: options and one ``spec.step``."""
    config = loaded.config
    module = Module(config.name)
    module.decls.append(Options("config", config.buckets, config.page_size, config.verify, config.archs))
    module.decls += [_kv_pool(owner, model) for owner, model in config.models.items()]
    attrs = {"algorithm": config.algorithm}
    module.add_op("prepare", "spec.step", (), (), attrs, loaded.location("algorithm"))
    return module


def _kv_pool(owner: str, model: ModelConfig) -> KvPool:
    buffers = 1 if model.kv_layout == "mla" else 2
    return KvPool(owner, model.num_layers, buffers, model.kv_row_bytes, model.kv_dtype)


def compile_module(loaded: LoadedConfig, instruments: Sequence[Instrument] = ()) -> tuple[Module, Context]:
    """Run every pass that comes before code generation, with the checker after each.

    Raises:
        DiagnosticError: the configuration cannot be built, with sources and paths filled in by whoever prints.

    """
    module, ctx = start_module(loaded), Context(loaded)
    run_passes(module, default_passes(), ctx, [CheckEach(), *instruments])
    return module, ctx


def check_config(loaded: LoadedConfig) -> Context:
    """What ``specc check`` runs: everything short of code generation."""
    return compile_module(loaded)[1]
