"""The servers that are compared, each with the arguments that somebody starts it with and the program of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

ACCEPT_LENGTH = 2.5
"""The accepted length of models whose weights are made up: SGLANG_SIMULATE_ACC_LEN."""
Shape = tuple[int, int, int]
"""S, K, N: draft steps, branches, nodes."""
CHAIN: Shape = (3, 1, 4)
LLAMA_DEFAULT: Shape = (5, 4, 8)
"""What SGLang takes for a Llama where no shape is written."""


@dataclass(frozen=True)
class Models:
    """A target, and the server that is started for it.

    Attributes:
        target: folder of the target.
        made_up: whether weights are made up when the server starts; if not, its texts mean something.
        rows: batch sizes that are captured, the last of them requests at a time.
        context: tokens of the longest text.
        tokens: KV slots.

    """

    target: str
    made_up: bool
    rows: tuple[int, ...]
    context: int
    tokens: int


MODELS = {
    "ex": Models("ex_target", False, (1, 2, 4, 8, 16, 32), 2048, 65536),
    "exmla": Models("exmla_target", False, (1, 2, 4, 8, 16, 32), 2048, 65536),
    "llama": Models("llama_target", True, (1, 8, 32, 64), 9216, 300_000),
    "mla": Models("mla_target", True, (1, 8, 32, 64), 9216, 600_000),
    "shapes": Models("llama_target", True, (1, 2, 4, 8, 16, 32, 64), 2048, 120_000),
}


@dataclass(frozen=True)
class Variant:
    """One server.

    Attributes:
        name: begins with the name of its models.
        algorithm: None decodes without speculation.
        draft: folder of the draft model; "" where SGLang finds it in the target's.
        shape: S, K, N.
        written: whether the shape is an argument; if not, it is what SGLang takes by default.
        backend: the argument --attention-backend; None leaves it to SGLang.
        overlap: whether the scheduler runs ahead of the results.
        page_size: tokens per page of the KV pool.
        sampling: parameters of the requests.
        config: of its program, configs/<config>.yaml.
        token_map: file of the tokens that an EAGLE head scores; "" for all of them.

    """

    name: str
    algorithm: str | None = None
    draft: str = ""
    shape: Shape = CHAIN
    written: bool = True
    backend: str | None = None
    overlap: bool = True
    page_size: int = 1
    sampling: tuple[tuple[str, float], ...] = (("temperature", 0),)
    config: str = ""
    token_map: str = ""

    @property
    def models(self) -> Models:
        """Whose server it is."""
        return MODELS[self.name.split("_", 1)[0]]

    @property
    def text(self) -> bool:
        """Whether its texts are compared; if not, its steps are timed."""
        return not self.models.made_up

    @property
    def plain(self) -> str:
        """The variant of the same target without speculation."""
        return self.name.split("_", 1)[0] + "_nospec"

    @property
    def program(self) -> str | None:
        """The package of its program, if it has one."""
        return f"specc_program_bench_{self.config}" if self.config else None

    def engine(self, folder: Path, device: str) -> dict[str, Any]:
        """Arguments of sglang.Engine on "cuda" or "cpu", with models below a folder."""
        own = self.models
        steps, topk, nodes = self.shape
        shape = {
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": nodes,
        }
        draft = {"speculative_draft_model_path": str(folder / self.draft)} if self.draft else {}
        mapped = {"speculative_token_map": str(folder / self.token_map)} if self.token_map else {}
        speculation = {"speculative_algorithm": self.algorithm} | draft | mapped | (shape if self.written else {})
        cpu = device == "cpu"
        return (
            COMMON
            | {"model_path": str(folder / own.target), "device": device}
            | {"dtype": "float32" if cpu else "bfloat16", "context_length": own.context}
            | {"max_running_requests": max(own.rows), "max_total_tokens": own.tokens}
            | ({"load_format": "dummy"} if own.made_up else {"mem_fraction_static": 0.3})
            | ({"disable_cuda_graph": True} if cpu else {"cuda_graph_bs_decode": list(own.rows)})
            | ({"attention_backend": "intel_amx" if cpu else self.backend} if cpu or self.backend else {})
            | ({"page_size": self.page_size} if self.page_size > 1 else {})
            | ({} if self.overlap else {"disable_overlap_schedule": True})
            | (speculation if self.algorithm else {})
        )

    def environment(self) -> dict[str, str]:
        """What SGLang reads beside its arguments."""
        simulated = self.models.made_up and self.algorithm
        return {"SGLANG_SIMULATE_ACC_LEN": str(ACCEPT_LENGTH)} if simulated else {}


COMMON: dict[str, Any] = {
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "disable_prefill_cuda_graph": True,
    "skip_server_warmup": True,
    "random_seed": 1,
    "log_level": "info",
}
"""Arguments of all servers that make them start sooner and change no decode step."""
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


SHAPED = {variant.name: variant for variant in shaped_variants()}
VARIANTS = {variant.name: variant for variant in (*text_variants(), *timed_variants())}
