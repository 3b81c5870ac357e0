"""How far stand-ins of records are from SGLang's own kernels, and from states that are kept behind each node.

`real_states.py` runs them, verification after verification: of GDN until rings have been folded, and of KDA, whose
inputs are gone over anew at every commit. What is read is NaN before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sgl_kernel.mamba import gated_delta_rule_update
from sglang.kernels.ops.attention.linear import gdn_replayssm_spec_decode as rings
from sglang.kernels.ops.attention.linear import kda_replayssm_spec_decode as windows
from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update
from specc_testing_records import advance, around, fold, fold_windows, replayed, verify_over_records
from torch import Tensor

LAYERS, SLOTS, REQUESTS, NODES, LENGTH, ROUNDS = 2, 9, 6, 4, 16, 4
KEY_HEADS, HEADS, KEYS, VALUES = 2, 4, 32, 16
SLOTS_OF, ROWS_OF = torch.tensor([3, 7, -1, 1], dtype=torch.int32), torch.tensor([2, 5, 0, 4])
"""Slots of the states of the requests of a batch, and their pool rows, of which one is padding."""
KEPT = torch.tensor([2, 8, -1, 6])
"""Where states go that are kept for prefixes."""
Pair = tuple[Callable[[], Sequence[Tensor]], Callable[[], Sequence[Tensor]]]
Rule = Callable[..., Tensor]


class Counted(int):
    """A number in a loop of an interpreted kernel, which a compiled one has in a register."""

    def to(self, _: Any) -> Counted:
        return self


vars(windows)["range"] = lambda first, end: map(Counted, range(first, int(end)))


class Text:
    """Inputs of recurrent layers for several verifications, how much of each is accepted, and what is kept of it."""

    def __init__(self, *, columns: bool) -> None:
        self.columns, tokens = columns, len(SLOTS_OF) * NODES
        each, gates = (ROUNDS, LAYERS, tokens), HEADS * KEYS if columns else HEADS
        heads = HEADS if columns else KEY_HEADS
        self.q, self.k = torch.randn(2, *each, heads, KEYS)
        self.v = torch.randn(*each, HEADS, VALUES)
        self.a, self.b = torch.randn(*each, gates), torch.randn(*each, HEADS)
        self.a_log, self.dt_bias = torch.randn(HEADS) / 2, torch.randn(gates)
        self.states = torch.randn(LAYERS, SLOTS, HEADS, VALUES, KEYS)
        self.accepted = torch.randint(1, NODES + 1, (ROUNDS, len(SLOTS_OF)), dtype=torch.int32) * (SLOTS_OF >= 0)
        self.accepted[:, 0] = NODES  # whose ring is folded
        self.kept = torch.where(torch.rand(ROUNDS, len(SLOTS_OF)) < 0.5, self.accepted.long() - 1, -1)

    def of(self, number: int, layer: int) -> dict[str, Tensor]:
        """Return what a layer is given in a verification."""
        each = {name: getattr(self, name)[number, layer] for name in ("q", "k", "v", "a", "b")}
        return {**each, "A_log": self.a_log, "dt_bias": self.dt_bias}


def starts() -> Tensor:
    return torch.arange(0, len(SLOTS_OF) * NODES + 1, NODES, dtype=torch.int32)


def over_rings(text: Text, verify: Callable[..., object], take: Rule, put: Rule, *, live: bool = False) -> list[Tensor]:
    """Return what is read in all verifications, then states, records and cursors; with `live` all that states are."""
    states, sizes = text.states.clone(), (LAYERS, REQUESTS)
    changes, keys = torch.zeros(*sizes, HEADS, LENGTH, VALUES), torch.zeros(*sizes, KEY_HEADS, LENGTH, KEYS)
    decay, flush = torch.zeros(*sizes, HEADS, LENGTH), torch.zeros(REQUESTS, dtype=torch.int8)
    known, base = torch.zeros(2, REQUESTS, dtype=torch.int32)
    cursors = {"write_pos": known, "cache_base": base, "is_flush": flush, "null_block_id": -1}
    read = list[Tensor]()
    for number, (accepted, kept) in enumerate(zip(text.accepted, text.kept, strict=True)):
        for layer in range(LAYERS):
            read.append(torch.full_like(text.v[number, layer], torch.nan))
            verify(
                **text.of(number, layer), **cursors, checkpoint_state=states[layer], d_cache=changes[layer],
                k_cache=keys[layer], g_cache=decay[layer], rawv_cache=None, rawk_cache=None, beta_cache=None,
                out=read[-1], query_start_loc=starts(), ssm_state_indices=SLOTS_OF, replay_indices=ROWS_OF,
                max_cache_len=LENGTH, max_spec_len=NODES, scale=KEYS**-0.5, use_qk_l2norm_in_kernel=True,
                launch_mode="verify",
            )  # fmt: skip
        sizes_of = {"max_cache_len": LENGTH, "max_spec_len": NODES, "fold_every_commit": False}
        take(**cursors, **sizes_of, num_accepted=accepted, replay_indices=ROWS_OF)
        put(
            **cursors, checkpoint_state=states, d_cache=changes, k_cache=keys, g_cache=decay, d_residual_cache=None,
            k_residual_cache=None, state_batch_indices=SLOTS_OF, replay_indices=ROWS_OF, accept_lens=accepted,
            mamba_track_indices=KEPT, mamba_steps_to_track=kept,
        )  # fmt: skip
    assert bool(base.any()), "no ring was folded"
    if not live:
        return [*read, states, changes, keys, decay, known, base, flush]
    for slot, row in zip(SLOTS_OF.tolist(), ROWS_OF.tolist(), strict=True):
        if slot >= 0:
            places = around(base[row], LENGTH)[: known[row]]
            states[:, slot] = replayed(states[:, slot], changes[:, row], keys[:, row], decay[:, row], places)
    return [*read, states]


def over_windows(text: Text, rule: Rule, put: Rule) -> list[Tensor]:
    """Return what is read in all verifications of KDA, then states and what is kept of the last."""
    states, sizes = text.states.clone(), (LAYERS, SLOTS, HEADS, LENGTH)
    values, keys, decay = torch.zeros(*sizes, VALUES), torch.zeros(*sizes, KEYS), torch.zeros(*sizes, KEYS)
    share, read = torch.zeros(*sizes), list[Tensor]()
    for number, (accepted, kept) in enumerate(zip(text.accepted, text.kept, strict=True)):
        for layer in range(LAYERS):
            kept_of = {"replayssm_rawv": values, "replayssm_rawk": keys, "replayssm_g": decay, "replayssm_beta": share}
            of_layer = {name: of_all[layer] for name, of_all in kept_of.items()}
            read.append(whole(rule, text, number, states[layer], layer, cache_ring=True, **of_layer))
        put(
            checkpoint_state=states, rawv_cache=values, rawk_cache=keys, gk_cache=decay, beta_cache=share,
            ssm_state_indices=SLOTS_OF, accept_lens=accepted, max_cache_len=LENGTH, num_k_heads=HEADS,
            mamba_track_indices=KEPT, mamba_steps_to_track=kept, null_block_id=-1,
        )  # fmt: skip
    return [*read, states, values, keys, decay, share]


def over_snapshots(text: Text) -> list[Tensor]:
    """Return the same of states that are left behind each node, of which the accepted are copied."""
    states, read = text.states.clone(), list[Tensor]()
    for number, (accepted, kept) in enumerate(zip(text.accepted.tolist(), text.kept.tolist(), strict=True)):
        for layer in range(LAYERS):
            behind = torch.full((len(SLOTS_OF), NODES, HEADS, VALUES, KEYS), torch.nan)
            places = torch.arange(len(SLOTS_OF), dtype=torch.int32)
            given = {"intermediate_states_buffer": behind, "intermediate_state_indices": places, "cache_steps": NODES}
            read.append(whole(gated_delta_rule_update, text, number, states[layer], layer, **given))
            for place, slot in enumerate(SLOTS_OF.tolist()):
                if slot >= 0:
                    states[layer, slot] = behind[place, accepted[place] - 1]
                if slot >= 0 and kept[place] >= 0:
                    states[layer, KEPT[place]] = behind[place, kept[place]]
    return [*read, states]


def whole(rule: Rule, text: Text, number: int, states: Tensor, layer: int, **given: Any) -> Tensor:
    """Return what a rule reads of a layer's nodes in a verification, nothing of padding."""
    each = text.of(number, layer)
    for name in "qkv":
        each[name] = each[name][None]
    read = rule(
        **each, **given, softplus_beta=1.0, softplus_threshold=20.0, initial_state_source=states,
        initial_state_indices=SLOTS_OF, use_qk_l2norm_in_kernel=True, is_kda=text.columns, cu_seqlens=starts(),
        disable_state_update=True,
    )  # fmt: skip
    return read[0] * (SLOTS_OF >= 0).repeat_interleave(NODES)[:, None, None]


def pairs() -> Mapping[str, Pair]:
    """Return what stand-ins leave, and what is to be compared with it."""
    gdn, kda = Text(columns=False), Text(columns=True)
    mine = verify_over_records, advance, fold
    own = rings.gdn_replayssm_spec_decode, rings.commit_gdn_replayssm_spec, rings.commit_gdn_replayssm_circular
    mine_of_kda = gated_delta_rule_update, fold_windows
    own_of_kda = fused_sigmoid_gating_delta_rule_update, windows.commit_kda_replayssm_spec_all_layers
    return {
        "records in rings": (lambda: over_rings(gdn, *mine), lambda: over_rings(gdn, *own)),
        "exact records in rings": (lambda: over_rings(gdn, *mine, live=True), lambda: over_snapshots(gdn)),
        "records of columns": (lambda: over_windows(kda, *mine_of_kda), lambda: over_windows(kda, *own_of_kda)),
        "exact records of columns": (
            lambda: over_windows(kda, *mine_of_kda)[: ROUNDS * LAYERS + 1],
            lambda: over_snapshots(kda),
        ),
    }
