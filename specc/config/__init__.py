"""The configuration: keys and types, loading with places, completion from model directories, legality."""

from __future__ import annotations

from specc.config.load import LoadedConfig, load_config, load_text
from specc.config.models.pair import Fit, Pair
from specc.config.resolved import Config, ModelConfig
from specc.config.rules.draft_kind import ANY, DraftKind
from specc.config.rules.needs import Needs
from specc.config.schema import ARCHS, OUTPUTS, json_schema
from specc.config.text.locations import Locations

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
