"""The head whose rows see those before them, and whose drafts are selected: its sums, its scores, its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from specc.compiler.ir.ops.lattice import SELECTOR
from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.models.drafts import DflashDraft
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head, GroupedConv
from specc.lab.engine.serving.fitting import head_of, tables_of

from .models_for_tests import COMMON, VOCAB, make_model
from .test_heads_dflash import LAYERS, WIDTH, make_rows
from .test_heads_dflash import make_head as make_plain

RANK = 5
CONV = {"conv_kernel_size": 3, "conv_group_size": 8}


def make_head(**more: Any) -> Dflash2Head:
    """A random head that shares with a random target; more keys of its block."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_key_value_heads": 2}
    said = {"target_layer_ids": [0, 2, 3], "block_size": 4, "selector_rank": RANK, "selector_top_k": 3}
    torch.manual_seed(9)
    head = Dflash2Head(LlamaConfig(**{**COMMON, **sizes, "dflash_config": {**said, **more}})).eval()
    return head.share_with(make_model(hidden=WIDTH))


def test_a_row_is_a_sum_of_itself_and_those_before_it() -> None:
    """Element by element, with the learned weight and that of the group; the first rows have fewer before them."""
    torch.manual_seed(3)
    conv, rows = GroupedConv(6, 3, 2), torch.randn(2, 4, 6)
    conv.base_kernel.data.normal_()
    prepared, behind = conv.prepare(rows)
    finished = conv.finish(rows, behind)
    projected = conv.kernel_projection(rows)  # both sides, taps, groups
    for side, found in ((0, prepared), (1, finished)):
        for block, row, element in torch.cartesian_prod(*map(torch.arange, rows.shape)).tolist():
            of_row = projected[block, row].view(2, 3, 3)[side]
            wanted = sum(
                (conv.base_kernel[side, tap, element] + of_row[tap, element // 2]) * rows[block, row - tap, element]
                for tap in range(min(row, 2) + 1)
            )
            torch.testing.assert_close(found[block, row, element], torch.as_tensor(wanted))


def test_groups_divide_a_row() -> None:
    with pytest.raises(ValueError, match="6 elements are no groups of 4"):
        GroupedConv(6, 3, 4)


def filled(head: Any, bonus: Tensor) -> Tensor:
    """Rows of two blocks of one text, which see themselves alone."""
    positions = torch.arange(3, 7).expand(1, 2, 4)
    mask = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).bool()[None, None]
    head.config._attn_implementation = "sdpa"
    return head(bonus, positions, attention_mask=mask)


@torch.no_grad()
def test_rows_see_those_before_them_in_their_block() -> None:
    """Another bonus token changes no row of another block; without convolutions a head is a DFlash head."""
    head, bonus = make_head(**CONV), torch.tensor([[5, 6]])
    rows, others = filled(head, bonus), filled(head, torch.tensor([[7, 6]]))
    torch.testing.assert_close(rows[:, 1], others[:, 1])
    assert not torch.allclose(rows[:, 0], others[:, 0])
    plain = make_plain()
    plain.load_state_dict({name: weight for name, weight in head.state_dict().items() if name in plain.state_dict()})
    without = make_head()
    without.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(filled(without, bonus), filled(plain, bonus))
    assert not torch.allclose(filled(plain, bonus), rows)
    for layer in head.layers:
        for part in ("attention_conv", "mlp_conv"):
            layer.get_submodule(part).get_parameter("kernel_projection.weight").zero_()
    torch.testing.assert_close(filled(head, bonus), filled(plain, bonus))  # what is learned leaves rows as they are


@torch.no_grad()
def test_embeddings_are_scaled() -> None:
    head, bonus = make_head(input_embedding_scale=2.0), torch.tensor([[5, 6]])
    torch.testing.assert_close(head.beginnings(bonus, 3)[..., 0, :], 2.0 * head.embed(bonus))
    assert torch.equal(head.beginnings(bonus, 3)[..., 1:, :], (2.0 * head.mask).expand(1, 2, 3, -1))


@torch.no_grad()
def test_scores_are_multiplied_and_capped() -> None:
    """A program does not compute the head of such a draft: its scores are no product."""
    plain, rows = make_head(), make_rows(3)[..., :WIDTH]
    scores = plain.logits(rows)
    torch.testing.assert_close(make_head(output_multiplier=0.5).logits(rows), 0.5 * scores)
    capped = make_head(output_multiplier=3.0, final_logit_softcapping=0.25)
    torch.testing.assert_close(capped.logits(rows), 0.25 * torch.tanh(3.0 * scores / 0.25))
    assert head_of(DflashDraft(plain)) is not None
    with pytest.raises(UnsupportedModelError, match="not the product of its hidden states and its head"):
        head_of(DflashDraft(capped))


@torch.no_grad()
def test_a_selector_is_two_tables_and_a_row() -> None:
    head, rows = make_head(), torch.randn(2, 3, WIDTH)
    draft, tokens = DflashDraft(head), torch.tensor([[0, VOCAB - 1, 4], [3, 3, 5]])
    before, after = tables_of(draft, SELECTOR).values()
    assert (before.shape, after.shape) == ((VOCAB, RANK), (VOCAB, RANK))
    pairs = torch.einsum("bsr,bsr,vr->bsv", before[tokens], draft.selector_rows(rows), after)
    torch.testing.assert_close(head.candidate_selector(rows, tokens), pairs)


def test_a_directory_keeps_it(tmp_path: Path) -> None:
    """Under the names of published checkpoints."""
    head = make_head(**CONV)
    names = head.state_dict().keys()
    assert {"candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"} < names
    assert {"layers.0.attention_conv.base_kernel", "layers.1.mlp_conv.kernel_projection.weight"} < names
    head.save(tmp_path)
    again = Dflash2Head.from_directory(tmp_path, make_model(hidden=WIDTH))
    for name, weight in head.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


@pytest.mark.parametrize("key", ["selector_rank", "selector_top_k"])
def test_what_has_no_selector(key: str) -> None:
    with pytest.raises(ValueError, match="says no selector_rank or no selector_top_k"):
        make_head(**{key: 0})
    with pytest.raises(UnsupportedModelError, match="tables of a selector, which the draft does not have"):
        tables_of(DflashDraft(make_plain()), SELECTOR)
    with pytest.raises(TypeError, match="DflashHead has no selector"):
        DflashDraft(make_plain()).selector_rows(torch.zeros(1, 1, WIDTH))
