"""Types of the IR: tensors over named axes, and state.

An axis has *identity*: ``i64[B, N]`` and ``i64[B, A]`` differ even where N == A, so that a node-wide value can
never be read with the stride of a path (the stride bug of tree verification in serving engines).

So have the numbers of tokens: what numbers the entries of a reduced vocabulary is ``i64<Vd>``, and only a translation
makes tokens of it. Plain integers are tokens of the target, or no tokens at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True)
class Dtype:
    """What elements of a tensor are.

    Attributes:
        bytes: of one element.
        torch: torch's name of it, which configurations use.
        pointer: Triton's type of a pointer to them.

    """

    bytes: int
    torch: str
    pointer: str


DTYPES: dict[str, Dtype] = {
    "i1": Dtype(1, "bool", "*i1"),
    "u8": Dtype(1, "uint8", "*u8"),
    "i8": Dtype(1, "int8", "*i8"),
    "f8": Dtype(1, "float8_e4m3fn", "*fp8e4nv"),
    "i32": Dtype(4, "int32", "*i32"),
    "i64": Dtype(8, "int64", "*i64"),
    "f16": Dtype(2, "float16", "*fp16"),
    "bf16": Dtype(2, "bfloat16", "*bf16"),
    "f32": Dtype(4, "float32", "*fp32"),
}
"""Every dtype of the IR, by its name there."""

NAMES = {dtype.torch: name for name, dtype in DTYPES.items()}
"""Names of dtypes in the IR by torch's."""

FLOATS = frozenset({"f16", "bf16", "f32"})
"""Those of hidden states and scores."""

AXES: frozenset[str] = frozenset(
    {"request", "branch", "candidate", "step", "node", "path", "forward", "vocab", "draft_vocab", "reduced_vocab"}
    | {"vocab_shard", "rank", "part", "budget", "draft"}
    | {"pool", "context", "token", "corpus"}
)
"""The kinds of axes: what a dimension counts."""

REDUCED = "reduced_vocab"
"""That of a vocabulary whose entries are numbered otherwise than the target's tokens."""

SHARDS = {"V": "Vs", "Vd": "Vds"}
"""Vocabularies of forwards, and the dimension of the axis `vocab_shard` that a rank scores of each, if it is there."""

UNBOUNDED: frozenset[str] = frozenset({"context", "token", "corpus"})
"""Those whose size the engine decides, if no configuration does."""

LARGEST: dict[str, int] = {"branch": 16, "candidate": 16} | dict.fromkeys(
    ("step", "node", "draft", "path", "forward", "budget"), 512
)
"""The most entries of axes that kernels hold in registers, as in a configuration."""


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension: ``dim B : request <= 8``, ``dim N : node = 4`` or ``dim C : context``.

    Attributes:
        name: symbol used in types.
        axis: what it counts, one of ``AXES``.
        size: number of elements; the upper bound when ``dynamic``; ``None`` when the engine decides.
        dynamic: whether the size varies from step to step.

    """

    name: str
    axis: str
    size: int | None
    dynamic: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a size that no dimension of this axis has; only drafts and forwards may be none."""
        if self.size is None and self.axis not in UNBOUNDED:
            raise ValueError(f"only the engine's axes have no size: {', '.join(sorted(UNBOUNDED))}, not {self.axis}")
        least, most = int(self.axis not in ("step", "forward")), LARGEST.get(self.axis, 1 << 31)
        if self.size is not None and not least <= self.size <= most:
            raise ValueError(f"a dimension of the axis {self.axis} has from {least} to {most} entries, not {self.size}")


@dataclass(frozen=True)
class TensorType:
    """``dtype[shape]``; shape entries are dimension names or plain element counts (widths).

    ``of``: the reduced vocabulary whose entries the elements number, empty for all other numbers.
    """

    dtype: str
    shape: tuple[str | int, ...]
    of: str = ""

    def __str__(self) -> str:
        return f"{self.element}[{', '.join(str(d) for d in self.shape)}]"

    @property
    def element(self) -> str:
        """The dtype, and what the elements number: ``i64`` or ``i64<Vd>``."""
        return f"{self.dtype}<{self.of}>" if self.of else self.dtype

    def sizes(self, dims: Mapping[str, Dim], *, unbounded: int | None = None) -> tuple[int, ...]:
        """Concrete shape at the bounds of all dimensions; ``unbounded`` stands for those that have none.

        Raises:
            ValueError: a dimension's size is the engine's business (``size`` is None).

        """
        sizes: list[int] = []
        for entry in self.shape:
            bound = entry if isinstance(entry, int) else dims[entry].size
            size = unbounded if bound is None else bound
            if size is None:
                raise ValueError(f"dimension {entry} of {self} has no bound")
            sizes.append(size)
        return tuple(sizes)

    def renamed(self, old: str, new: str) -> TensorType:
        """The same type with dimension ``old`` called ``new``."""
        return replace(self, shape=tuple(new if d == old else d for d in self.shape))


@dataclass(frozen=True)
class StateType:
    """A linear value, of which nothing is in the program's memory: threading it makes order dataflow.

    ``!kv<target>`` are a model's keys and values: those of a rejected token are written again later. ``!state<target>``
    is what its recurrent layers keep of a request, into which every token is mixed. A verifying forward leaves one for
    each of its nodes, ``!state<target>[A]``, which is *pending*: one of them has to be committed before the next reads
    it.

    Attributes:
        owner: the model, ``target`` or ``draft``.
        kind: ``kv`` or ``state``.
        along: of a pending state the dimension that it has one along; empty of others.

    """

    owner: str
    kind: str = "kv"
    along: str = ""

    def __str__(self) -> str:
        return f"!{self.kind}<{self.owner}>" + (f"[{self.along}]" if self.along else "")

    @property
    def settled(self) -> StateType:
        """The type once one is committed, which says whose it is and of which kind."""
        return replace(self, along="")

    def renamed(self, old: str, new: str) -> StateType:
        """The same type with dimension ``old`` called ``new``."""
        return replace(self, along=new) if self.along == old else self


Type = TensorType | StateType


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array of this shape."""
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def per_request(type_: TensorType) -> bool:
    """Whether a value has a row per request; an input that has none is a tensor the engine keeps."""
    return "B" in type_.shape
