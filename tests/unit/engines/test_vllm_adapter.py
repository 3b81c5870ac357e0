"""What of the adapter for vLLM needs no vLLM: whose rows its tables have, what does not fit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes.vllm_tables import BlockTables, RequestState
from torch import Tensor

from specc.engines._heads import HEAD, TOKEN_MAP
from specc.engines._plugin import MisfitError
from specc.engines.vllm.server.fit import misfits
from specc.engines.vllm.tables import Blocks, NoBlocks, block_table, carried, draft_groups
from specc.runtime.plan.shape import Shape

P = 7


def states(requests: int = 5, steps: int = 3) -> RequestState:
    return RequestState(requests, steps, 8)


def test_a_row_of_vllms_is_the_one_behind_it_of_the_program() -> None:
    req_states = states()
    fields = carried(req_states, P)
    assert {name: (list(table.shape), table.dtype) for name, table in fields.items()} == {
        "drafts": ([P, 3], torch.int64), "bonus": ([P], torch.int64), "seq_lens": ([P], torch.int32),
    }  # fmt: skip
    req_states.draft_tokens[0] = torch.tensor([4, 5, 6])
    req_states.last_sampled_tokens[4] = 9
    req_states.num_computed_tokens.gpu[2] = 11
    assert fields["drafts"][:3].tolist() == [[0, 0, 0], [4, 5, 6], [0, 0, 0]]
    assert fields["bonus"].tolist() == [0, 0, 0, 0, 0, 9, 0]
    assert fields["seq_lens"].tolist() == [0, 0, 0, 11, 0, 0, 0]
    assert [list(table.shape) for table in (req_states.draft_tokens, req_states.last_sampled_tokens)] == [
        [5, 3],
        [5, 1],
    ]
    assert all(table.data_ptr() % 16 == 0 and table.is_contiguous() for table in fields.values())


def test_texts_are_a_field_where_drafts_are_looked_up() -> None:
    req_states, untouched = states(), states()
    own = untouched.all_token_ids.gpu
    text = carried(req_states, P, text=True)["text"]
    assert (list(text.shape), text.dtype) == ([P, 8], torch.int32)
    req_states.all_token_ids.gpu[4, 7] = 3
    assert text.nonzero().tolist() == [[5, 7]]
    assert req_states.all_token_ids.gpu.stride(0) == 8, "vLLM's kernels are told how far rows are apart"
    assert "text" not in carried(untouched, P)
    assert untouched.all_token_ids.gpu is own, "it may be memory of the host's"


@pytest.mark.parametrize(("width", "wider"), [(5, 8), (8, 8), (1, 4)])
def test_rows_of_blocks_begin_at_multiples_of_sixteen_bytes(width: int, wider: int) -> None:
    blocks = BlockTables(5, (3, width))
    untouched: Tensor = blocks.block_tables[0].gpu
    whole = block_table(blocks, 1, P)
    replaced: Tensor = blocks.block_tables[1].gpu
    assert (list(whole.shape), list(replaced.shape)) == ([P, wider], [5, wider])
    assert replaced.data_ptr() == whole[1].data_ptr()
    assert replaced.data_ptr() % 16 == whole.data_ptr() % 16 == 0
    assert blocks.input_block_tables[1].shape == replaced.shape, "vLLM gathers rows into a table as wide"
    assert blocks.block_tables[0].gpu is untouched
    assert blocks.told == [[untouched.data_ptr(), replaced.data_ptr()]], "vLLM's kernels find tables by these addresses"


def test_room_of_requests() -> None:
    """What a request's blocks hold, of the draft's own groups; without a draft as much as a step may need."""
    sizes = SimpleNamespace(page_size=16, window=4)
    made = plan(kv=sizes)
    tables = BlockTables(5, (9, 5), (8, 16))
    for row in range(5):
        tables.append(0, row, [7] * 9)
        tables.append(1, row, [7] * row)
    assert Blocks(tables, {1: True}, made).room(np.array([3, 0])).tolist() == [48, 0]
    assert Blocks(tables, {1: True, 0: True}, made).room(np.array([4, 3])).tolist() == [64, 48]
    tables.num_blocks.np[0, 4] = 5
    assert Blocks(tables, {1: True, 0: True}, made).room(np.array([4, 3])).tolist() == [40, 48]
    with pytest.raises(MisfitError, match="page_size is 16 in the program, blocks of the draft have 8 slots"):
        Blocks(tables, {0: True}, made)
    with pytest.raises(MisfitError, match="blocks of the draft have 8 slots"):
        Blocks(tables, {0: True, 1: False}, made)
    for longest, width in ((60, 4), (61, 5)):
        none = NoBlocks(made, longest, torch.device("cpu"))
        assert (list(none.table.shape), none.table.dtype) == ([P, width], torch.int32)
        assert not none.table.any()
        assert none.room(np.array([3, 0])) == 16 * width >= longest + 4


def plans(*others: int, **changes: Any) -> Any:
    """The plans of a program whose deepest shape has 3 drafts, and others so many."""
    return {Shape(drafts, 1, drafts + 1): plan(**changes) for drafts in (3, *others)}


def plan(**changes: Any) -> Any:
    model = SimpleNamespace(vocab_size=96, hidden_size=64, dtype="bf16", logits_dtype="bf16")
    sizes = {"S": 3, "P": P}
    given = {
        "algorithm": "EAGLE",
        "runs_as": None,
        "size": sizes.__getitem__,
        "models": {"target": model, "draft": model},
        "buckets": [4],
        "tables": dict,
        "computes_head": False,
        "ranks": 1,
        "carry": {},
        "inputs": {},
    }
    return SimpleNamespace(**given | changes)


def model(**changes: Any) -> Any:
    sizes = {"vocab": 96, "hidden": 64} | changes
    keys = {"part": "draft_vocab_size", "modules": "num_nextn_predict_layers"}
    return SimpleNamespace(
        dtype=torch.bfloat16,
        get_vocab_size=lambda: sizes["vocab"],
        get_hidden_size=lambda: sizes["hidden"],
        hf_config=SimpleNamespace(**{key: sizes[name] for name, key in keys.items() if name in sizes}),
        return_sampling_mask=False,
    )


def server(**changes: Any) -> Any:
    """A VllmConfig that the program of `plan` fits, but for changes of what its parts hold."""
    ranks = dict.fromkeys(
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size",
         "decode_context_parallel_size"), 1,
    )  # fmt: skip
    spec = {
        "method": "eagle", "num_speculative_tokens": 3, "draft_sample_method": "greedy",
        "rejection_sample_method": "standard", "enable_adaptive_verification": False,
        "num_speculative_tokens_per_batch_size": None,
        "use_local_argmax_reduction": False, "parallel_drafting": False, "draft_model_config": model(),
    }  # fmt: skip
    beside = {"max_num_seqs": P - 1, "enable_eplb": False, "watermark_config": None, "model_config": model()}
    beside |= {"enable_batch_sharded_sampling": False}
    given = ranks | spec | beside | changes
    given["model_config"].max_model_len = 160
    made = SimpleNamespace(**given, use_ubatching=False)
    made.parallel_config = made.speculative_config = made.scheduler_config = made
    return made


class Own:
    """A speculator of vLLM's."""


def test_a_server_that_the_program_is_for() -> None:
    assert misfits(plans(), server(), Own, {Own}) == []
    assert misfits(plans(), server(method="mtp"), Own, {Own}) == []
    assert misfits(plans(), server(tensor_parallel_size=2), Own, {Own}) == []


def test_a_plugins_program_in_the_place_of_what_vllm_is_told() -> None:
    ours = plans(algorithm="SOBER", runs_as="EAGLE")
    assert misfits(ours, server(), Own, {Own}) == []
    (misfit,) = misfits(ours, server(method="eagle3"), Own, {Own})
    assert misfit == "the program is of EAGLE, the server's method is eagle3"


def test_modules_that_draft_one_after_the_other() -> None:
    """As many as there are, or fewer; one alone is run at every step."""
    several, single = plans(algorithm="MULTI_LAYER_EAGLE"), plans()
    for modules, message in (
        (3, []), (5, []), (2, ["drafting by 2 modules more than once in a step is not served"]),
        (1, ["the program is of MULTI_LAYER_EAGLE, the server's method is mtp"]),
    ):  # fmt: skip
        given = server(method="mtp", draft_model_config=model(modules=modules))
        assert misfits(several, given, Own, {Own}) == message
    (misfit,) = misfits(single, server(method="mtp", draft_model_config=model(modules=3)), Own, {Own})
    assert misfit == "the program is of EAGLE, the server's method is mtp of several modules"
    for given in ({"method": "mtp", "draft_model_config": model()}, {"draft_model_config": model(modules=3)}):
        assert misfits(single, server(**given), Own, {Own}) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_speculative_tokens": 5}, "num_steps is 3 in the program, 5 in the server"),
        ({"method": "eagle3"}, "the program is of EAGLE, the server's method is eagle3"),
        ({"max_num_seqs": P}, "the server keeps 7 requests, the program 6 (max_requests)"),
        ({"max_num_seqs": 3}, "the largest bucket is 4, the server keeps 3 requests (max_num_seqs)"),
        ({"pipeline_parallel_size": 2}, "pipeline parallelism (pipeline_parallel_size 2) is not served"),
        ({"enable_batch_sharded_sampling": True}, "sampling in which each rank has a part of the batch (enable_batch"),
        (
            {"draft_sample_method": "probabilistic"},
            "drafts are not weighed by what they are drawn from in the program, draft_sample_method is probabilistic",
        ),
        ({"rejection_sample_method": "fly"}, "another rejection sampler (rejection_sample_method fly) is"),
        (
            {"num_speculative_tokens_per_batch_size": [(1, 2, 3), (3, 4, 1), (5, 6, 0)]},
            "num_speculative_tokens_per_batch_size asks for 0, 1 drafts, num_steps is 3",
        ),
        ({"use_local_argmax_reduction": True}, "the most probable token of each rank's own logits (use_local"),
        ({"watermark_config": object()}, "watermarks (watermark_config) is not served"),
        ({"enable_eplb": True}, "experts that move between ranks (enable_eplb) is not served"),
        ({"model_config": model(hidden=128)}, "hidden_size of the target is 64 in the program, 128 in the server"),
        ({"draft_model_config": model(hidden=32)}, "hidden_size of the draft is 64 in the program, 32 in the server"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    (misfit,) = misfits(plans(), server(**changes), Own, {Own})
    assert misfit.startswith(message)


def test_heads_that_the_program_computes() -> None:
    """On its ranks, of as many tokens as the draft scores; that of vLLM's scores all of them. Its logits are f32."""
    target = plan().models["target"]
    part = SimpleNamespace(vocab_size=40, hidden_size=64, dtype="bf16", logits_dtype="f32")
    of_part = plans(
        models={"target": target, "draft": part}, computes_head=True, tables=lambda: {HEAD: None, TOKEN_MAP: None}
    )
    assert misfits(of_part, server(draft_model_config=model(part=40)), Own, {Own}) == []
    (misfit,) = misfits(of_part, server(draft_model_config=model(part=48)), Own, {Own})
    assert misfit == "vocab_size of the draft is 40 in the program, 48 in the server"
    assert misfits(of_part, server(draft_model_config=model()), Own, {Own}) == []  # a file may name them
    assert misfits(plans(), server(draft_model_config=model(part=40)), Own, {Own}) == []
    own = SimpleNamespace(vocab_size=96, hidden_size=64, dtype="bf16", logits_dtype="f32")
    whole = plans(models={"target": target, "draft": own}, computes_head=True, tables=lambda: {HEAD: None})
    assert misfits(whole, server(), Own, {Own}) == []
    (misfit,) = misfits(whole, server(tensor_parallel_size=2), Own, {Own})
    assert misfit == "tensor_parallel is 1 in the program, tensor_parallel_size is 2 in the server"
    assert misfits(of_part, server(draft_model_config=model(part=96)), Own, {Own}) == []  # vLLM says so of all tokens


def test_a_table_of_numbers_of_drafts_is_one_of_shapes() -> None:
    """What it has beyond the server's own number is that."""
    table = [[1, 2, 9], [3, 4, 1]]
    assert misfits(plans(1), server(num_speculative_tokens_per_batch_size=table), Own, {Own}) == []
    assert misfits(plans(1, 0), server(num_speculative_tokens_per_batch_size=table), Own, {Own}) == []
    (misfit,) = misfits(plans(2), server(num_speculative_tokens_per_batch_size=table), Own, {Own})
    assert misfit == "num_speculative_tokens_per_batch_size asks for 1 drafts, num_steps is 2, 3"


def look_ups(**changes: Any) -> Any:
    options = {"window": 160, "longest": 4, "shortest": 2, "beyond": "last", "corpus": None} | changes
    return plans(algorithm="NGRAM", options=options, models={"target": plan().models["target"]})


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_how_drafts_are_looked_up_is_compared(method: str) -> None:
    """And a model that drafts is not: vLLM has the target in its place."""
    own = {"method": method, "prompt_lookup_max": 4, "prompt_lookup_min": 2, "draft_model_config": model(hidden=32)}
    assert misfits(look_ups(), server(**own), Own, {Own}) == []
    for changes, message in (
        ({"window": 128}, "options.window is 128 in the program, max_model_len is 160 in the server"),
        ({"longest": 5}, "options.longest is 5 in the program, prompt_lookup_max is 4 in the server"),
        ({"shortest": 1}, "options.shortest is 1 in the program, prompt_lookup_min is 2 in the server"),
    ):
        assert misfits(look_ups(**changes), server(**own), Own, {Own}) == [message]
    (misfit,) = misfits(look_ups(), server(), Own, {Own})
    assert misfit == "the program is of NGRAM, the server's method is eagle"


def test_other_drafts_are_vllms_own() -> None:
    assert misfits(plans(), server(), Own, ()) == ["drafts are those of Own, served are "]


def test_where_keys_and_values_of_the_draft_are() -> None:
    groups = [SimpleNamespace(layer_names=names) for names in (["t.0"], ["d.0", "t.1", "d.1"], ["d.2"])]
    speculator = SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups), draft_attn_layer_names={"d.0", "d.1", "d.2"}
    )
    assert draft_groups(speculator) == {1: {"d.0", "d.1"}, 2: {"d.2"}}


def test_slots_in_every_group_of_the_draft() -> None:
    """The program names those of its own group; those of others are in the blocks that a request has there."""
    tables = BlockTables(5, (4, 9, 4, 1), (16, 8, 16, 4))
    rng = np.random.default_rng(5)
    owned = {group: rng.permutation(45).reshape(5, 9)[:, :4] for group in (0, 1, 2)}
    blocks = Blocks(tables, {1: True, 2: True, 3: False}, plan(kv=SimpleNamespace(page_size=16, window=4)))
    for group, rows in owned.items():
        for row in range(5):
            tables.append(group, row, rows[row].tolist())
    rows, positions = torch.tensor([4, 0, 1]), torch.tensor([[5, 6], [0, 1], [30, 31]])
    own = blocks.slots(rows, positions)
    assert own[0].tolist() == [owned[2][3][0] * 16 + place for place in (5, 6)]
    assert own[2].tolist() == [owned[2][0][1] * 16 + place for place in (14, 15)]
    named = blocks.slots_by_group(rows, positions, own)
    assert torch.equal(named[0], own.flatten()) and torch.equal(named[2], own.flatten())
    first, last = owned[1][3][0] * 8, owned[1][0][3] * 8
    assert named[1].tolist() == [first + 5, first + 6, 0, 1, last + 6, last + 7], "padding is in block 0"
    assert named[3].tolist() == [-1] * 6, "nobody names slots of a ring"
