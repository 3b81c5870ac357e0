"""Functions of vLLM's whose meaning counts, by digests of what they say.

The adapter does not call these, or calls them for what they do: they sample, keep the tables that a program reads, and
draft. A name and its parameters show nothing of that. A digest is of the syntax alone, so comments, docstrings and line
breaks change none, and it is the same in every version of Python. Imports the standard library only.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..kinds import KINDS

KNOWN: Mapping[str, Mapping[str, str]] = {
    "v1.worker.gpu.model_runner.GPUModelRunner": {
        "add_requests": "e18eef318021",
        "prepare_inputs": "cc5955ae2251 891e806491fa",
        "prepare_attn": "4dd2bd48cc13 6e8c92e90563",
        "sample": "fc5a3cdf4737",
        "sample_tokens": "5463cf84c838 b3cf9e210248",
        "postprocess_sampled": "8e0def3fd4d1 5dfa44267831",
    },
    "v1.worker.gpu.model_states.mamba_hybrid.MambaHybridModelState": {
        "postprocess_state": "1aeab7c66810",
    },
    "v1.worker.gpu.model_states.mamba_hybrid": {
        "_scatter_num_accepted_kernel": "1908af55f0bf",
    },
    "v1.worker.mamba_utils.MambaSpecDecodeGPUContext": {
        "run_fused_postprocess_align": "29adc83f2826",
    },
    "v1.worker.mamba_utils": {
        "postprocess_mamba_fused_kernel": "61fcad85edfe",
        "_copy_mamba_state_block": "83ffd551f66e",
    },
    "v1.worker.gpu.states.RequestState": {
        "add_request": "9086a7c58d5d 8a846f3036f4",
        "apply_staged_writes": "1b3c40f396f0",
    },
    "v1.worker.gpu.input_batch": {
        "_prepare_pos_seq_lens_kernel": "f2f9bc1481f5",
        "prepare_pos_seq_lens": "bdae0484ac3e",
        "_combine_sampled_and_draft_tokens_kernel": "432866e3b465",
        "combine_sampled_and_draft_tokens": "1f2f26c69d42",
        "_get_num_sampled_and_rejected_kernel": "6703773ea1ff",
        "get_num_sampled_and_rejected": "3be5c4ba876a",
        "_post_update_kernel": "f56dfa4d0c53 3429c99005a3",
        "post_update": "bf5c5309398e bcda0493ec54",
        "_expand_idx_mapping_kernel": "8463c04ee189",
        "expand_idx_mapping": "181b0c80ae7b",
    },
    "v1.worker.gpu.block_table.BlockTables": {
        "append_block_ids": "e2e12070481d",
        "gather_block_tables": "45043027b781 9ac6858905c6",
        "compute_slot_mappings": "4f11d6a16ba3",
    },
    "v1.worker.gpu.block_table": {
        "_gather_block_tables_kernel": "5e0d163322a4 1fd667999eab",
        "_compute_slot_mappings_kernel": "1aaacb61152f",
    },
    "v1.worker.gpu.sample.sampler.Sampler": {
        "add_request": "8b96aa644322",
        "get_logprobs_dims": "9ee28f43adc3",
        "apply_sampling_params": "cbae15b8c46c",
    },
    "v1.worker.gpu.sample.states.SamplingStates": {
        "add_request": "b4a4f98939af",
    },
    "v1.worker.gpu.sample.logit_bias.LogitBiasState": {
        "add_request": "fcaf5f2ee4fa",
    },
    "v1.worker.gpu.sample.bad_words.BadWordsState": {
        "add_request": "978fb69a039c",
    },
    "v1.worker.gpu.sample.thinking_budget.ThinkingBudgetState": {
        "add_request": "127d9b1e43e0",
    },
    "v1.worker.gpu.sample.logprob.LogprobTokenIdsState": {
        "add_request": "a8f514e9302c",
    },
    "v1.worker.gpu.sample.penalties.PenaltiesState": {
        "add_request": "6aec2e5468cb",
        "apply_staged_writes": "9d8c0b10be95",
        "apply": "8f24c4ddec88",
    },
    "v1.worker.gpu.sample.penalties": {
        "_penalties_kernel": "154c2c3836b2",
        "_bincount_kernel": "3cd7efd63eea",
    },
    "v1.worker.gpu.structured_outputs": {
        "grammar_invalid_drafts": "b2e8840ad927",
        "_apply_grammar_bitmask_kernel": "7820be91ea78",
    },
    "v1.worker.gpu.structured_outputs.StructuredOutputsWorker": {
        "apply_grammar_bitmask": "da58a8a4cef2 53a63f2fe8bd",
    },
    "v1.worker.gpu.spec_decode.rejection_sampler": {
        "_gather_draft_sampled_kernel": "7c7f4bcbaae9",
    },
    "v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler": {
        "__call__": "90c000253f37",
        "_verify": "177ef8fc00f9 2517a6b74604",
        "_verify_in_chunks": "bb2a782e5e62",
    },
    "v1.worker.gpu.spec_decode.rejection_sampler_utils": {
        "_compute_local_logits_stats_kernel": "68dfcfb08dc5 7553c5c9c1ff",
        "_rejection_kernel": "b00a3b3de98e 964534a3baa2",
        "_resample_kernel": "6ddda039ecad",
        "_insert_resampled_kernel": "a2e359b9614e",
        "rejection_sample": "5f60d051876e 2a09cd995b4a",
    },
    "v1.worker.gpu.spec_decode.utils": {
        "get_drafter_hidden_states": "9ccae823ff3f",
    },
    "v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator": {
        "_build_attn_metadata": "112b771e595a 21b942044b18",
        "compute_draft_logits": "e854cb64c324",
        "sample_draft": "0e9dbfbaa537 12f68e3f48e3",
        "_maybe_predict_acceptance": "none bef9f9337e16",
        "observe_verification": "none b8f9cacdd004",
    },
    "v1.worker.gpu.spec_decode.acceptance_estimator.OnlineAcceptanceEstimator": {
        "predict": "none 9e802c8cdd5f",
        "step": "none ab9fb3f5f6e7",
    },
    "v1.worker.gpu.spec_decode.acceptance_estimator": {
        "_local_max_sumexp_kernel": "none bb7a603b538e",
        "_predict_kernel": "none e5dcc4837623",
        "_accumulate_kernel": "none 3ff40a54da5f",
    },
    "v1.worker.gpu.spec_decode.adaptive_verification.AdaptiveVerificationManager": {
        "get_num_tokens": "none ea70002c7eaa",
        "compact_batch": "none d92fc9b9e188",
        "reallocate_drafts": "none 0bb755238303",
        "record_confidences": "none 7b6aaffb73b6",
    },
} | {owner: functions for kind in KINDS for owner, functions in kind.digests.items()}
"""Module or class below vLLM's package -> its functions -> their digests in the tested versions, the oldest first."""
SILENT = ("ctx", "kind", "type_comment")
"""Fields of syntax trees that say nothing that the source does not say elsewhere."""
DIGITS = 12
NONE = "none"
"""What stands in `KNOWN` for a function that a tested version does not have, nor what it is for."""


def unknown(digests: Mapping[str, str]) -> list[str]:
    """The places where one of the digests that were found is not known."""
    known = {f"{owner}.{name}": of for owner, functions in KNOWN.items() for name, of in functions.items()}
    return [place for place, digest in digests.items() if (digest or NONE) not in known[place].split()]


def installed() -> dict[str, str]:
    """The digests of all places of `KNOWN` in the vLLM that is installed."""
    return digests(Path(importlib.import_module("vllm").__path__[0]))


def digests(package: Path) -> dict[str, str]:
    """The digests of all places of `KNOWN` in a folder that is vLLM's package; an empty text where there is nothing."""
    tree = functools.cache(lambda file: ast.parse(file.read_text(encoding="utf-8")))
    by_place: dict[str, str] = {}
    for owner, functions in KNOWN.items():
        file, names = _file(package, owner.split("."))
        for name in functions:
            node = None if file is None else _defined(tree(file), [*names, name])
            by_place[f"{owner}.{name}"] = "" if node is None else digest(node)
    return by_place


def digest(node: ast.AST) -> str:
    """What a piece of source says, in `DIGITS` digits."""
    return hashlib.sha256(_said(node).encode()).hexdigest()[:DIGITS]


def _file(package: Path, parts: list[str]) -> tuple[Path | None, list[str]]:
    """The file that a place is in, and the names in that; None where there is no such file."""
    for end in range(1, len(parts) + 1):
        file = package.joinpath(*parts[:end]).with_suffix(".py")
        if file.is_file():
            return file, parts[end:]
    return None, parts


def _defined(tree: ast.AST, names: list[str]) -> ast.AST | None:
    """The last definition of a name, in the one of the name before it, and so on."""
    for name in names:
        definitions = [node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == name]
        if not definitions:
            return None
        tree = definitions[-1]
    return tree


def _said(value: object) -> str:
    """A syntax tree in words, or a part of one, without empty fields: newer Pythons have more of these."""
    if isinstance(value, list):
        return f"[{','.join(_said(item) for item in value if not _is_text(item))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    return f"{type(value).__name__}({','.join(_fields(value))})"


def _fields(node: ast.AST) -> Iterator[str]:
    for name, value in ast.iter_fields(node):
        if name not in SILENT and value is not None and value != []:
            yield f"{name}={_said(value)}"


def _is_text(node: object) -> bool:
    """Whether it is a docstring, or another text that nobody reads."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
