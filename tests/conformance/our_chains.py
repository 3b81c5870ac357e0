"""Verification of drafts that were drawn: a module of its ops, its kernels, and its reference."""

from __future__ import annotations

from typing import Any

import torch
from cluster_cases import Scan, TypedBuilder, small_module
from kernel_launcher import Launcher
from our_launches import launch_all, padded
from torch import Tensor

from specc.compiler.ir.core import Module

MORE_ROWS = 2


def verification(case: dict[str, Any]) -> Module:
    """From the logits of both models to the accepted length and the tokens."""
    count, nodes, vocab = case["target"].shape
    module = small_module(B=count + case["padding"] + MORE_ROWS, N=nodes, A=nodes, S=nodes - 1, V=vocab, Vd=vocab)
    b, rows = TypedBuilder(module), module.inputs["req_pool_indices"]
    mode = "block" if case["block_verification"] else "rejection"
    tokens, drafts = b.given("tokens", "i64", "A"), b.given("drafts", "i64", "S")
    target, draft = b.given("target", "f32", "A", "V"), b.given("draft", "f32", "S", "Vd")
    keys, scales, coins = b.given("keys", "i64", "A"), b.given("scales", "f32", "A"), b.given("coin_keys", "i64")
    with b.phase("draft"):
        noise = b.given("draft_keys", "i64", "S"), b.given("draft_scales", "f32", "S")
        unused, _ = b.many("sample.draw", draft, rows, *noise, dtype="i64", keep="")
        mass = b("sample.mass", draft, rows, noise[1], drafts, ahead=0, keep="")
        b.hand_out(unused)
    with b.phase("verify"):
        drawn, _ = b.many("sample.draw", target, rows, keys, scales, dtype="i32", keep="")
        own = b("sample.mass", target, rows, scales, tokens, ahead=1, keep="")
        weights = b("sample.weigh", rows, coins, scales, own, mass, mode=mode, parts=1)
        given = tokens, target, rows, keys, scales, drawn, own, weights, mass, draft
        left, sums = b.many("sample.residual", *given, parts=1, cut=0, most=nodes - 1 if mode == "block" else 1)
        index = b("sample.accept", tokens, rows, coins, drawn, weights, left, sums)
        names = "predict", "accept_index", "accept_lens"
        b.hand_out(*b.many("verify.greedy", tokens, index, rows, names=names))
    return module


def reject(launcher: Launcher, case: dict[str, Any]) -> dict[str, Tensor]:
    """By the kernels."""
    live, padding = len(case["target"]), case["padding"]
    values = {name: case[name] for name in ("tokens", "target", "draft", "keys", "coin_keys")}
    scales = (1 / case["temperature"])[:, None].expand(case["tokens"].shape).clone()
    values |= {"scales": scales, "draft_scales": scales[:, 1:].clone(), "draft_keys": case["keys"][:, 1:].clone()}
    values |= {"drafts": case["tokens"][:, 1:].clone(), "req_pool_indices": torch.arange(1, live + 1)}
    given = {name: padded(value, padding, 0) for name, value in values.items()}
    memory = launch_all(launcher, verification(case), given, Scan(case["splits"], case["block"]))
    return {name: memory[name][:live].clone() for name in ("predict", "accept_lens")}
