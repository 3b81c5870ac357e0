"""What has the node axis is compacted because of its type: for every set of outputs, and for those of a plugin.

The plugin is an algorithm of this file. It draws two more results from the target, one of the forward's own (`heads`)
and one of an op that no other algorithm has there (`alternatives`), and hands them out. It says nothing of compaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from programs import compile_to, config_text, load
from torch import Tensor

from specc.compiler import algorithms
from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.config import LoadedConfig, load_text
from specc.compiler.config.schema import OUTPUTS
from specc.compiler.driver.build import build_program
from specc.compiler.ir.core import Module, is_state, on_nodes
from specc.compiler.ir.interpret import interpret
from specc.compiler.ir.text.printer import print_module
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.plan.nodes import Launch
from specc.runtime.step import Step

SIZES = {"experts_per_token": 3, "index_topk": 5}
TREE = {"topk": 2, "num_steps": 3, "num_draft_tokens": 9}
SUBSETS = list(chain.from_iterable(combinations(OUTPUTS, count) for count in range(len(OUTPUTS) + 1)))


def compactions(module: Module) -> set[str]:
    """Names of the values that are compacted."""
    return {op.operands[0].name for op in module.find("commit.compact")}


def program(outputs: tuple[str, ...], **keys: Any) -> Module:
    """The module of a configuration with these outputs."""
    return compile_to("canonicalize", load(outputs=list(outputs), target=SIZES, **keys))


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE"])
@pytest.mark.parametrize("outputs", SUBSETS, ids="+".join)
def test_every_set_of_outputs(algorithm: str, outputs: tuple[str, ...]) -> None:
    """Each output that lies along the nodes adds its compaction, and nothing else is compacted twice or for nobody."""
    per_node = {
        "hidden_states": "target_hidden",
        "logprobs": "node_logprobs",
        "routed_experts": "routed_experts",
        "indexer_topk": "indexer_topk",
    }
    always = {"target_argmax", *(["target_hidden"] if algorithm == "EAGLE" else [])}
    module = program(outputs, algorithm=algorithm, **TREE)
    wanted = always | {per_node[name] for name in outputs if name in per_node}
    assert compactions(module) == wanted
    assert len(module.find("commit.compact")) == len(wanted)
    assert len(module.find("kv.move")) == 1
    assert {*outputs} <= {*module.outputs}
    assert not any(on_nodes(value) for value in module.outputs.values())
    (target,) = module.find("model.target")
    assert target.attrs["capture"] == ("full" if "target_hidden" in wanted else "null")
    handed = [name for name in ("routed_experts", "indexer_topk") if name in outputs]
    assert [text.split(":")[0] for text in str(target.attrs["extras"]).split(", ") if ":" in text] == handed


def reads_the_target_afterwards(scope: Scope) -> None:
    """The module's own after extend: a forward over the new root that reads the target's keys and values."""
    build_recurrent(scope, reads_hidden=False)
    b, (target,) = scope.b, scope.module.find("model.target")
    lens, state, bonus = target.operands[4], target.results[1], scope.module.outputs["bonus"]
    with b.phase("extend"):
        token = b("tree.root", bonus, names=("again",))
        at = b("kv.positions", lens, names=("again_at",), axis="", offset=0, stride=0)
        widths = {"capture": "null", "width": 0, "input_width": 0, "step": 0}
        dtypes = dict.fromkeys(("dtype", "logits_dtype", "input_dtype"), "f32")
        names = ("again_logits", "kv_again", "again_hidden")
        logits, *_ = b.many("model.assist", token, at, scope.rows, lens, state, names=names, **widths, **dtypes)
        guess, _ = b.many("vocab.argmax", logits, scope.rows, names=("guess", "guess_bad"), dtype="i32", keep="")
    scope.output("guess", guess)


def test_keys_and_values_are_moved_before_others_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(
        name="OUTSIDE", value="plugin:it", load=lambda: Algorithm("OUTSIDE", "", reads_the_target_afterwards)
    )
    monkeypatch.setattr(algorithms, "entry_points", lambda group: [point] if group == "specc.algorithms" else [])
    text = config_text("OUTSIDE", **TREE)
    module = compile_to("bind-kv-layout", load_text(text, Path("small.yaml"), algorithms.names(), algorithms.needs))
    (reader,), (move,) = module.find("model.assist"), module.find("kv.move")
    (state,) = [value for value in reader.operands if is_state(value)]
    assert state is move.result


@pytest.mark.parametrize("outputs", SUBSETS, ids="+".join)
def test_outputs_of_a_chain_move_nothing(outputs: tuple[str, ...]) -> None:
    module = program(outputs)
    assert module.find("commit.compact", "commit.path", "kv.move") == []
    assert {*outputs} <= {*module.outputs}


@pytest.mark.parametrize("keys", [TREE, {}], ids=["tree", "chain"])
def test_outputs_change_only_what_makes_them(keys: dict[str, Any]) -> None:
    """The program without outputs is part of the one with all of them, op by op, up to what is captured."""

    def lines(outputs: tuple[str, ...]) -> set[str]:
        text = print_module(program(outputs, **keys))
        calls = [line for line in text.splitlines() if "model.target(" not in line]
        return {line.partition(" loc(")[0] for line in calls if not line.lstrip().startswith("carry @")}

    assert lines(()) <= lines(tuple(OUTPUTS))


# --- a plugin ---------------------------------------------------------------------------------------------------------


class _Wider(Scope):
    """A scope whose target hands over one result more."""

    def __init__(self, scope: Scope) -> None:
        self.__dict__.update(vars(scope))

    def target_extras(self) -> dict[str, str]:
        """What the algorithm asks for, and heads."""
        return super().target_extras() | {"heads": "f32[B, ?n, 7]"}


def _build(scope: Scope) -> None:
    build_recurrent(_Wider(scope), reads_hidden=True)
    (target,) = scope.module.find("model.target")
    (heads,) = [value for value in target.results if value.name == "heads"]
    scope.output("heads", heads)


def _build_more(scope: Scope) -> None:
    _build(scope)
    (target,) = scope.module.find("model.target")
    with scope.b.phase("verify"):
        _, alternatives, _ = scope.b.many(
            "vocab.topk", target.results[0], scope.rows, names=("alternative_p", "node_alternatives", "alternative_bad")
        )
    scope.output("alternatives", alternatives)


def _build_confused(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=True)
    (target,) = scope.module.find("model.target")
    (extend,) = scope.module.find("model.extend")
    scope.module.set_operands(extend, [*extend.operands[:-1], target.results[2]])


PLUGINS = {
    "CURIOUS": Algorithm("CURIOUS", "an EAGLE head whose target is asked for more", _build),
    "MORE_CURIOUS": Algorithm("MORE_CURIOUS", "the same, and for what else it would have said", _build_more),
    "CONFUSED": Algorithm("CONFUSED", "an EAGLE head that takes rows of nodes for rows of the path", _build_confused),
}


@dataclass
class _Point:
    """An entry point of the plugin."""

    name: str
    value: str = "plugin:it"

    def load(self) -> Algorithm:
        """The algorithm."""
        return PLUGINS[self.name]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed plugin of several algorithms."""
    points = {"specc.algorithms": [_Point(name) for name in PLUGINS]}
    monkeypatch.setattr(algorithms, "entry_points", lambda group: points.get(group, []))


def curious(name: str = "MORE_CURIOUS", **keys: Any) -> LoadedConfig:
    """A configuration of the plugin."""
    text = config_text(name, target=SIZES | {"vocab_size": 7}, draft={"vocab_size": 7}, **keys)
    return load_text(text, Path("small.yaml"), algorithms.names(), algorithms.needs)


@pytest.mark.usefixtures("plugin")
def test_a_plugins_outputs_are_compacted() -> None:
    module = compile_to("canonicalize", curious(**TREE))
    assert {"heads", "node_alternatives"} <= compactions(module)
    types = {name: str(module.outputs[name].type) for name in ("heads", "alternatives")}
    assert types == {"heads": "f32[B, A, 7]", "alternatives": "i64[B, A, K]"}
    chained = compile_to("canonicalize", curious())
    assert chained.find("commit.compact") == []
    assert str(chained.outputs["heads"].type) == "f32[B, A, 7]"


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("keys", [TREE, TREE | {"num_draft_tokens": 4}, {}], ids=["N > A", "N == A", "chain"])
def test_rows_of_nodes_are_no_rows_of_a_path(keys: dict[str, Any]) -> None:
    """Reading hidden rows of nodes with the stride of a path is a build error, at both ends, whatever the sizes."""
    loaded = curious("CONFUSED", **keys)
    with pytest.raises(DiagnosticError) as raised:
        compile_to("infer-types", loaded)
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "type/axis-mismatch"
    assert diagnostic.message == "model.extend: hidden must have A at axis 1, got N in f32[B, N, 64]"
    assert diagnostic.location == loaded.location("draft", "hidden_size")
    assert [(note.message, note.location) for note in diagnostic.notes] == [
        ("f32[B, N, 64] comes from model.target", loaded.location("target", "hidden_size"))
    ]


class _Forwards:
    """Forwards of random answers, which keep what the target handed over; for both of their calling conventions."""

    def __init__(self, seed: int) -> None:
        self.source = torch.Generator().manual_seed(seed)
        self.handed: dict[str, Tensor] = {}

    def interpreted(self, attrs: Mapping[str, Any], operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A forward as modules call it."""
        return self.answer("extras" in attrs, operands)

    def draft(self, **given: Any) -> SimpleNamespace:
        """A forward as programs call it."""
        return SimpleNamespace(**self.answer(False, given))

    extend = draft

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, **_: Any) -> SimpleNamespace:
        """Logits per request and rows per prompt token."""
        hidden = torch.randn(int(seq_lens.sum()), 64, generator=self.source)
        return SimpleNamespace(logits=torch.randn(len(rows), 7, generator=self.source), hidden=hidden)

    def prefill_draft(self, *, rows: Tensor, **_: Any) -> SimpleNamespace:
        """Both per request."""
        hidden = torch.randn(len(rows), 64, generator=self.source)
        return SimpleNamespace(logits=torch.randn(len(rows), 7, generator=self.source), hidden=hidden)

    def target(self, **given: Any) -> SimpleNamespace:
        """The same of the target."""
        return SimpleNamespace(**self.answer(True, given))

    def answer(self, target: bool, operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits of few tokens, and random rows for the rest."""
        tokens = operands["tokens"]
        shape = tokens.shape[:1] if "select" in operands else tokens.shape
        answer = {"logits": torch.randn(*shape, 7, generator=self.source)}
        answer["hidden"] = torch.randn(*shape, 64, generator=self.source)
        if target:
            answer["heads"] = torch.randn(*shape, 7, generator=self.source)
            self.handed = {**answer, "tokens": tokens.clone(), "mask": operands["mask"].clone()}
        return answer

    def accepted(self, b: int) -> list[int]:
        """The columns that the target accepts of request b; a node's parent is the last column it attends to."""
        path, mask = [0], self.handed["mask"][b]
        while len(path) < 4:
            wanted = self.handed["logits"][b, path[-1]].argmax()
            agreed = [c for c in range(1, 9) if mask[c, :c].nonzero()[-1] == path[-1]]
            agreed = [c for c in agreed if self.handed["tokens"][b, c] == wanted]
            if not agreed:
                break
            path.append(agreed[0])
        return path


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("seed", range(12))
def test_a_plugins_outputs_follow_the_accepted_path(seed: int) -> None:
    """The reference semantics of the compiled program against a walk by hand, with a row of padding."""
    module, source = compile_to("canonicalize", curious(**TREE)), torch.Generator().manual_seed(seed)
    forwards = _Forwards(seed)
    rows, lens = torch.tensor([2, 0, 1, 4]), torch.tensor([5, 0, 9, 3])
    table = torch.randperm(5 * 64, generator=source).to(torch.int32).view(5, 64)
    pools = {
        "bonus": torch.randint(0, 7, (5,), dtype=torch.int32, generator=source),
        "topk_p": torch.rand(5, 2, generator=source).sort(descending=True).values,
        "topk_index": torch.randint(0, 7, (5, 2), generator=source),
        "hidden": torch.randn(5, 64, generator=source),
        "seq_lens": torch.tensor([0, 9, 5, 0, 3]),
    }
    inputs = {"req_pool_indices": rows, "seq_lens": lens, "req_to_token": table}
    calls = dict.fromkeys(("model.draft", "model.target", "model.extend"), forwards.interpreted)
    values = interpret(module, "step", inputs, pools, calls, 4)
    heads, alternatives = (values[module.outputs[name].name] for name in ("heads", "alternatives"))
    for b in (0, 2, 3):
        path = forwards.accepted(b)
        assert values["accept_lens"][b] == len(path)
        assert torch.equal(heads[b, : len(path)], forwards.handed["heads"][b, path])
        assert torch.equal(alternatives[b, : len(path)], forwards.handed["logits"][b, path].topk(2).indices)
    assert values["accept_lens"][1] == 0


@pytest.mark.usefixtures("plugin")
def test_a_plugins_program_is_built_and_runs() -> None:
    """Kernels and plan included: the output is compacted by the launch that moves everything else, and handed out."""
    plan = build_program(curious("CURIOUS", **TREE)).plan
    (compact,) = [node for node in plan.nodes("step") if "kv.move" in [call.op for call in node.ops]]
    assert isinstance(compact, Launch)
    paths = {call.operands[0]: call.results[0] for call in compact.ops if call.op == "commit.compact"}
    output = plan.output("heads", "step").value
    assert paths["heads"] == output
    assert {"heads", output} <= {argument.target for argument in compact.args if argument.kind == "value"}
    assert plan.values[output].axes == ("B", "A", "7")
    forwards, table = _Forwards(3), torch.arange(5 * 64, dtype=torch.int32).view(5, 64)
    pools = {owner: [torch.zeros(5 * 64, 2, 16) for _ in range(4)] for owner in ("target", "draft")}
    step = Step(plan, ReferenceBackend(), torch.device("cpu"), forwards, table, pools, poison=0x5A)
    lengths, lens = {3: 4, 1: 6}, set[int]()
    step.prefill(Batch(list(lengths), list(lengths.values())))
    for _ in range(8):
        result = step.decode(Batch(list(lengths), list(lengths.values())))
        for b, row in enumerate(lengths):
            path = forwards.accepted(b)
            assert torch.equal(result.outputs["heads"][b, : len(path)], forwards.handed["heads"][b, path])
            lens.add(len(path))
            lengths[row] += len(path)
    assert len(lens) > 1
