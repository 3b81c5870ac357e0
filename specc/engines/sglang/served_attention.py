"""Attention backends of SGLang's and models, as programs are served on them. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROLES = ("draft", "verify", "extend")
"""What attention does in a step: forwards of the draft, that of the target, and the draft's over accepted tokens."""

CACHES: Mapping[str, str] = {
    "mha": "MHATokenToKVPool",
    "swa": "SWAKVPool",
    "mla": "MLATokenToKVPool",
    "dsa": "DSATokenToKVPool",
    "compressed": "DeepSeekV4TokenToKVPool",
    "qsa": "QSATokenToKVPool",
}
"""Layouts of KV caches that are served -> SGLang's class: keys and values, those with a second pool for layers with a
window, a latent row, one with an indexer's keys, rows of a window with entries that several tokens share, and keys and
values with an indexer's keys, of which several tokens share one."""


STATES: Mapping[str, str] = {"GDN": "GDNAttnBackend", "KDA": "KDAAttnBackend", "Mamba-2": "Mamba2AttnBackend"}
"""Kinds of recurrent state of targets that are served -> SGLang's class of attention for such layers."""
MISPLACED: Mapping[str, str] = {"Mamba-2": "states of Mamba-2, which SGLang's own shorter steps leave elsewhere,"}
"""Those that SGLang gets wrong where it changes the number of its steps, in words."""


@dataclass(frozen=True)
class ServedModel:
    """A model of a server.

    Attributes:
        cache: the layout of its KV cache, a word of `CACHES`; anything else, such as the name of SGLang's class, is a
            layout that is not served.
        window: whether it has layers that see a window of the text alone.
        chunk: whether it has layers that see a chunk of the text alone.
        state: the kind of state that recurrent layers keep of a request, a word of `STATES`; anything else is a kind
            that is not served, and an empty text none at all.
        beside: what sets a draft apart from others of its kind, as `KindOfDraft.beside`; nothing for a plain one.
        borrows: whether it has no KV cache, and reads the target's.

    """

    cache: str = "mha"
    window: bool = False
    chunk: bool = False
    state: str = ""
    beside: str = ""
    borrows: bool = False

    @property
    def conditions(self) -> list[str]:
        """Those of `served_settings.UNDER` that a server is under whose target this is."""
        looks_up = self.cache == "qsa"  # as all such models do
        return ["beside recurrent state"] * bool(self.state) + ["beside n-grams"] * looks_up


@dataclass(frozen=True)
class AttentionBackend:
    """An attention backend of SGLang's: all that specc knows of it, a record in a file of `attention/kinds`.

    Attributes:
        name: SGLang's, on its command line.
        caches: layouts of the KV caches over which it is served, as `Model.cache` has them; none where it is not.
        drafts: those over which it runs the draft's forwards, where not all of `caches`.
        mask: the mode in which it reads the mask of a tree, by specc's name; None where chains alone are served.
        device: `cpu` for one that runs on no GPU; one of a GPU is served wherever SGLang starts it.
        tried: whether a program has run on it, on a GPU if it is one of a GPU's.
        shapes: whether it prepares steps of several shapes.
        windows: the roles in which layers may see a window of the text alone.
        planned: whether the host plans each step of it.
        grouped: whether it is served where attention is data parallel.
        blocks: whether it runs a draft that fills in blocks.
        packed: whether it verifies rows of which each request has as many as it gets (a budget of rows).
        packed_trees: whether it does so of trees.
        place: where it stands in lists for users; the least is the first.
        formerly: older names of it.
        prefill: the backend that SGLang prefills with beside it, where none is written.
        drafts_blocks: whether SGLang runs a draft that fills in blocks on it.
        classes: names of SGLang's classes that are this backend and no other.
        prepared_by: the module in `attention/prepare` that prepares steps on it, and its class; empty where SGLang's
            own preparation does, made anew for each batch.
        touches: what that class needs of SGLang, in lines of `_probe`.
        graphs: whether it writes into buffers that SGLang makes for its graphs, and so is left to SGLang's own
            preparation in servers without.
        tables: whether it reads the tables of a step.
        adds_no_step: whether its drafts read as many keys as a batch has of the text, whatever the step.

    """

    name: str
    caches: tuple[str, ...]
    drafts: tuple[str, ...] | None = None
    mask: str | None = None
    device: str = "cuda"
    tried: bool = True
    shapes: bool = True
    windows: tuple[str, ...] = ()
    planned: bool = False
    grouped: bool = True
    blocks: bool = False
    packed: bool = False
    packed_trees: bool = False
    place: int = 1
    formerly: tuple[str, ...] = ()
    prefill: str = ""
    drafts_blocks: bool = False
    classes: tuple[str, ...] = ()
    prepared_by: str = ""
    touches: str = ""
    graphs: bool = False
    tables: bool = False
    adds_no_step: bool = False

    def whole(self, topk: int) -> str:
        """What it verifies with as many rows for each request alone, in words; empty where it does with packed ones."""
        if not self.packed:
            return f"{self.name} attention"
        return f"trees under {self.name} attention" if topk > 1 and not self.packed_trees else ""

    def over(self, role: str, model: ServedModel | None) -> tuple[str, ...]:
        """The layouts over which it is served in a role of `ROLES` of a model."""
        return self.caches if _reads(role, model) or role != "draft" or self.drafts is None else self.drafts

    def sees(self, role: str, model: ServedModel | None) -> bool:
        """Whether layers may see a window of the text alone in a role of `ROLES` of a model."""
        return role in self.windows or (_reads(role, model) and bool(self.windows))


def _reads(role: str, model: ServedModel | None) -> bool:
    """Whether a role does no more than read: of an assistant, by SGLang's own preparation."""
    return role == "draft" and model is not None and model.borrows
