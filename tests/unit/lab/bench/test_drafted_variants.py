"""Servers of bench/sglang whose drafts are no single head's: their configurations say what specc says of them."""

from dataclasses import asdict
from pathlib import Path

import models
import pytest
import variants

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.config.archs import gpu_of
from specc.compiler.config.wanted import Wanted
from specc.engines.sglang.check.command_line import parse
from specc.engines.sglang.check.server import started
from specc.engines.sglang.check.written import configuration

FOLDER = Path(__file__).parents[4] / "bench" / "sglang"
DECIDES = ("model_path", "dtype", "context_length", "max_running_requests", "cuda_graph_bs_decode", "page_size")
"""Arguments on which a program hangs, beside those of speculation."""
ATTENTION = {"gemma_target": "triton", "v4_target": "dsv4"}
"""What SGLang verifies with by itself where it is not fa3."""
LEFT_OUT = {"model", "aux_layers", "num_aux_layers", "experts_per_token", "token_map", "state"}
"""What a configuration of sizes need not say of models, but for the layers that a target hands over."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    models.drafted(made, made)
    models.llama(made, made)
    return made


def words(engine):
    """The command line of a server with these arguments."""
    for name, value in engine.items():
        if name in DECIDES or name.startswith("speculative_"):
            yield f"--{name.replace('_', '-')}"
            yield from map(str, value if isinstance(value, list) else [value])


EVERY = (*variants.drafted_variants(), *variants.loaded_variants(), *variants.budgeted_variants())
SERVED = [variant for variant in EVERY if variant.program]


@pytest.mark.parametrize("variant", SERVED, ids=lambda each: each.name)
def test_a_configuration_is_that_of_its_server(variant, folder, tmp_path):
    parsed = parse([*words(variant.engine(folder, "cuda"))])
    server = started(parsed, gpu_of("h100"))
    assert server.facts.attention["verify"] == ATTENTION.get(variant.models.target, "fa3")
    written = load_config(FOLDER / "configs" / f"{variant.config}.yaml", names(), needs).config
    mapped = folder / variant.program_map if variant.program_map else None
    products = server.kind.blocks and written.shape.is_tree
    chains = ",".join(map(str, written.file.num_steps)) if len(written.file.num_steps) > 1 else ""
    wanted = Wanted(
        variant.config,
        head=written.draft.head if written.draft else "engine",
        token_map=mapped,
        states=written.target.state_form,
        budget=",".join(map(str, written.file.budget or ())),
        shapes=str(written.shape) if products else chains,
    )
    (tmp_path / "derived.yaml").write_text(configuration(parsed, server, wanted))
    derived = load_config(tmp_path / "derived.yaml", names(), needs).config
    assert ("SPECC_TOKEN_MAP" in variant.environment(folder)) == (mapped is not None)
    assert (written.algorithm, written.shape) == (derived.algorithm, derived.shape)
    shape = written.shape.num_steps, written.shape.topk, written.shape.num_nodes
    assert shape[2:] == variant.shape[2:] if products else shape == variant.shape
    assert (written.file.mask, written.file.page_size) == (derived.file.mask, derived.file.page_size)
    assert written.buckets_of == derived.buckets_of
    assert written.max_requests > derived.max_requests
    assert written.target.aux_layers == derived.target.aux_layers
    for mine, of_models in ((written.target, derived.target), (written.draft, derived.draft)):
        assert (mine is None) == (of_models is None)
        if mine is not None:
            sizes = asdict(mine).items() - {(name, asdict(mine)[name]) for name in LEFT_OUT}
            assert sizes <= asdict(of_models).items()
