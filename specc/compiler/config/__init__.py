"""The configuration: keys and types, loading with places, completion from model directories, legality."""

from __future__ import annotations

from specc.compiler.config.load import LoadedConfig, load_config, load_text
from specc.compiler.config.models.pair import Fit, Pair
from specc.compiler.config.resolved import Config, ModelConfig
from specc.compiler.config.rules.draft_kind import ANY, DraftKind
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.schema import ARCHS, OUTPUTS, json_schema
from specc.compiler.config.text.locations import Locations

__all__ = [
    "ANY",
    "ARCHS",
    "OUTPUTS",
    "Config",
    "DraftKind",
    "Fit",
    "LoadedConfig",
    "Locations",
    "ModelConfig",
    "Needs",
    "Pair",
    "json_schema",
    "load_config",
    "load_text",
]
