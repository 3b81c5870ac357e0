"""Texts of programs whose drafts are drawn from a block are distributed as the target's, with a bias and without.

A Markov head, or a selector, makes the distribution of a draft depend on the one that was drawn before it: rejection
has to judge a draft by the row that it was drawn from, which nobody has but the program. A selector draws no token that
is no candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.markov import BlockEngine
from test_distribution import DRAFT, FEWER, MOST, SMALL, bind, kinds_of, plans_of, surprises, with_operands, write
from torch import Tensor

RANK = 5
ROWS = 1 << 13
BLOCK, BIAS = DRAFT.mean(1), DRAFT.mean(0) - DRAFT.mean((0, 1))
"""What a block says by the parity of a position, and what the token before adds to that."""
U, SCALES, V = torch.linalg.svd(BIAS)
TABLES = {"markov_w1": (U * SCALES)[:, :RANK].contiguous(), "markov_w2": V[:RANK].T.contiguous()}
"""Both tables of a Markov head whose bias is nearly that."""
SELECTOR = dict(zip(("selector_before", "selector_after"), TABLES.values(), strict=True))
"""Those of a selector, beside rows of ones."""
BROUGHT = {"DFLASH": {}, "DSPARK": TABLES, "DFLASH2": SELECTOR}
SAID = {"DFLASH": {}, "DSPARK": {"markov_rank": RANK}, "DFLASH2": {"selector_rank": RANK, "selector_top_k": 3}}
MODEL = SMALL | {"num_layers": 2}
PROGRAMS: dict[str, dict[str, Any]] = {
    f"{algorithm} {verify}": {
        "algorithm": algorithm, "verify": verify, "num_steps": 2, "target": MODEL | {"aux_layers": [1, 2]},
        "draft": MODEL | {"num_aux_layers": 2} | more,
    }
    for algorithm, more in SAID.items() for verify in ("rejection", "block")
}  # fmt: skip


PROGRAMS |= {f"{name} of a budget": PROGRAMS[name] | {"budget": 2} for name in [*PROGRAMS]}


def texts(name: str, count: int) -> tuple[list[float], float]:
    """How probable texts of each kind of request are if the target has written them, and tokens of a verification."""
    plans = plans_of(ROWS, **PROGRAMS[name])
    kinds = kinds_of(ROWS)
    step = bind(plans, kinds, BLOCK, BlockEngine, **BROUGHT[name.split()[0]])
    lengths = list[Tensor]()
    step.decode = noting(step.decode, lengths)
    found = write(plans, count, chunk=ROWS, step=step)
    return surprises(*found), torch.cat(lengths).double().mean().item()


def noting(decode: Callable[..., Any], lengths: list[Tensor]) -> Callable[..., Any]:
    """Note how many tokens each verification has accepted."""

    def decoded(*given: Any) -> Any:
        result = decode(*given)
        lengths.append(result.outputs["accept_lens"].clone())
        return result

    return decoded


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_of_all_kinds(name: str, request: pytest.FixtureRequest) -> None:
    """Requests of all kinds in one batch, with every feature alone and with all of them."""
    chances, _ = texts(name, request.config.getoption("--texts", default=MOST))
    assert min(chances) > 1e-4, chances


@pytest.mark.parametrize("algorithm", ["DSPARK", "DFLASH2"])
def test_a_bias_is_worth_having(algorithm: str) -> None:
    """More drafts are accepted where they know the token before."""
    (_, with_bias), (_, without) = (texts(f"{name} rejection", FEWER) for name in (algorithm, "DFLASH"))
    assert with_bias - 1 > 1.1 * (without - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda given: [*given[:-2], given[-1], given[-2]],
        lambda given: [*given[:-2], given[-2].roll(1, 0), given[-1].roll(1, 0)],
    ],
    ids=["the row of another draft", "the row behind another token"],
)
@pytest.mark.parametrize("algorithm", ["DSPARK", "DFLASH2"])
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_a_wrong_row_is_noticed(
    verify: str, algorithm: str, wrong: Callable[[list[Any]], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same test, of fewer texts."""
    with_operands("sample.residual", wrong)(monkeypatch)
    assert min(texts(f"{algorithm} {verify}", FEWER)[0]) < 1e-6
