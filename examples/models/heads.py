"""The draft heads of the example: what each is, and what it drafts on a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from specc.lab.engine.models.aux_states import AuxStates
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head
from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.dspark_head import DsparkHead
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.heads.eagle_head import EagleHead, SharingHead
from specc.lab.engine.models.heads.frozen_kv_head import Attend, FrozenKvHead
from specc.lab.engine.models.heads.mtp_heads import MtpHeads

VOCAB = 2048
AUX_LAYERS = (1, 2, 3)  # of the target, counted from 0: their outputs are what the EAGLE3 and DFlash heads read
FROZEN_LAYERS = (2, 3)  # of the target, counted from 0: their keys and values are what the frozen head reads
DEPTH = 3  # drafts per step, in training and in the evaluation


class Reading(NamedTuple):
    """What the target makes of tokens [B, n].

    hidden [B, n, H] after the final norm; aux [B, n, layers * H], the outputs of AUX_LAYERS side by side; the keys
    and values of every layer; logits [B, n, V].
    """

    hidden: Tensor
    aux: Tensor
    cache: DynamicCache
    logits: Tensor


class Reader:
    """The target, read for all that draft heads are made to read."""

    def __init__(self, target: LlamaForCausalLM) -> None:
        """Take over a frozen target."""
        self.target = target
        self.aux = AuxStates(target, [layer + 1 for layer in AUX_LAYERS])

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Reading:
        """Read whole texts [B, n]."""
        cache = DynamicCache()
        hidden = self.target.model(tokens, past_key_values=cache).last_hidden_state
        return Reading(hidden, self.aux.take(), cache, self.target.lm_head(hidden))


@torch.no_grad()
def greedy(model: LlamaForCausalLM, tokens: Tensor, count: int) -> Tensor:
    """Append the model's count most likely next tokens: [B, n] -> [B, n + count]."""
    cache, unread = DynamicCache(), tokens
    for _ in range(count):
        unread = model(unread, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
        tokens = torch.cat((tokens, unread), dim=1)
    return tokens


# A chain drafts after every position of a text at once. It yields rows for the first, second, ... DEPTH-th draft:
# k-th rows [B, n - k, W], where the row at index p gives the head's scores of token p + 1 + k, drafted when the
# target has read the tokens up to p and the drafts before are the tokens of the text.


def unroll_mask(n: int, step: int, device: torch.device) -> Tensor:
    """Which pairs a pair may read at an unrolled step: bool [1, 1, n, (step + 1) * n].

    Block 0 of the keys holds the pairs made of true hidden states, block j those whose hidden
    state is j predictions deep. As in drafting, the pair at q reads true pairs up to q - step,
    then one pair of each depth, up to itself.
    """
    query, key = torch.arange(n, device=device)[:, None], torch.arange(n, device=device)[None, :]
    blocks = [key <= query - step]
    blocks += [key == query - (step - depth) for depth in range(1, step + 1)]
    return torch.cat(blocks, dim=1)[None, None]


def positions_of(tokens: Tensor) -> Tensor:
    """The positions 0 ... n - 1 of tokens [B, n], [B, n]."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)


def unrolled(head: EagleHead | Eagle3Head, hidden: Tensor, tokens: Tensor) -> Iterator[Tensor]:
    """The chain of a head that continues hidden states [B, n, H]: the target's, for an EAGLE3 head projected."""
    following, inputs = tokens[:, 1:], hidden[:, :-1]
    cache = DynamicCache()
    for step in range(DEPTH):
        mask = unroll_mask(following.shape[1], step, tokens.device)
        predicted = head(following, inputs, positions_of(following), attention_mask=mask, past_key_values=cache)
        yield predicted[:, step:]
        inputs = torch.cat((hidden[:, :1], predicted[:, :-1]), dim=1)


def eagle_chain(head: EagleHead, reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
    """Starts from the target's hidden states."""
    return unrolled(head, reading.hidden, tokens)


def eagle3_chain(head: Eagle3Head, reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
    """Starts from outputs of several layers."""
    return unrolled(head, head.project(reading.aux), tokens)


def mtp_chain(head: MtpHeads, reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
    """A module for each draft, all from the target's hidden states."""
    for module in range(DEPTH):
        ahead = tokens[:, 1 + module :]
        yield head(module, ahead, reading.hidden[:, : ahead.shape[1]], positions_of(ahead))


def causal_attention(cache: DynamicCache) -> Attend:
    """Attention to what the target keeps: the query at index p reads the positions up to p."""

    def attend(layer: int, query: Tensor) -> Tensor:
        kept: list[Any] = [getattr(cache.layers[layer], name) for name in ("keys", "values")]
        groups, count = query.shape[1] // kept[0].shape[1], query.shape[2]
        keys, values = (part[:, :, :count].repeat_interleave(groups, dim=1) for part in kept)
        return F.scaled_dot_product_attention(query, keys, values, is_causal=True).transpose(1, 2)

    return attend


def frozen_chain(head: FrozenKvHead, reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
    """Every draft asks from the same position and sees the same keys and values."""
    hidden, attend = reading.hidden, causal_attention(reading.cache)
    for step in range(DEPTH):
        drafted = tokens[:, 1 + step :]
        hidden = head(drafted, hidden[:, : drafted.shape[1]], positions_of(drafted), attend)
        yield hidden


def block_mask(blocks: int, size: int, device: torch.device) -> Tensor:
    """Which keys the rows of blocks read: bool [1, 1, blocks * size, blocks + blocks * size].

    The first keys are the context, a position each; block p, which begins at position p + 1, reads those up to p
    and all of its own rows.
    """
    context = torch.arange(blocks, device=device)
    block = context.repeat_interleave(size)
    return torch.cat((context <= block[:, None], block == block[:, None]), dim=1)[None, None]


def dflash_chain(head: DflashHead, reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
    """One block after every position, all drafts of a block at once."""
    bonus, size = tokens[:, 1:], DEPTH + int(not head.anchored)
    positions, cache = positions_of(bonus), DynamicCache()
    for layer, (keys, values) in enumerate(head.keys_and_values(reading.aux[:, :-1], positions)):
        cache.update(keys, values, layer)
    places = positions[..., None] + 1 + torch.arange(size, device=tokens.device)
    mask = block_mask(bonus.shape[1], size, tokens.device)
    rows = head(bonus, places, attention_mask=mask, past_key_values=cache)
    for step in range(DEPTH):
        yield rows[:, : bonus.shape[1] - step, step + int(not head.anchored)]


def own_scores(head: Any, rows: Tensor, before: Tensor) -> Tensor:
    """What a head says of its rows T[B, n, W], whatever tokens i64[B, n] are before the drafts."""
    return head.logits(rows)


def biased_scores(head: DsparkHead, rows: Tensor, before: Tensor) -> Tensor:
    """The same with the bias behind these tokens."""
    return head.logits(rows) + head.markov_head(before)


def selected(head: Dflash2Head, rows: Tensor, before: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates i64[B, n, k] of places with scores T[B, n, V], and the selector's scores of these behind tokens.

    A program takes the logarithm of a probability in place of a score. Both differ by one number, the same for a place.
    """
    candidates = scores.topk(head.config.dflash_config["selector_top_k"]).indices
    return candidates, (scores + head.candidate_selector(rows, before)).gather(-1, candidates)


def llama_config(hidden: int, layers: int, kv_heads: int, **more: Any) -> LlamaConfig:
    """A small Llama: if `more` says nothing else, an MLP three times as wide as the model and tied embeddings."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
        "intermediate_size": 3 * hidden,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
    }
    return LlamaConfig(**{**settings, **more})


class Kind(NamedTuple):
    """A kind of draft head: its class, the sizes of the example, its chain.

    pull: weight of a smooth L1 loss that draws the chain's rows to the target's hidden states.
    begins: the head whose weights it begins with, of one that scores a part of the tokens.
    scores: those of a chain's rows, by the tokens before the drafts.
    chooses: candidates by these scores, and the scores that a draft is chosen by among them; None: all tokens are.
    """

    head: type[SharingHead]
    config: Callable[..., LlamaConfig]
    chain: Callable[[Any, Reading, Tensor], Iterator[Tensor]]
    pull: float = 0.0
    begins: str = ""
    scores: Callable[[Any, Tensor, Tensor], Tensor] = own_scores
    chooses: Callable[[Any, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None


EAGLE3 = {
    "hidden": 192,
    "layers": 1,
    "kv_heads": 1,
    "intermediate_size": 384,
    "target_hidden_size": 256,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS)},
    "tie_word_embeddings": False,
}
DFLASH = {"hidden": 256, "layers": 2, "kv_heads": 1, "intermediate_size": 256}
BLOCKS = {"target_layer_ids": list(AUX_LAYERS)}
MARKOV = {"markov_rank": 64, "sample_from_anchor": True}
SELECTOR = {"selector_rank": 64, "selector_top_k": 16}
HEADS = {
    "eagle": Kind(EagleHead, partial(llama_config, hidden=256, layers=1, kv_heads=2), eagle_chain, pull=0.2),
    "eagle3": Kind(Eagle3Head, partial(llama_config, **EAGLE3), eagle3_chain),
    "eagle3_reduced": Kind(
        Eagle3Head, partial(llama_config, **EAGLE3, draft_vocab_size=VOCAB // 4), eagle3_chain, begins="eagle3"
    ),
    "mtp": Kind(
        MtpHeads,
        partial(llama_config, hidden=256, layers=DEPTH, kv_heads=2, intermediate_size=256),
        mtp_chain,
    ),
    "frozen_kv": Kind(
        FrozenKvHead,
        partial(
            llama_config,
            hidden=192,
            layers=len(FROZEN_LAYERS),
            kv_heads=2,
            num_attention_heads=4,
            intermediate_size=384,
            backbone_hidden_size=256,
            kv_layers=list(FROZEN_LAYERS),
        ),
        frozen_chain,
    ),
    "dflash": Kind(
        DflashHead, partial(llama_config, **DFLASH, dflash_config={**BLOCKS, "block_size": DEPTH + 1}), dflash_chain
    ),
    "dspark": Kind(
        DsparkHead,
        partial(llama_config, **DFLASH, dflash_config={**BLOCKS, **MARKOV, "block_size": DEPTH}),
        dflash_chain,
        scores=biased_scores,
    ),
    "dflash2": Kind(
        Dflash2Head,
        partial(llama_config, **DFLASH, dflash_config={**BLOCKS, **SELECTOR, "block_size": DEPTH + 1}),
        dflash_chain,
        chooses=selected,
    ),
}

Drafts = Callable[[Reading, Tensor], Iterator[Tensor]]
"""Scores of the first, second, ... draft after every position of a text, aligned as the rows of a chain."""


def drafts_of(kind: Kind, head: SharingHead) -> Drafts:
    """What a head drafts."""
    own = getattr(head, "own_tokens", None)

    def drafts(reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
        for draft, rows in enumerate(kind.chain(head, reading, tokens), start=1):
            before = tokens[:, draft:]
            scores = kind.scores(head, rows, before)
            if own is not None:
                scores = whole(torch.tensor(own, device=scores.device).expand_as(scores), scores)
            yield whole(*kind.chooses(head, rows, before, scores)) if kind.chooses else scores

    return drafts


def whole(tokens: Tensor, scores: Tensor) -> Tensor:
    """Scores T[..., V] of all tokens: those of tokens i64[..., k], T[..., k], and -inf of the others."""
    return scores.new_full((*scores.shape[:-1], VOCAB), -torch.inf).scatter(-1, tokens, scores)


def accepted_length(drafts: Drafts, reading: Reading, texts: Tensor, prompt: int) -> float:
    """The mean number of tokens per step that speculation makes of texts [B, n], greedy after `prompt` tokens.

    Greedy verification keeps the drafts that agree with the target's own choices, then adds the next such choice,
    so the text is the same whatever the drafts are. A draft counts only where those before it are the text's own
    tokens, which is what a chain takes them for. The last DEPTH tokens are only there to be drafted.
    """
    end = texts.shape[1] - DEPTH
    right = [
        scores[:, : end - 1].argmax(-1) == texts[:, draft + 1 : draft + end]
        for draft, scores in enumerate(drafts(reading, texts), start=1)
    ]
    made = 1 + torch.stack(right, dim=-1).long().cumprod(-1).sum(-1)
    steps = tokens = 0
    for row in made.tolist():
        known = prompt  # the last of them is not read by the target
        while known < end:
            known += row[known - 2]
            steps += 1
        tokens += known - prompt
    return tokens / steps
