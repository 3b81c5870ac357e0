"""Attention of CPUs, which captures nothing: SGLang prepares each batch."""

from __future__ import annotations

from ...served_attention import ROLES, AttentionBackend

RECORDS = (
    AttentionBackend(
        "intel_amx",
        caches=("mha", "swa"),
        drafts=("mha",),
        mask="qlen",
        device="cpu",
        windows=ROLES,
        blocks=True,
        classes=("IntelAMXAttnBackend",),
    ),
)
