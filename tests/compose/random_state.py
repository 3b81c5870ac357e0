"""Random ops of what outlives a step: carried fields, health words, positions, KV slots and moves."""

from __future__ import annotations

from specc.compiler.ir.core import NODE, Attr, Value, tensor_type
from specc.compiler.ir.declarations import Options
from specc.compiler.ir.types import StateType, TensorType

from .random_values import COLUMNS, LONGEST, Fact, Unfit, Values

FAR = 1 << 32
"""More than 32 bits hold: how far the places are apart that noise is keyed with."""


class StateOps(Values):
    """Methods named after an op build one, or raise `Unfit`."""

    def health(self) -> None:
        words = [v for v in self.here if v.source and v.source.opcode.startswith("health.")]
        if not words or self.rng.random() < 0.2:
            self.make("health.clear", self.rows())
            return
        bad = self.pick(lambda type_, _: type_.dtype == "i1" and not (self._late and NODE in type_.shape[1:2]))
        self.make("health.raise", self.rng.choice(words), bad, bit=self.rng.randrange(31))

    def store(self) -> None:
        value = self.pick(
            lambda type_, fact: (
                NODE not in type_.shape[1:]
                and type_.shape[0] == "B"
                and fact.kind not in ("rows", "path")
                and "T" not in type_.shape
                and len(type_.shape) < 4
            )
        )
        type_ = tensor_type(value)
        same = [
            name
            for name, carry in self.module.carries.items()
            if carry.type == type_ and name not in self.stored and self.fields[name].kind in ("", self.fact(value).kind)
        ]
        fact = self.fact(value)._replace(pair=None, rough=False)
        if fact.most > LONGEST or fact.kind in ("count", "slots"):
            fact = Fact()
            same = [name for name in same if not self.fields[name].kind]
        name = self.rng.choice(same) if same else self.field("kept", type_, fact)
        self.stored.add(name)
        self.again |= {} if self.fact(value).rough else {name: fact}
        published = self._phase == "commit" and self.rng.random() < 0.3
        self.make("relay.publish" if published else "carry.store", self.rows(), value, field=name)

    def load_again(self) -> None:
        """A field behind what has been stored in it."""
        name = self.rng.choice(sorted(self.again) or [""])
        if not name:
            raise Unfit
        self.make("carry.load", self.rows(), field=name, facts=[self.again[name]])

    def convert(self) -> None:
        """Integers of another width; what does not fit is nothing that is known any more."""
        x = self.pick(
            lambda type_, fact: (
                type_.dtype in ("i32", "i64")
                and type_.shape[0] == "B"
                and fact.kind in ("", "token", "lens")
                and not (self._late and NODE in type_.shape[1:2])
            )
        )
        dtype = self.rng.choice(["i32", "i64"])
        fact = self.fact(x) if tensor_type(x).dtype == "i32" and dtype == "i64" else Fact()
        self.make("carry.convert", x, dtype=dtype, facts=[fact])

    def append(self) -> None:
        values = self.pick(lambda type_, _: type_.shape == ("B", "A") and type_.dtype in ("i32", "i64"))
        ring = TensorType(tensor_type(values).dtype, ("B", self.rng.randint(self.module.size("A"), 60)))
        count = self.kind("count")
        rings = [
            name
            for name, carry in self.module.carries.items()
            if carry.type.dtype == ring.dtype
            and len(carry.type.shape) == 2
            and name not in self.stored
            and isinstance(size := carry.type.shape[1], int)
            and size >= self.module.size("A")
            and not self.fields[name].kind
        ]
        name = self.rng.choice(rings) if rings else self.field("ring", ring, Fact())
        self.stored.add(name)
        self.again[name] = Fact()
        self.make("carry.append", self.rows(), self.lens(), values, count, field=name)

    def count(self) -> None:
        """Tokens of a request, all or the first of some, in a field of its own."""
        values = self.pick(
            lambda type_, fact: type_.dtype == "i32" and fact.kind == "token" and type_.shape in (("B",), ("B", "A"))
        )
        counted = (self.of("i32", "B"),) if self.rng.random() < 0.5 else ()
        axis, field = "A" * (len(tensor_type(values).shape) - 1), self._table("i32", "V")
        self.stored.add(field)
        self.again[field] = Fact()
        self.make("carry.count", self.rows(), values, *counted, field=field, axis=axis)

    def admit(self) -> None:
        if self.module.find("kv.admit", "kv.admit_blocks"):
            raise Unfit
        bound = {"page": self._page()} if self.blocks else {"longest": self.rng.choice([-1, 30])}
        counts = (self.module.inputs["num_blocks"],) if self.blocks else ()
        self.make(
            "kv.admit_blocks" if self.blocks else "kv.admit",
            self.table,
            *counts,
            self.rows(),
            self.lens(LONGEST),
            window=COLUMNS - self.rng.randint(20, LONGEST),
            **bound,
            facts=[Fact("rows"), Fact("lens", most=LONGEST)],
        )

    def positions(self) -> None:
        axis = self.rng.choice(["", "K", "A", "S", self.nodes])
        offset, stride = self.rng.choice([self.rng.randint(-2, 3), FAR]), self.rng.choice([0, 1, 2, FAR])
        self.make("kv.positions", self.lens(), axis=axis, offset=offset, stride=stride)

    def advance(self) -> None:
        self.make(
            "kv.advance", self.replaced(lambda type_, fact: type_ == TensorType("i64", ("B", "K")) and not fact.kind)
        )

    def point(self) -> None:
        """The snapshot that a prefill leaves a state in."""
        self.make("state.begin", self.rows())

    def slots(self) -> None:
        axis = self.rng.choice(["A", self.nodes, *(["D"] if self.chain and self.module.size("D") else [])])
        kind = [Fact("slots", axis)] if axis == NODE else []
        lens = self.lens(COLUMNS - 64)
        paged = {"page": self._page(), "padding": self.rng.choice([0, -1])} if self.blocks else {}
        opcode, offset = "kv.block_slots" if self.blocks else "kv.slots", self.rng.randint(0, 2)
        self.make(opcode, self.table, self.rows(), lens, axis=axis, offset=offset, **paged, facts=kind)

    def _runs(self) -> dict[str, Attr]:
        if self.chain:
            raise Unfit
        return {"offset": self.rng.randint(0, 1), "page": self.rng.choice([1, 2, 4]), "room": self.module.size("S")}

    def branch_slots(self) -> None:
        if not self.module.size("D"):
            raise Unfit
        self.make("kv.branch_slots", self.table, self.rows(), self.lens(COLUMNS - 64), **self._runs())

    def state(self, owner: str) -> Value:
        """The KV state of a model as it is by now; it is read once."""
        value = self.states[owner] or self.module.inputs.get(f"kv_{owner}")
        return value or self.module.add_input(f"kv_{owner}", StateType(owner))

    def move(self) -> None:
        slots, count = (
            self.kind("slots", NODE),
            self.pick(lambda _, fact: fact.pair is not None and self.fact(fact.pair).axis == NODE),
        )
        path = self.fact(count).pair
        assert path is not None
        (self.states["target"],) = self.make("kv.move", slots, path, count, self.state("target"))

    def tail(self) -> None:
        operands = self.table, self.rows(), self.lens(COLUMNS - 64), self.state("draft")
        (self.states["draft"],) = self.make("kv.duplicate_tail", *operands, **self._runs())

    def _page(self) -> int:
        return self.module.decl(Options).page_size
