"""Backends over which no program is served, as far as command lines and servers with them are read."""

from __future__ import annotations

from ...served_attention import AttentionBackend

RECORDS = (
    AttentionBackend("flashinfer_mla", (), classes=("FlashInferMLAAttnBackend",)),
    AttentionBackend("hpc_ops", ()),
)
