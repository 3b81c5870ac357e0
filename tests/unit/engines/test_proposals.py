"""What drafts were drawn from, between an engine's steps and a program's: probabilities, logits, and their mass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import planned
from text_statistics import surprise
from torch import Tensor

from specc.engines._drawn import weighs
from specc.engines.sglang.requests.proposals import Proposals
from specc.engines.vllm.requests.proposals import DraftLogits, logits_dtypes
from specc.runtime.semantics.rejection import sample_mass

V, ROWS = 24, torch.tensor([3, 1, 2])
HEAT = torch.tensor([0.0, 0.7, 0.0, 1.6])
"""Temperatures by pool row: row 2 is greedy."""


class Numbers:
    """The draft numbers tokens from 0 on, which are the target's from `first` on."""

    count = V

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def of(self, tokens: Tensor) -> Tensor:
        return tokens - self.first

    def tokens(self, numbers: Tensor) -> Tensor:
        return numbers + self.first


def pools(modules: int = 1) -> dict[str, Tensor]:
    made = {"sampling_temperature": HEAT}
    for module in range(modules):
        made |= {f"draft_logits{module}": torch.full((4, V), torch.nan), f"draft_mass{module}": torch.zeros(4, 3)}
    return made


def of_sglang(given: dict[str, Tensor], *, first: int = 0, reads: bool = True, in_turn: bool = False) -> Proposals:
    numbers: Any = Numbers(first)
    return Proposals(given, numbers, reads=reads, in_turn=in_turn)


def chances(*shape: int) -> Tensor:
    """Probabilities f32[..., V], some of which are 0."""
    source = torch.Generator().manual_seed(2)
    logits, lost = 3 * torch.randn(*shape, V, generator=source), torch.rand(*shape, V, generator=source) < 0.2
    return logits.masked_fill(lost, -torch.inf).softmax(-1)


def requests(*seeds: int | None, length: int = 7) -> list[Any]:
    """SGLang's, behind prompts of so many tokens; without a seed one that the program was not told of."""
    made = [SimpleNamespace(origin_input_ids=[0] * length, output_ids=[]) for _ in seeds]
    for request, seed in zip(made, seeds, strict=True):
        if seed is not None:
            request._specc_sampling = {"seed": seed}
    return made


def own_mass(logits: Tensor, tokens: Tensor, heat: Tensor) -> Tensor:
    """What a program makes of the logits [b, V] that it draws drafts i64[b] from."""
    scales = torch.where(heat > 1e-6, heat.reciprocal(), 0.0)
    (mass,) = sample_mass((logits, torch.ones(len(logits)), scales, tokens[:, None]), {"ahead": 0}, {})
    return mass


@pytest.mark.parametrize("first", [0, 5])
def test_probabilities_become_what_a_program_draws_from(first: int) -> None:
    given, q = pools(), chances(3)
    drafts = SimpleNamespace(topk_index=q.argmax(-1, keepdim=True) + first, draft_probs=q)
    proposals = of_sglang(given, first=first)
    proposals.take(ROWS, drafts)
    assert drafts.draft_probs is None, "SGLang's relay is to keep no table of its own"
    tokens = drafts.topk_index[:, 0] - first
    wanted = own_mass(given["draft_logits0"][ROWS], tokens, HEAT[ROWS])
    drawn = HEAT[ROWS] > 0
    torch.testing.assert_close(given["draft_mass0"][ROWS][drawn], wanted[drawn])
    torch.testing.assert_close(wanted[drawn, 2], q.gather(1, tokens[:, None])[drawn, 0])
    lent = proposals.of(ROWS, tokens[:, None])
    assert lent is not None
    torch.testing.assert_close(lent, q)


def test_a_draft_of_which_nothing_is_said_was_sure() -> None:
    """As the most probable one is, and so is it lent where a program keeps nothing."""
    given, tokens = pools(), torch.tensor([[4], [0], [V - 1]])
    of_sglang(given).take(ROWS, SimpleNamespace(topk_index=tokens))
    sure = torch.nn.functional.one_hot(tokens[:, 0], V).float()
    assert torch.equal(given["draft_logits0"][ROWS].exp(), sure)
    assert given["draft_mass0"][ROWS].tolist() == [[0, 1, 1]] * 3
    assert torch.equal(of_sglang({}).of(ROWS, tokens), sure)
    assert of_sglang(given, reads=False).of(ROWS, tokens) is None


def test_first_drafts_are_drawn_by_the_seeds_of_requests() -> None:
    """In any batch, and by the length of the text; those of a greedy request are the most probable ones."""
    q = chances(3)

    def drawn(rows: Tensor, given: Tensor, asked: list[Any]) -> list[int]:
        drafts = SimpleNamespace(topk_index=torch.zeros(len(rows), 1, dtype=torch.int64), draft_probs=given)
        of_sglang(pools()).take(rows, drafts, asked)
        return drafts.topk_index[:, 0].tolist()

    both = [drawn(ROWS, q, requests(seed, 5, 6)) for seed in range(40)]
    alone = [drawn(ROWS[:1], q[:1], requests(seed)) for seed in range(40)]
    assert [tokens[0] for tokens in both] == [tokens[0] for tokens in alone]
    assert {tokens[2] for tokens in both} == {int(q[2].argmax())}
    assert len({tokens[1] for tokens in both}) == 1
    lengths = [drawn(ROWS[1:2], q[1:2], requests(5, length=length))[0] for length in range(40)]
    assert len(set(lengths)) > 1
    rows = ROWS[:1].expand(4000)
    torch.manual_seed(6)
    texts = [[token] for token in drawn(rows, q[:1].expand(4000, -1), requests(*range(4000)))]
    expected, warmer = (torch.multinomial(p, 4000, replacement=True).tolist() for p in (q[0], q[0].sqrt()))
    assert surprise((texts, [[token] for token in expected])) > 1e-3
    assert surprise((texts, [[token] for token in warmer])) < 1e-3


def test_drafts_of_several_modules_stay_as_they_were_drawn() -> None:
    """Each was drawn behind the one before."""
    given, q = pools(2), chances(3, 2)
    tokens = torch.tensor([[4, 1], [0, 2], [7, 3]])
    drafts = SimpleNamespace(topk_index=tokens.clone(), draft_probs=q)
    proposals = of_sglang(given, in_turn=True)
    proposals.take(ROWS, drafts, requests(1, 2, 3))
    assert torch.equal(drafts.topk_index, tokens)
    lent = proposals.of(ROWS, tokens)
    assert lent is not None
    torch.testing.assert_close(lent, q)
    for module in range(2):
        wanted = own_mass(given[f"draft_logits{module}"][ROWS], tokens[:, module], HEAT[ROWS])
        torch.testing.assert_close(given[f"draft_mass{module}"][ROWS][:2], wanted[:2])


@pytest.mark.parametrize("algorithm", ["EAGLE", "DFLASH", "DSPARK", "MULTI_LAYER_EAGLE"])
def test_vllm_and_a_program_keep_logits_in_one_memory(algorithm: str) -> None:
    """By request and draft there, by draft or as one block here, with a row in front that vLLM does not see."""
    plan = planned(algorithm, engine="vllm", page_size=16, max_requests=6, buckets=[4], verify="rejection")[0]
    assert weighs(plan)
    assert logits_dtypes(plan) == {torch.float32}
    proposals = DraftLogits(plan, 5, torch.device("cpu"))
    assert {field for field in plan.carry if field.startswith("draft_logits")} == proposals.fields.keys()
    for name, table in proposals.fields.items():
        assert list(table.shape) == [7, *(plan.size(axis) for axis in plan.carry[name].axes[1:])]
        assert table.is_contiguous()
    drafts, width = plan.size("S"), plan.size("Vd")
    assert list(proposals.seen.shape) == [5, drafts, width]
    assert proposals.seen.stride(2) == 1
    logits = 2 * torch.randn(5, drafts, width, generator=torch.Generator().manual_seed(4))
    proposals.seen.copy_(logits)
    read = torch.stack([table.view(7, -1, width)[1:6] for table in proposals.fields.values()], dim=1)
    assert torch.equal(read.view(5, drafts, width), logits)
    rows, heat = torch.tensor([4, 0, 2]), torch.tensor([0.7, 0.0, 0.0, 1.0, 1.6])
    tokens = torch.randint(width, (3, drafts), generator=torch.Generator().manual_seed(5))
    masses = {name: field.axes for name, field in plan.carry.items() if name.startswith("draft_mass")}
    own = {name: torch.zeros([7, *(plan.size(axis) for axis in axes[1:])]) for name, axes in masses.items()}
    proposals.take(own, rows, tokens, heat)
    made = torch.stack([table.view(7, -1, 3)[rows + 1] for table in own.values()], dim=1).view(3, drafts, 3)
    for draft in range(drafts):
        wanted = own_mass(logits[rows, draft], tokens[:, draft], heat[rows])
        torch.testing.assert_close(made[:, draft], wanted)


def test_other_programs_keep_nothing() -> None:
    plan = planned("EAGLE", engine="vllm", page_size=16, max_requests=6, buckets=[4], verify="target_only")[0]
    assert not weighs(plan)
