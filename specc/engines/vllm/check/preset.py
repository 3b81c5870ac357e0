"""vLLM 0.33.0: what its model runner V2 does, as far as a program depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from specc.compiler.config.presets.contract import EngineNeeds, Preset
from specc.compiler.config.presets.engine_tables import FieldBlock, TablesBlock
from specc.engines.adapter_files import adapter_files
from specc.engines.vllm.served import ALGORITHMS, KINDS, TESTED

_UNTRIED = (
    "DFlashLagunaForCausalLM",
    "MuseGlimmerAssistantModel",
    "Gemma4DSparkModel",
    "K3DSparkModel",
    "MuseSparkDSparkModel",
)
"""Classes of drafts of blocks that vLLM has, and in the place of whose steps no program has had the same texts."""


def _unserved(asked: EngineNeeds) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return what of a draft no server of vLLM's has a program run."""
    name = asked.models.get("draft", {}).get("architecture")
    if name in _UNTRIED:
        yield ("draft", "model"), f"a draft that fills in blocks, of the class {name},"


VLLM = Preset(
    name="vLLM",
    tested=TESTED,
    plugins="vllm.general_plugins",
    adapter=partial(adapter_files, "vllm"),
    algorithms=tuple(ALGORITHMS),
    demands={
        ("step",): "rotated",  # it runs the target by itself, then verifies and drafts
        ("draft_positions",): "auto",  # language models see a token where it is, heads of the target one further
        ("overlap",): True,  # lengths stay on the device, with async scheduling and without
        ("disaggregation",): False,
        ("logits",): "gathered",  # every rank gets whole rows
        ("penalties",): "exact",  # as its own, at every draft
    },
    heads_of_target=(),
    # Of a greedy program requests that sample are its own.
    verifies=("greedy", "target_only", "rejection", "block"),
    tree_masks=(),  # it has no trees
    padding=64,  # of its heads, whose scores it cuts off by a view
    pads_rows=True,
    parts_of_tokens=False,  # its heads hand over scores of all tokens, -inf of those that they do not know
    max_requests=1024,  # max_num_seqs of a GPU with 70 GiB or more
    missing_outputs=("logprobs", "hidden_states", "routed_experts", "indexer_topk"),
    gpus="sm_",
    one_dtype=True,
    gives_rows=True,  # by `budget: given`, where it verifies adaptively or not
    unserved=_unserved,
    missing_sampling=("logit_bias", "grammar", "min_p"),  # it masks logits itself, and refuses the others with drafts
    options={name: kind.options for kind in KINDS for name in kind.algorithms if kind.options},
    whole_text={name: kind.whole_text for kind in KINDS for name in kind.algorithms if kind.whole_text},
    tables=TablesBlock(
        slots="block_table",
        padding_slot=-1,  # where nothing is written; its block 0 is of nobody, and stays as it is
        # Its own launches write them, of what a step hands back, as after steps that it runs by itself.
        carry={
            "bonus": FieldBlock(dtype="int64", written_by="engine"),
            "drafts": FieldBlock(dtype="int64", written_by="engine"),
            "seq_lens": FieldBlock(dtype="int32", written_by="engine"),
            # Of all tokens, in which drafts are looked up; vLLM writes what the program has appended once more.
            "text": FieldBlock(dtype="int32", written_by="program"),
            # What drafts were drawn from, before temperature, as vLLM keeps it of its own.
            "draft_logits": FieldBlock(written_by="program"),
        },
    ),
)
