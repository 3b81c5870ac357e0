"""Look-ups in texts: their kernels, a plain search through the whole text, and cases of both."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cluster_cases import TypedBuilder, carry, form, integer, small_module, with_constants
from hypothesis import strategies as st
from kernel_cases import assert_same, generator, poison
from kernel_launcher import Launcher

from specc.compiler.ir.types import Dim, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec
from specc.runtime.semantics.reference import OPS

POOL = 8
MODES = ("none", "qlen", "bitpacked", "full", "slots")
Case = dict[str, Any]


def check(
    launcher: Launcher,
    spec: Spec,
    grid: tuple[int, int],
    inputs: Mapping[str, torch.Tensor | int],
    scratches: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
) -> None:
    """Launch twice; every output buffer must equal `expected` whole, every input stay as it was.

    `outputs` is what is in the buffers before. The scratch is not renewed for the second launch.
    """
    kept = {name: value.to(launcher.device) for name, value in scratches.items()}
    for attempt in ("first launch", "second launch"):
        given: dict[str, Any] = {
            name: value.clone().to(launcher.device) if isinstance(value, torch.Tensor) else value
            for name, value in {**inputs, **outputs}.items()
        }
        launcher.launch(spec, grid, {**given, **kept})
        for name, want in {**inputs, **expected}.items():
            if isinstance(want, torch.Tensor):
                assert_same(given[name].cpu(), want, f"{name}, {attempt}")
        assert "arrivals_ptr" not in kept or not kept["arrivals_ptr"].any(), f"counters, {attempt}"


def look_up(shape: Case, *, corpus: bool, width: int) -> Spec:
    """The kernel that looks drafts up, as its family writes it but for tiles and programs."""
    nodes, tree, mode = shape["nodes"], shape["mode"] != "chain", shape["mode"]
    module = small_module(K=shape["k"], N=nodes)
    carry(module, "text", "i32", shape["window"])
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    module.dims["M"] = Dim("M", "corpus", None)
    known = [module.add_input("corpus", TensorType("i32", ("M",)))] if corpus else []
    attrs = {"axis": "N", **{name: shape[name] for name in ("longest", "shortest", "steps", "beyond")}}
    with b.phase("draft"):
        text = b("carry.load", rows, field="text")
        b.hand_out(b("ngram.propose", rows, lens, text, *known, **attrs))
        if tree:
            parent, depth = b.many("tree.comb", rows, steps=shape["steps"])
            b.hand_out(parent, b("tree.positions", lens, depth))
        if mode == "slots":
            b.hand_out(*b.many("tree.seen_slots", b.given("slots", "i64", "N"), parent))
        elif tree and mode != "none":
            b.hand_out(b("tree.mask", lens, parent, mode=mode, width=width))
    ((stem, cluster),) = form(module)
    changed = {"BLOCK": shape["block"], "SPLITS": 8} | ({"LINKS": 3} if mode == "full" else {})
    return with_constants(FAMILIES[stem].spec(module, stem, cluster), changed)


def start(window: int, block: int) -> Spec:
    """The kernel that begins a ring."""
    module = small_module()
    module.dims["T"] = Dim("T", "token", None)
    carry(module, "text", "i32", window)
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    with b.phase("prefill"):
        prompt = module.add_input("prompt", TensorType("i64", ("T",)))
        text = b("ngram.start", rows, lens, b.given("first", "i32"), prompt, window=window)
        b.many("carry.store", rows, text, field="text")
    ((stem, cluster),) = form(module)
    return with_constants(FAMILIES[stem].spec(module, stem, cluster), {"BLOCK": block})


def random_text(source: torch.Generator, length: int, alphabet: int) -> list[int]:
    """A text of a random kind: letters, one letter, a short piece over and over, or pieces of its own repeated."""
    kind = integer(source, 0, 3)
    text = torch.randint(0, alphabet, (length,), generator=source).tolist()
    if kind == 1:
        text = [text[0]] * length if text else []
    elif kind == 2:
        period = integer(source, 1, 5)
        text = [text[i % period] for i in range(length)]
    elif kind == 3 and length > 4:
        cut = integer(source, 1, length // 2)
        text[-cut:] = text[:cut]
    return text


def ring(text: Sequence[int], window: int) -> list[int]:
    """Token q of the text at entry q % window, for the last ones; 0 where there is none."""
    entries = [0] * window
    for position in range(max(0, len(text) - window), len(text)):
        entries[position % window] = text[position]
    return entries


def drafts(text: list[int], corpus: list[int], shape: Case) -> list[int]:
    """The tokens of all columns, by comparing every end of every source with the end of the text.

    A branch reads on in a copy of its source that grows with what it drafts, and the branches are sorted as the op's
    definition words it.
    """
    text = text[-shape["window"] :]
    branches: list[tuple[int, int, int, list[int]]] = []
    for preference, known in ((1, text), (0, corpus)):
        for stop in range(1, len(known)):
            most = next(n for n in range(min(shape["longest"], stop), -1, -1) if tail(known[:stop], n) == tail(text, n))
            if most >= shape["shortest"]:
                fill = text[-1] if shape["beyond"] == "last" else None
                tokens = continued(known, stop, shape["steps"], grows=preference == 1, fill=fill)
                branches.append((most, preference, stop, tokens))
    chosen: dict[int, list[int]] = {}
    for _, preference, stop, tokens in sorted(branches, reverse=True):
        begin = text[stop] if preference else corpus[stop]
        if len(chosen) < shape["k"]:
            chosen.setdefault(begin, tokens)
    columns = [text[-1], *(token for tokens in chosen.values() for token in tokens)]
    return (columns + [text[-1] if shape["beyond"] == "last" else 0] * shape["nodes"])[: shape["nodes"]]


def tail(text: list[int], count: int) -> list[int]:
    """The last tokens; all if there are fewer."""
    return text[max(0, len(text) - count) :]


def continued(known: list[int], stop: int, steps: int, *, grows: bool, fill: int | None) -> list[int]:
    """What follows the first `stop` tokens, and then `fill`; without it 0, of a text what has just been drafted."""
    tokens: list[int] = []
    if fill is not None:
        followed = [token if token >= 0 else fill for token in known[stop : stop + steps]]
        return followed + [fill] * (steps - len(followed))
    for at in range(stop, stop + steps):
        source = known + tokens if grows else known
        tokens.append(source[at] if at < len(source) else 0)
    return [max(token, 0) for token in tokens]


shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 3),
        "window": st.sampled_from([8, 9, 13, 16, 31, 64]),
        "alphabet": st.sampled_from([1, 2, 3, 6]),
        "longest": st.integers(1, 9),
        "shortest": st.integers(1, 9),
        "k": st.sampled_from([1, 2, 4]),
        "steps": st.integers(1, 5),
        "cut": st.integers(0, 6),
        "scans": st.integers(1, 6),
        "block": st.sampled_from([4, 8, 64]),
        "corpus": st.sampled_from([None, 0, 1, 2, 7, 40]),
        "mode": st.sampled_from(["chain", *MODES]),
    }
)
PLAIN: Case = {
    "seed": 0,
    "batch": 1,
    "window": 16,
    "alphabet": 9,
    "longest": 8,
    "shortest": 1,
    "k": 1,
    "steps": 3,
    "cut": 0,
    "scans": 1,
    "block": 16,
    "corpus": None,
    "mode": "chain",
    "beyond": "period",
}


def completed(shape: Case) -> Case:
    """A case with its nodes: all of K branches, less a few."""
    nodes = max(2, 1 + shape["k"] * shape["steps"] - shape["cut"])
    return shape | {"nodes": nodes, "shortest": min(shape["shortest"], shape["longest"])}


def random_lengths(source: torch.Generator, shape: Case) -> list[int]:
    """Committed lengths: none, shorter than what is compared, and several times around the ring."""
    kinds = [0, 1, shape["longest"] // 2, shape["window"] - 1, shape["window"], integer(source, 0, 3 * shape["window"])]
    return [kinds[integer(source, 0, len(kinds) - 1)] for _ in range(shape["batch"])]


def propose(
    launcher: Launcher, shape: Case, rows: list[int], texts: list[list[int]], corpus: list[int] | None = None
) -> torch.Tensor:
    """Check one launch against both oracles; gives the tokens."""
    shape = completed(shape)
    batch, nodes, tree = len(rows), shape["nodes"], shape["mode"] != "chain"
    pool = torch.randint(0, shape["alphabet"], (POOL, shape["window"]), dtype=torch.int32, generator=generator(9))
    for row, text in zip(rows, texts, strict=True):
        if row:
            pool[row] = torch.tensor(ring(text, shape["window"]), dtype=torch.int32)
    lens = torch.tensor([len(text) - 1 for text in texts])
    inputs: Case = {"rows_ptr": torch.tensor(rows), "seq_lens_ptr": lens, "text_ptr": pool}
    if corpus is not None:
        # What lies behind the corpus is not of it.
        behind = torch.randint(0, shape["alphabet"], (70,), dtype=torch.int32, generator=generator(8))
        inputs["corpus_ptr"] = torch.cat([torch.tensor(corpus, dtype=torch.int32), behind])
        inputs["corpus_size"] = len(corpus)
    max_b, branches = batch + 2, min(shape["k"], -(-(nodes - 1) // shape["steps"]))
    scratches = {
        # Better than any place: what a launch of more programs may have left.
        "partial_key_ptr": torch.full((max_b, 8, branches), 2**62),
        "partial_token_ptr": poison(max_b, 8, branches, dtype=torch.int32),
        "arrivals_ptr": torch.zeros(max_b, dtype=torch.int32),
    }
    outputs = {"tokens_ptr": poison(max_b, nodes, dtype=torch.int64)}
    expected = {"tokens_ptr": outputs["tokens_ptr"].clone()}
    expected["tokens_ptr"][:batch] = reference(shape, inputs, corpus)
    for b, (row, text) in enumerate(zip(rows, texts, strict=True)):
        plain = drafts(text, corpus or [], shape) if row else [0] * nodes
        assert expected["tokens_ptr"][b].tolist() == plain, b
    width = 0
    if tree:
        more, links, width = linked(shape, inputs, max_b)
        outputs, expected = outputs | more, expected | links
    spec = look_up(shape, corpus=corpus is not None, width=width)
    grid = (batch, shape["scans"] + dict(spec.constants).get("LINKS", 0))
    check(launcher, spec, grid, inputs, scratches, outputs, expected)
    return expected["tokens_ptr"][:batch]


def reference(shape: Case, inputs: dict[str, Any], corpus: list[int] | None) -> torch.Tensor:
    """The tokens by the reference op."""
    rows, lens, pool = inputs["rows_ptr"], inputs["seq_lens_ptr"], inputs["text_ptr"]
    text = pool[rows].masked_fill((rows == 0)[:, None], 0)
    known = [] if corpus is None else [torch.tensor(corpus, dtype=torch.int32)]
    attrs = {"axis": "N", **{key: shape[key] for key in ("longest", "shortest", "steps", "beyond")}}
    (tokens,) = OPS["ngram.propose"]((rows, lens, text, *known), attrs, {"K": shape["k"], "N": shape["nodes"]})
    return tokens


def linked(
    shape: Case, inputs: dict[str, Any], max_b: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]:
    """What a tree has besides its tokens: buffers as they are before, as the reference ops leave them, mask's width."""
    rows, lens, nodes, mode = inputs["rows_ptr"], inputs["seq_lens_ptr"], shape["nodes"], shape["mode"]
    batch, dims = len(rows), {"K": shape["k"], "N": nodes}
    parent, depth = OPS["tree.comb"]((rows,), {"steps": shape["steps"]}, dims)
    (positions,) = OPS["tree.positions"]((lens, depth), {}, dims)
    outputs = {name: poison(max_b, nodes, dtype=torch.int64) for name in ("parent_ptr", "positions_ptr")}
    expected = {name: value.clone() for name, value in outputs.items()}
    expected["parent_ptr"][:batch], expected["positions_ptr"][:batch] = parent, positions
    if mode == "none":
        return outputs, expected, 0
    if mode == "slots":
        slots = torch.randint(1, 1 << 31, (batch, nodes), generator=generator(shape["seed"]))
        inputs["slots_ptr"] = slots.masked_fill((rows == 0)[:, None], 0)
        results = OPS["tree.seen_slots"]((inputs["slots_ptr"], parent), {}, dims)
        for name, value in zip(("mask_ptr", "counts_ptr"), results, strict=True):
            outputs[name] = poison(max_b, *value.shape[1:], dtype=torch.int32)
            expected[name] = torch.cat((value, outputs[name][batch:]))
        return outputs, expected, 0
    longest = nodes + int(lens.max())
    width = {"qlen": 0, "bitpacked": 1 << ((nodes - 1) // 8).bit_length(), "full": nodes * longest}[mode]
    (mask,) = OPS["tree.mask"]((lens, parent), {"mode": mode, "width": width}, dims)
    before = torch.randint(0, 2, (max_b * max(mask[0].numel(), 1),), generator=generator(shape["seed"]))
    used = int((lens + nodes).sum()) * nodes if mode == "full" else mask.numel()
    outputs["mask_ptr"] = before.to(mask.dtype)
    expected["mask_ptr"] = outputs["mask_ptr"].clone()
    expected["mask_ptr"][:used] = mask.reshape(-1)[:used]
    return outputs, expected, width
