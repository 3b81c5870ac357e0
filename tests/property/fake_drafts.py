"""Forwards of the drafts that do not run step by step: assistants, modules and blocks; see `fake_engine`.

Each takes what the engine's forward of that name takes, writes KV rows where its slots say, and returns a state that
its answer is made of and the tokens that it stands after.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from fake_memory import KvMemory, along, code_of, mix
from torch import Tensor

Answer = tuple[Tensor, Tensor]


def assist(
    target: KvMemory,
    tokens: Tensor,
    positions: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    step: int,
    hidden: Tensor,
) -> Answer:
    """It reads the target's keys and values before seq_len, all of them, and writes none."""
    state = mix(tokens, positions, along(rows, tokens), along(seq_lens, tokens), code_of(hidden), torch.tensor(step))
    return mix(state, along(target.texts(rows, seq_lens), tokens)), tokens


def block(
    draft: KvMemory,
    bonus: Tensor,
    positions: Tensor,
    slots: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    follow: Callable[[Tensor], Tensor],
) -> Answer:
    """Logits of all places but the bonus token's; ``follow`` is the token that the target would mostly say next."""
    state = mix(along(bonus, positions), positions, slots, along(rows, positions), along(seq_lens, positions))
    draft.write(slots, state)
    tokens = [bonus.to(torch.int64)]
    for _ in range(positions.shape[1] - 2):
        tokens.append(follow(tokens[-1]))
    context = draft.texts(rows, seq_lens)
    return mix(state[:, 1:], context[:, None]), torch.stack(tokens, dim=1)


def inject(draft: KvMemory, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor) -> None:
    """Keys and values of accepted tokens, made of the target's rows."""
    draft.write(slots, mix(positions, along(rows, positions), code_of(hidden)))


def prefill_inject(draft: KvMemory, rows: Tensor, seq_lens: Tensor, hidden: Tensor) -> None:
    """The same of whole prompts."""
    for row, rows_of_prompt in zip(rows.tolist(), code_of(hidden).split(seq_lens.tolist()), strict=True):
        draft.write_prompt(row, mix(torch.arange(len(rows_of_prompt)), torch.tensor(row), rows_of_prompt))


def extend_module(
    draft: KvMemory,
    tokens: Tensor,
    positions: Tensor,
    slots: Tensor,
    select: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    hidden: Tensor,
    step: int,
) -> Answer:
    """Module ``step`` writes its own layer, and reads it up to the selected row."""
    codes = code_of(hidden)
    state = mix(tokens, positions, slots, along(rows, tokens), along(seq_lens, tokens), codes)
    draft.write(slots, state, step)
    last = positions.reshape(-1)[select]
    context = draft.texts(rows, last + 1, step)
    return mix(state.reshape(-1)[select], context, torch.tensor(step)), tokens.reshape(-1)[select]


def prefill_module(
    draft: KvMemory,
    first: Tensor,
    rows: Tensor,
    seq_lens: Tensor,
    hidden: Tensor,
    step: int,
    drafts: Tensor | None = None,
) -> Answer:
    """Module ``step`` over prompts of which the first sampled token and ``step`` drafts are the end."""
    assert (drafts is None) == (step == 0)
    end = first.to(torch.int64)[:, None] if drafts is None else torch.cat([first[:, None], drafts[:, :step]], dim=1)
    codes = [
        mix(torch.arange(len(of_prompt)), torch.tensor(row), of_prompt)
        for row, of_prompt in zip(rows.tolist(), code_of(hidden).split(seq_lens.tolist()), strict=True)
    ]
    for b, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        shifted = codes[b].clone()
        count = min(length, end.shape[1])
        shifted[length - count :] = mix(shifted[length - count :], end[b, end.shape[1] - count :])
        draft.write_prompt(row, shifted, step)
    return mix(rows, seq_lens, *end.unbind(1), draft.texts(rows, seq_lens, step)), end[:, -1]
