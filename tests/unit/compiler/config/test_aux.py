"""Which layers a target hands over, and what a draft's config.json says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specc.compiler.config import Needs, load_text
from specc.compiler.support.aux_layers import are_layers, evenly_spread, three_levels

from .conftest import VALID, Find, Load, Model
from .test_models import LLAMA, TEXT

EAGLE3 = TEXT.replace("STANDALONE", "EAGLE3").replace("draft:\n  model: m", "draft:\n  model: d")
HEAD = LLAMA | {"num_hidden_layers": 1}
LAYERS = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}


@pytest.mark.parametrize(
    ("count", "layers"), [(6, None), (7, (2, 3, 4)), (32, (2, 16, 29)), (36, (2, 18, 33)), (4, None)]
)
def test_the_usual_layers(count: int, layers: tuple[int, ...] | None) -> None:
    usual = three_levels(count)
    assert (usual if are_layers(usual, count) else None) == layers


@pytest.mark.parametrize(
    ("count", "own", "layers"),
    [(12, 5, (2, 4, 6, 8, 10)), (36, 5, (2, 10, 18, 26, 34)), (9, 1, (5,)), (5, 2, (2, 3)), (4, 2, None), (6, 4, None)],
)
def test_the_usual_layers_of_a_block_drafter(count: int, own: int, layers: tuple[int, ...] | None) -> None:
    """The published Qwen3-8B-DFlash-b16, of five layers, lists those of the second."""
    usual = evenly_spread(count, own)
    assert (usual if are_layers(usual, count) else None) == layers


def test_layers_come_from_the_drafts_model(load: Load, model: Model) -> None:
    """There they count from 0."""
    model(**LLAMA)
    model("d", **HEAD, **LAYERS, target_hidden_size=256)
    config = load(EAGLE3).config
    assert (config.target.hidden_source, config.target.aux_layers, config.target.spec_width) == ("aux", (2, 3, 4), 768)
    assert (config.draft.num_aux_layers, config.draft.target_hidden_size, config.draft.aux_width) == (3, 256, 768)
    assert config.draft.spec_width == 256


def test_layers_may_be_counted_only(load: Load, model: Model) -> None:
    model(**LLAMA | {"num_hidden_layers": 32})
    model("d", **HEAD, num_aux_hidden_states=2)
    text = EAGLE3.replace("  model: m", "  model: m\n  aux_layers: [3, 30]")
    config = load(text).config
    assert (config.target.aux_layers, config.draft.num_aux_layers, config.draft.aux_layers) == ((3, 30), 2, None)


def test_layers_in_the_first_level(load: Load, model: Model) -> None:
    model(**LLAMA)
    model("d", **HEAD, eagle_aux_hidden_state_layer_ids=[0, 3])
    assert load(EAGLE3).config.target.aux_layers == (1, 4)


def test_other_layers_than_the_draft_was_trained_on(find: Find, model: Model) -> None:
    model(**LLAMA)
    model("d", **HEAD, **LAYERS)
    (diagnostic,) = find(EAGLE3.replace("  model: m", "  model: m\n  aux_layers: [1, 2, 3]"))
    assert diagnostic.code == "config/model-contradiction"
    assert [note.message for note in diagnostic.notes] == ["the model reads layers 2, 3, 4"]


def test_layers_that_the_target_has_not(find: Find, model: Model) -> None:
    """They stand in no line of the file: the draft's model is shown."""
    model(**LLAMA | {"num_hidden_layers": 3})
    model("d", **HEAD, **LAYERS)
    (diagnostic,) = find(EAGLE3)
    assert (diagnostic.code, diagnostic.location and diagnostic.location.line) == ("config/out-of-range", 6)


def test_a_number_of_layers_beside_the_model(find: Find, model: Model) -> None:
    model(**LLAMA)
    model("d", **HEAD, **LAYERS)
    (diagnostic,) = find(EAGLE3 + "  num_aux_layers: 2\n")
    assert diagnostic.code == "config/model-contradiction"


def test_an_algorithm_of_ones_own_may_want_layers() -> None:
    text = VALID.replace("algorithm: EAGLE", "algorithm: MINE")
    sources = [
        load_text(
            text, Path("c.yaml"), ("MINE",), lambda name, wanted=wanted: Needs(target_hidden=wanted)
        ).config.target.hidden_source
        for wanted in ("aux", None)
    ]
    assert sources == ["aux", "collapsed"]


# --- widths of drafts, by what they say and leave out ----------------------------------------------------------------

USUAL = {1: (7,), 2: (2, 10), 3: (2, 6, 10), 7: (2, 3, 5, 6, 7, 9, 10)}
"""Layers of a block drafter -> layers of a target of 12 that SGLang's `build_target_layer_ids` gives it, from 1."""
DEEP = LLAMA | {"num_hidden_layers": 12}
TWO = [3, 8]
"""Layers of a target, as a draft of any depth may list them, from 0."""


def drafting(algorithm: str) -> str:
    """A configuration of a target `m` and a draft `d` that a directory alone describes."""
    return EAGLE3.replace("EAGLE3", algorithm)


@pytest.mark.parametrize("depth", USUAL)
@pytest.mark.parametrize("holder", ["no list", "dflash_config", "beside it", "a null", "an empty list"])
def test_rows_of_a_block_drafter(load: Load, model: Model, depth: int, holder: str) -> None:
    """Where it lists layers they count, whatever its own depth; otherwise it reads as many as it has."""
    block: dict[str, Any] = {"mask_token_id": 1, "use_aux_hidden_state": True}
    lists: dict[str, dict[str, Any]] = {
        "no list": {"dflash_config": block},
        "dflash_config": {"dflash_config": block | {"target_layer_ids": TWO}},
        "beside it": {"dflash_config": block, "target_layer_ids": TWO},
        "a null": {"dflash_config": block | {"target_layer_ids": None}},
        "an empty list": {"dflash_config": block | {"target_layer_ids": []}},
    }
    model(**DEEP)
    model("d", **LLAMA | {"architectures": ["DFlashDraftModel"], "num_hidden_layers": depth} | lists[holder])
    config = load(drafting("DFLASH")).config
    layers = (4, 9) if holder in ("dflash_config", "beside it") else USUAL[depth]
    assert (config.target.hidden_source, config.target.aux_layers) == ("aux", layers)
    assert config.models["draft"].num_aux_layers == len(layers)
    assert config.target.spec_width == config.models["draft"].aux_width == 256 * len(layers)


@pytest.mark.parametrize("depth", [2, 7])
def test_a_target_of_too_few_layers_for_a_block_drafter(find: Find, model: Model, depth: int) -> None:
    model(**LLAMA | {"num_hidden_layers": 3})
    model("d", **LLAMA | {"architectures": ["DFlashDraftModel"], "num_hidden_layers": depth})
    (diagnostic,) = find(drafting("DFLASH"))
    assert (diagnostic.code, "needs aux_layers" in diagnostic.message) == ("config/missing-key", True)


@pytest.mark.parametrize("listed", [None, [], TWO], ids=["no list", "an empty list", "two"])
@pytest.mark.parametrize("reads", [True, False, None], ids=["aux", "last row", "not said"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLMEagle3", "Eagle3Qwen3ForCausalLM", "LlamaForCausalLM"])
def test_rows_of_a_head_of_eagle3(
    load: Load, model: Model, architecture: str, reads: bool | None, listed: list[int] | None
) -> None:
    """A head that says so reads the target's last row; any other reads the layers that it lists, or the usual three."""
    said = {"use_aux_hidden_state": reads, "eagle_aux_hidden_state_layer_ids": listed}
    block = {key: value for key, value in said.items() if value is not None}
    model(**DEEP)
    model("d", **HEAD | {"architectures": [architecture], "eagle_config": block, "draft_vocab_size": 2048})
    config = load(EAGLE3).config
    layers = None if reads is False else (4, 9) if listed else (2, 6, 9)
    assert config.target.aux_layers == layers
    assert config.target.hidden_source == ("collapsed" if layers is None else "aux")
    assert config.models["draft"].num_aux_layers == len(layers or ())
    assert config.target.spec_width == config.models["draft"].aux_width == 256 * len(layers or (0,))


@pytest.mark.parametrize("said", [0, 1, "false", None, []])
def test_only_a_flag_says_that_no_layer_is_read(load: Load, model: Model, said: object) -> None:
    model(**DEEP)
    model("d", **HEAD, eagle_config={"use_aux_hidden_state": said}, num_aux_hidden_states=3)
    assert load(EAGLE3).config.target.aux_layers == (2, 6, 9)


def test_a_draft_among_the_target_s_weights_is_of_blocks(load: Load, model: Model) -> None:
    """A draft that is the whole of such a target has all layers of it."""
    bundled = {"dspark_block_size": 3, "dspark_markov_rank": 8, "dspark_target_layer_ids": [1, 2]}
    model(**LLAMA, **bundled)
    own = EAGLE3.replace("  model: d", "  model: m")
    whole, blocks = (load(text).config for text in (TEXT, own.replace("EAGLE3", "DSPARK")))
    assert (whole.models["draft"].num_layers, whole.models["draft"].markov_rank) == (LLAMA["num_hidden_layers"], None)
    assert (blocks.models["draft"].num_layers, blocks.models["draft"].markov_rank) == (2, 8)
    assert blocks.target.aux_layers == (2, 3)
