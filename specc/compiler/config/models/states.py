"""How large the recurrent state of a layer is, by what a config.json says of its kind.

A request leaves two things in such a layer: a matrix per head, which every token changes, and the last inputs of a
short convolution. Verification needs the inputs of all tokens that it verifies, so that part grows with the drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from specc.compiler.config.block import MOST
from specc.compiler.config.models.attributes import Fact, attribute, block_of, value_of
from specc.compiler.ir.types import DTYPES, NAMES

GDN, KDA, MAMBA2 = "GDN", "KDA", "Mamba-2"
"""Kinds whose sizes are known: a gated delta rule, one with a gate for each channel, and a selective state space."""
_KIND, _SIZES = "state_kind", ("state_heads", "state_rows", "state_columns", "state_groups", "conv_kernel")
_DTYPE = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")


@dataclass(frozen=True)
class RecurrentState:
    """The state of a request in one recurrent layer.

    Attributes:
        kind: `GDN`, `KDA` or `MAMBA2`.
        heads: matrices; ranks have an equal share.
        rows, columns: of a matrix.
        groups: of GDN and KDA the heads of keys; of Mamba-2 the groups of heads that share B and C.
        kernel: taps of the convolution.
        dtype: element type of the matrices, where config.json says it; None where an engine chooses.
        keys: element type of the keys that a verification leaves.

    """

    kind: str
    heads: int
    rows: int
    columns: int
    groups: int
    kernel: int
    dtype: str | None
    keys: str = "float32"

    @classmethod
    def of(cls, facts: Mapping[str, Fact]) -> Self | None:
        """Return the state that a model's facts describe; None where its size is not known."""
        if _KIND not in facts:
            return None
        heads, rows, columns, groups, kernel = (int(facts[name].value) for name in _SIZES)
        dtype = str(facts["state_dtype"].value) if "state_dtype" in facts else None
        return cls(str(facts[_KIND].value), heads, rows, columns, groups, kernel, dtype)

    def matrix_elements(self, ranks: int) -> int:
        """Return how many elements the matrices of a layer have on a rank."""
        return -(-self.heads // ranks) * self.rows * self.columns

    def convolution_channels(self, ranks: int) -> int:
        """Return how many channels the convolution of a layer has on a rank.

        Groups that ranks cannot share out are repeated, so that each rank has the group of its heads (Mamba-2).
        """
        if self.kind == MAMBA2:
            groups = self.groups if self.groups % ranks == 0 else ranks
            return (self.heads * self.rows + 2 * groups * self.columns) // ranks
        return (2 * self.groups * self.columns + self.heads * self.rows) // ranks

    @property
    def sizes(self) -> str:
        """Return what it is, in words."""
        matrices = f"{self.heads} {self.matrices} matrices of {self.rows} x {self.columns}"
        return f"{self.kind}, {matrices}, {self.groups} heads of keys, {self.kernel} taps"

    @property
    def matrices(self) -> str:
        """Return the element type of the matrices; f32 where a model does not name it, as engines keep them."""
        return self.dtype or "float32"

    @property
    def decays_channels(self) -> bool:
        """Return whether each key channel has a decay of its own, rather than each head."""
        return self.kind == KDA

    def faults(self, ranks: int) -> Iterator[str]:
        """Return what of these sizes does not go together, or cannot be shared out over so many ranks."""
        if self.heads % self.groups:
            yield f"{self.groups} heads of keys do not share out {self.heads} matrices"
        for count, what in ((self.heads, "matrices"), (self.groups, "heads of keys")):
            if count % ranks:
                yield f"{count} {what} cannot be shared out over {ranks} ranks"
        if max(self.heads, self.rows, self.columns, self.groups, self.kernel) > MOST:
            yield f"a state has a size above {MOST}"
        if self.kernel < 2:
            yield f"a convolution of {self.kernel} tap keeps no inputs"
        if self.matrices not in ("float32", "bfloat16", "float16"):
            yield f"matrices of {self.matrices[:40]} are none that a program advances"

    def bytes(self, *, ranks: int, drafts: int, inputs: int, matrices: int) -> int:
        """Return the bytes of a request in a layer on a rank, with room for so many drafts.

        ``inputs`` and ``matrices`` are the bytes of an element of the convolution's inputs and of the matrices.
        """
        kept = self.convolution_channels(ranks) * (self.kernel - 1 + drafts) * inputs
        return kept + self.matrix_elements(ranks) * matrices


def state_bytes(facts: Mapping[str, Fact]) -> Fact | None:
    """Return the bytes of a request in a layer, on all ranks together; None where a file does not say its sizes.

    The matrices of a model that does not name their element type are f32, as engines keep them.
    """
    state, dtype = RecurrentState.of(facts), facts.get("dtype")
    if state is None or dtype is None:
        return None
    size = bytes_of(state, str(dtype.value))
    return Fact(size, f"the sizes of {state.kind}") if size is not None else None


def bytes_of(state: RecurrentState, dtype: str) -> int | None:
    """Return the bytes of a request in a layer, on all ranks together, where inputs have a dtype; None if not known."""
    inputs, matrices = _bytes(dtype), _bytes(state.matrices)
    if inputs is None or matrices is None:
        return None
    return state.bytes(ranks=1, drafts=0, inputs=inputs, matrices=matrices)


def _bytes(dtype: str) -> int | None:
    """Return the bytes of an element, None of a type that the IR does not have."""
    return DTYPES[NAMES[dtype]].bytes if dtype in NAMES else None


def state_facts(text: object) -> dict[str, Fact | None]:
    """Return the sizes of a model's recurrent state as facts; none where they are not known."""
    for kind, read in _READERS.items():
        sizes = read(text)
        if sizes and all(size is not None for size in sizes):
            facts: dict[str, Fact | None] = dict(zip(_SIZES, sizes, strict=True))
            return {_KIND: Fact(kind, "the keys of its sizes"), **facts, "state_dtype": _dtype(text)}
    return {}


def _dtype(text: object) -> Fact | None:
    """Return the element type of the matrices, where a file names it."""
    for name in _DTYPE:
        word = value_of(text, name)
        if isinstance(word, str) and word != "auto":
            return Fact(word, name)
    return None


def _gdn(text: object) -> tuple[Fact | None, ...]:
    return tuple(
        attribute(text, (f"linear_{name}",))
        for name in ("num_value_heads", "value_head_dim", "key_head_dim", "num_key_heads", "conv_kernel_dim")
    )


def _kda(text: object) -> tuple[Fact | None, ...]:
    """Return the sizes of KDA: in a block of their own (Kimi), or those of attention (Ling)."""
    block = block_of(text, "linear_attn_config")
    heads, length, kernel = (_in_block(block, name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
    if not block:
        if value_of(text, "kda_lower_bound") is None:
            return ()
        names = ("num_attention_heads", "head_dim", "short_conv_kernel_size")
        heads, length, kernel = (attribute(text, (name,)) for name in names)
    return heads, length, length, heads, kernel


def _in_block(block: Mapping[str, Any], name: str) -> Fact | None:
    size = block.get(name)
    return Fact(size, f"linear_attn_config.{name}") if type(size) is int and size > 0 else None


def _mamba2(text: object) -> tuple[Fact | None, ...]:
    names = (
        ("mamba_num_heads", "mamba_n_heads"),
        ("mamba_head_dim", "mamba_d_head"),
        ("ssm_state_size", "mamba_d_state"),
        ("n_groups", "mamba_n_groups"),
        ("conv_kernel", "mamba_d_conv"),
    )
    return tuple(attribute(text, of_size) for of_size in names)


_READERS = {GDN: _gdn, KDA: _kda, MAMBA2: _mamba2}
"""Kind -> what reads heads, rows and columns of a matrix, groups and the convolution's kernel."""
