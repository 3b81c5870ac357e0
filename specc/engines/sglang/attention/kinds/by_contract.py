"""Backends that serve chains and prepare them themselves. No GPU has run a program on one."""

from __future__ import annotations

from functools import partial

from ...served_attention import ROLES, AttentionBackend

_by_contract = partial(
    AttentionBackend,
    tried=False,
    shapes=False,
    place=2,
    prepared_by="contract.Contract",
    graphs=True,
    touches="""
layers.attention.base_attn_backend.AttentionBackend.init_forward_metadata_out_graph(forward_batch in_capture)
layers.attention.base_attn_backend.AttentionBackend.init_forward_metadata_in_graph(forward_batch)
""",
)
RECORDS = (
    _by_contract(
        "trtllm_mha",
        ("mha", "swa"),
        classes=("TRTLLMHAAttnBackend",),
        windows=ROLES,
    ),
    _by_contract("trtllm_mla", ("mla",), classes=("TRTLLMMLABackend",), adds_no_step=True),
    _by_contract(
        "cutedsl_mla",
        ("mla",),
        classes=("CuteDslMLABackend", "CuteDslMLAPrefillBackend"),
        formerly=("tokenspeed_mla",),
        prefill="trtllm_mla",
        adds_no_step=True,
    ),
    _by_contract("flashmla", ("mla",), classes=("FlashMLABackend",), adds_no_step=True),
    _by_contract("fa4", ("mha",), drafts_blocks=True),
    _by_contract("dsa", ("dsa",), classes=("DeepseekSparseAttnBackend",), formerly=("nsa",), adds_no_step=True),
    _by_contract("qsa", ("qsa",), classes=("QwenSparseAttnBackend",), adds_no_step=True, grouped=False),
)
