"""The servers that are compared."""

from __future__ import annotations

from itertools import product
from typing import Any

from variant import CHAIN, Shape, Variant

LLAMA_DEFAULT: Shape = (5, 4, 8)
"""What SGLang takes for a Llama where no shape is written."""
DRAWN = (("temperature", 1.0), ("top_p", 0.9))


def text_variants() -> list[Variant]:
    """On the example models: backends, forms, pages, with overlap and without."""
    made = [
        Variant("ex_nospec"),
        Variant(
            "ex_standalone_chain_triton", "STANDALONE", "ex_standalone", backend="triton", config="ex_standalone_chain"
        ),
        Variant("ex_eagle_chain_triton", "EAGLE", "ex_eagle", backend="triton", config="ex_eagle_chain"),
        Variant(
            "ex_eagle_tree_triton", "EAGLE", "ex_eagle", LLAMA_DEFAULT, backend="triton", config="ex_eagle_tree_full"
        ),
    ]
    for backend, form, page, overlap in product(("fa3", "flashinfer"), ("chain", "tree"), (1, 16), (True, False)):
        paged = "_p16" if page > 1 else ""
        config = f"ex_eagle_{form}{'_qlen' if (backend, form) == ('flashinfer', 'tree') else ''}{paged}"
        name = f"ex_eagle_{form}_{backend}{paged}{'' if overlap else '_sync'}"
        shape = CHAIN if form == "chain" else LLAMA_DEFAULT
        made.append(Variant(name, "EAGLE", "ex_eagle", shape, True, backend, overlap, page, config=config))
    chains = [("exmla_chain", True), ("exmla_chain_sync", False)]
    made.append(Variant("exmla_nospec"))
    return made + [Variant(name, "EAGLE", written=False, overlap=o, config="exmla_chain") for name, o in chains]


def timed_variants() -> list[Variant]:
    """At a real size. First the servers that people start, then those of other GPUs and shapes."""

    def llama(name: str, shape: Shape, config: str, **more: Any) -> Variant:
        return Variant(f"llama_{name}", "EAGLE", "llama_eagle", shape, config=f"llama_{config}", **more)

    tree16 = (3, 4, 16)
    return [
        Variant("llama_nospec"),
        llama("chain", CHAIN, "chain"),
        llama("default", LLAMA_DEFAULT, "tree8", written=False),
        llama("chain_head", CHAIN, "chain_head"),
        llama("chain_fp8", CHAIN, "chain_fp8"),
        llama("chain_map", CHAIN, "chain_map_fp8", token_map="llama_tokens.pt"),
        llama("chain_drawn", CHAIN, "chain_drawn", sampling=DRAWN),
        llama("default_drawn", LLAMA_DEFAULT, "tree8_drawn", written=False, sampling=DRAWN),
        Variant("mla_nospec"),
        Variant("mla_chain", "EAGLE", written=False, config="mla_chain"),
        llama("chain_flashinfer", CHAIN, "chain", backend="flashinfer"),
        llama("tree16", tree16, "tree16_qlen"),
        llama("tree16_fa3", tree16, "tree16", backend="fa3"),
        llama("tree8_flashinfer", LLAMA_DEFAULT, "tree8_qlen", backend="flashinfer"),
    ]


def shared_variants() -> list[Variant]:
    """At a real size, on two GPUs: all-reduce by NCCL, and as SGLang chooses."""
    nccl = (("disable_custom_all_reduce", True),)

    def ranks(name: str, shape: Shape, config: str, **more: Any) -> Variant:
        return Variant(f"tp2_{name}", "EAGLE", "llama_eagle", shape, config=f"tp2_{config}", ranks=2, **more)

    return [
        Variant("tp2_nospec", ranks=2, arguments=nccl),
        ranks("chain", CHAIN, "chain", arguments=nccl),
        ranks("default", LLAMA_DEFAULT, "tree8", written=False, arguments=nccl),
        ranks("chain_reduce", CHAIN, "chain"),
        ranks("default_reduce", LLAMA_DEFAULT, "tree8", written=False),
    ]


def loaded_variants() -> list[Variant]:
    """At a real size, of up to 128 requests: chains, and chains whose requests share the target's rows out."""

    def chain(name: str, steps: int) -> Variant:
        shape = (steps, 1, steps + 1)
        return Variant(f"load_{name}", "EAGLE", "llama_eagle", shape, config=f"load_{name}")

    return [
        Variant("load_nospec"), chain("chain2", 2), chain("chain5", 5), chain("budget3", 5), chain("budget4", 5)
    ]  # fmt: skip


def drafted_variants() -> list[Variant]:
    """At a real size, whose drafts are no single head's: blocks, look-ups, modules, an assistant; and other targets."""

    def looks_up(name: str, shape: Shape, config: str, *breadth: int) -> Variant:
        """SGLang's tree has 12 nodes, and a form that texts decide, of so many branches at most."""
        arguments = tuple(("speculative_ngram_max_bfs_breadth", most) for most in breadth)
        return Variant(f"llama_{name}", "NGRAM", "", shape, False, config=f"llama_{config}", arguments=arguments)

    def corrected(name: str, **more: Any) -> Variant:
        """Blocks of seven, whose size the draft says."""
        return Variant(f"qwen3_{name}", "DSPARK", "qwen3_markov", (7, 1, 8), False, config=f"qwen3_{name}", **more)

    def chosen(name: str, **more: Any) -> Variant:
        """Blocks of 16 with a selector, which SGLang knows by the draft.

        A machine's first server compiles flashinfer's top-k when it captures the draft: more than three minutes.
        """
        return Variant(f"qwen3_{name}", "DFLASH", "qwen3_lattice", (15, 1, 16), False, config=f"qwen3_{name}", **more)

    return [
        looks_up("ngram", (11, 1, 12), "ngram"),
        looks_up("ngram_chain", (11, 1, 12), "ngram", 1),
        looks_up("ngram_tree", (4, 3, 12), "ngram_tree", 3),
        Variant("qwen3_nospec"),
        *(
            Variant(f"qwen3_{name}", "DFLASH", "qwen3_blocks", (15, 1, 16), False, config=f"qwen3_{name}")
            for name in ("blocks", "budget4", "budget8", "products")
        ),
        Variant("qwen3_products32", "DFLASH", "qwen3_blocks32", (31, 1, 32), False, config="qwen3_products32"),
        chosen("lattice"),
        chosen("lattice_drawn", sampling=DRAWN),
        corrected("markov"),
        corrected("markov_drawn", sampling=DRAWN, plugins="plugins"),
        corrected("markov_map_drawn", sampling=DRAWN, plugins="plugins", program_map="tokens.json"),
        corrected("markov_fp8"),
        corrected("markov_map", program_map="tokens.json"),
        Variant("moe_nospec"),
        Variant("moe_chain", "EAGLE3", "moe_eagle3", config="moe_chain"),
        Variant("oss_nospec"),
        Variant("oss_chain", "EAGLE3", "oss_eagle3", config="oss_chain"),
        Variant("mimo_nospec"),
        Variant("mimo_chain", "EAGLE", "mimo_target", config="mimo_chain"),
        Variant("gemma_nospec"),
        Variant("gemma_chain", "NEXTN", "gemma_assistant", config="gemma_chain"),
        Variant("v4_nospec"),
        Variant("v4_chain", "EAGLE", config="v4_chain"),
        Variant("q27_nospec"),
        Variant("q27_chain", "NEXTN", "q27_target", config="q27_chain"),
        Variant("q27_chain_map", "NEXTN", "q27_target", config="q27_chain_map", program_map="tokens.json"),
        Variant("q27_chain_drawn", "NEXTN", "q27_target", config="q27_chain_drawn", sampling=DRAWN),
        Variant("q27_select", "NEXTN", "q27_target", config="q27_select"),
        Variant("q35_nospec"),
        Variant("q35_chain", "NEXTN", "q35_target", config="q35_chain"),
        Variant("q35_select", "NEXTN", "q35_target", config="q35_select"),
        Variant("q35_select_drawn", "NEXTN", "q35_target", config="q35_select_drawn", sampling=DRAWN),
    ]


def shaped_variants() -> list[Variant]:
    """Of shapes.py: a server whose program has several shapes, and SGLang's own shapes, a server each."""

    def llama(name: str, shape: Shape, **more: Any) -> Variant:
        return Variant(f"shapes_{name}", "EAGLE", "llama_eagle", shape, **more)

    largest, mapped = (5, 4, 16), {"token_map": "llama_tokens.pt"}
    return [
        Variant("ex_eagle_shapes", "EAGLE", "ex_eagle", largest, backend="fa3", config="ex_eagle_shapes"),
        llama("program", largest, backend="fa3", config="llama_shapes"),
        llama("program_map", largest, backend="fa3", config="llama_shapes_map", **mapped),
        llama("default", LLAMA_DEFAULT, written=False),
        llama("chain3", CHAIN),
        llama("chain5", (5, 1, 6)),
        llama("chain3_map", CHAIN, **mapped),
        llama("chain5_map", (5, 1, 6), **mapped),
        llama("tree16", (3, 4, 16), backend="fa3"),
        Variant("shapes_nospec", shape=(0, 1, 1)),
    ]


def budgeted_variants() -> list[Variant]:
    """Of budgets.py: servers whose programs have several budgets, and SGLang's own shapes, a server each."""

    def chain(steps: int, name: str = "", config: str = "") -> Variant:
        shape = (steps, 1, steps + 1)
        return Variant(f"budget8_{name or f'chain{steps}'}", "EAGLE3", "llama_eagle3", shape, config=config)

    def block(size: int, name: str = "", config: str = "") -> Variant:
        """The draft's own have 16."""
        sized, shape = (("speculative_num_draft_tokens", size),), (size - 1, 1, size)
        named = f"budget14_{name or f'block{size}'}"
        return Variant(named, "DFLASH", "q14_blocks", shape, False, config=config, arguments=sized)

    return [
        chain(3, "eagle3", "budget8_eagle3"), *map(chain, (5, 2, 1)), Variant("budget8_nospec", shape=(0, 1, 1)),
        block(16, "blocks", "budget14_blocks"), *map(block, (8, 4)), Variant("budget14_nospec", shape=(0, 1, 1)),
    ]  # fmt: skip


BUDGETED = {variant.name: variant for variant in budgeted_variants()}
SHAPED = {variant.name: variant for variant in shaped_variants()}
VARIANTS = {
    variant.name: variant
    for made in (text_variants, timed_variants, shared_variants, loaded_variants, drafted_variants)
    for variant in made()
}
