"""Random ops of logits: reductions, draws, what changes rows, and their log-probabilities."""

from __future__ import annotations

from specc.compiler.ir.core import NODE, Value, on_nodes, tensor_type
from specc.compiler.ir.types import REDUCED, TensorType
from specc.runtime.plan.draft_head import TOKEN_ENTRIES
from specc.runtime.plan.plan import RANK, TOKEN_MAP

from .random_values import FLOATS, Fact, Unfit, Values


class LogitOps(Values):
    """Methods named after an op build one, or raise `Unfit`."""

    def logits(self, columns: int = 1) -> Value:
        """Floats with rows of so many columns at least."""

        def fits(type_: TensorType, fact: Fact) -> bool:
            wide = len(type_.shape) > 1 and type_.dtype in FLOATS and not fact.rough and type_.shape[0] == "B"
            return (
                wide
                and not (self._late and NODE in type_.shape[1:2])
                and TensorType("i1", type_.shape[-1:]).sizes(self.module.dims)[0] >= columns
            )

        return self.pick(fits)

    def reduce(self) -> None:
        """An argmax or a top-k."""
        if self.rng.random() < 0.4:
            logits = self.logits(self.module.size("K"))
            self.make("vocab.topk", logits, self.rows(), facts=[Fact(rough=True)])
            return
        self._argmax(self.logits())

    def _argmax(self, logits: Value) -> None:
        keep = "K" if self.chain and self.rng.random() < 0.5 else ""
        self.make("vocab.argmax", logits, self.rows(), dtype=self.rng.choice(["i32", "i64"]), keep=keep)

    def part(self) -> None:
        """An argmax by way of a rank's record, of columns that are tokens or padding."""
        logits, module = self.logits(), self.module
        rank = module.inputs.get(RANK) or module.add_input(RANK, TensorType("i64", (1,)))
        entries = TensorType("i1", tensor_type(logits).shape[-1:]).sizes(module.dims)[0]
        if self.rng.random() < 0.6:
            (logits,) = self.make("comm.pad", logits, rank, vocab=self.rng.randint(1, entries + 1))
        chunks = self.rng.choice([1, 2, 64])
        chunks = min(chunks, entries & -entries)
        (record,) = self.make("vocab.argmax_part", logits, self.rows(), rank, words=1, chunks=chunks)
        keep = "K" if self.chain and self.rng.random() < 0.5 else ""
        numbers = tensor_type(logits).shape[-1] == "Vd" and self.module.dims["Vd"].axis == REDUCED
        dtype = self.rng.choice(["i32", "i64"])
        self.make("vocab.argmax_merge", record, self.rows(), dtype=dtype, keep=keep, of="Vd" if numbers else "")

    def translate(self) -> None:
        """The tokens that numbers of a reduced vocabulary stand for."""
        numbers = [value for value in self.here if tensor_type(value).of and tensor_type(value).dtype == "i64"]
        numbers = [value for value in numbers if not (self._late and on_nodes(value))]
        if not numbers:
            raise Unfit
        table = self.module.inputs.get(TOKEN_MAP) or self.module.add_input(TOKEN_MAP, TensorType("i64", ("Vd",)))
        self.make("vocab.translate", self.rng.choice(numbers), table, self.rows())

    def keys(self) -> None:
        """What the noise of rows is made with, at positions of any kind."""
        self._keys(
            self.pick(
                lambda type_, _: (
                    type_.dtype == "i64" and type_.shape[0] == "B" and not (self._late and NODE in type_.shape)
                )
            )
        )

    def _keys(self, positions: Value) -> tuple[Value, ...]:
        temperature = self.of("f32", "B")
        if self.fact(temperature).rough:
            raise Unfit
        offset, kind = self.rng.randrange(2), self.rng.choice([0, 1, (1 << 16) - 1])
        return self.make("sample.keys", self.of("i64", "B"), temperature, positions, offset=offset, kind=kind)

    def scales(self, *shape: str | int) -> Value:
        """What logits are multiplied with, which are finite."""
        type_ = TensorType("f32", shape)
        try:
            return self.pick(lambda candidate, fact: candidate == type_ and fact.kind == "scale")
        except Unfit:
            return self._asked("scales", type_, Fact("scale"))

    def cut(self) -> None:
        """What of a row may be drawn, by whatever numbers."""
        logits = self.logits()
        shape = tensor_type(logits).shape[:-1]
        name = self.rng.choice(["top_k", "top_p", "min_p"])
        operands = [self.of("f32", *shape), self.of("i32" if name == "top_k" else "f32", "B")]
        operands += [self.of("f32", *shape)] if self.rng.random() < 0.4 else []
        rough = name != "top_k" or any(self.fact(value).rough for value in operands)
        self.make(f"sample.{name}", logits, *operands, facts=[Fact(rough=rough)])

    def row(self) -> None:
        """One row of a request's logits, chosen by a number of any size, which is reduced as likely as not."""
        logits = self.pick(lambda type_, fact: len(type_.shape) == 3 and type_.dtype in FLOATS and not fact.rough)
        (row,) = self.make("vocab.row", logits, self.of("i64", "B"))
        if self.rng.random() < 0.5:
            self._argmax(row)

    def allow(self) -> None:
        """Logits of what words let through, as many words as there are entries for, or fewer, or more."""
        logits = self.logits()
        *shape, entries = tensor_type(logits).shape
        words = -(-TensorType("i1", (entries,)).sizes(self.module.dims)[0] // 32)
        bitmask = self.of("i32", *shape, self.rng.choice([words, words, max(1, words - 1), words + 1]))
        (allowed,) = self.make("sample.allow", logits, bitmask, facts=[Fact()])
        if self.rng.random() < 0.4:
            self._argmax(allowed)

    def draw(self) -> None:
        """A token of logits, with keys that were made for it or any numbers, with a cut or without."""
        logits = self.logits()
        shape = tensor_type(logits).shape[:-1]
        numbers = self.of("i64", *shape)
        keys = self._keys(numbers) if self.rng.random() < 0.6 else (numbers, self.scales(*shape))
        cuts = (self.of("f32", *shape),) if self.rng.random() < 0.4 else ()
        if any(self.fact(value).rough for value in (logits, keys[1], *cuts)):
            raise Unfit
        keep = "K" if self.chain and self.rng.random() < 0.3 else ""
        self.make("sample.draw", logits, self.rows(), *keys, *cuts, dtype=self.rng.choice(["i32", "i64"]), keep=keep)

    def change(self) -> None:
        """Logits with a bias or penalties, of nodes perhaps, by tables that are carried or were made."""
        logits = self.logits()
        *axes, vocab = tensor_type(logits).shape[1:]
        if self._late and vocab == NODE:  # tables of it would lie along the nodes
            raise Unfit
        if self.rng.random() < 0.3:
            operands = [self._tokenwise("f32", vocab)]
            opcode = "sample.bias"
        else:
            operands = [self._tokenwise("i32", vocab), *(self.of("f32", "B") for _ in range(3))]
            opcode = "sample.penalize"
            if len(axes) == 1 and self.rng.random() < 0.7:
                opcode = "sample.penalize_nodes"
                operands += [self.of("i64", "B", *axes) for _ in range(self.rng.choice([1, 2]))]
        rough = any(self.fact(value).rough for value in operands)
        (changed,) = self.make(opcode, logits, *operands, facts=[Fact(rough=rough)])
        if self.rng.random() < 0.7 and not rough:
            self._argmax(changed)

    def _tokenwise(self, dtype: str, vocab: str | int) -> Value:
        """A number of every token, of a field of its own or of whatever makes them."""
        if self.rng.random() < 0.4:
            return self.of(dtype, "B", vocab)
        field = self._table(dtype, vocab)
        self.loaded.add(field)
        return self.make("carry.load", self.rows(), field=field)[0]

    def mass(self) -> None:
        """Of the rows that a token was drawn from, with its probability, or that of any numbers'."""
        drawn = [v for v in self.here if v.source and v.source.opcode == "sample.draw" and v is v.source.out("index")]
        index = self.rng.choice(drawn or [self._unfit()])
        draw, keep = index.source, ""
        assert draw is not None
        logits, scales = draw["logits"], draw["scales"]
        own = tensor_type(index).dtype == "i64" and self.rng.random() < 0.6 and not tensor_type(index).of
        if own:
            keep = str(draw.attrs["keep"])
        elif self._late and on_nodes(logits):
            raise Unfit
        entries = index if own else self.of("i64", *tensor_type(logits).shape[:-1])
        cuts = [] if draw.get("cuts") is None else [draw["cuts"]]
        ahead = 0 if own or len(tensor_type(logits).shape) < 3 else self.rng.randrange(2)
        operands = (logits, draw["rows"], scales, entries, *cuts)
        self.make("sample.mass", *operands, ahead=ahead, keep=keep, facts=[Fact(rough=True)])

    def reject(self) -> None:
        """The tokens of a chain by whatever its drafts were drawn from: rows one by one, or together, or carried."""
        rng, floats, steps = self.rng, self.rng.choice(FLOATS), self.module.size("S")
        logits, together = self.of(floats, "B", "A", "V"), rng.random() < 0.5
        part = self.module.dims["Vd"].axis == REDUCED and rng.random() < 0.7
        axes = ("B", "S") if together else ("B",)
        asked = [("i64", "B", "A"), ("i64", "B"), ("i64", "B", "A"), ("f32", "B", "A"), ("f32", "B", "A", 3)]
        asked += [("i32", "B", "A"), ("f32", *axes, 3), (floats, *axes, "Vd" if part else "V")]
        facts = [Fact("scale" if n == 3 else "") for n in range(len(asked))]
        gives = [
            ("asked", TensorType(dtype, tuple(shape)), fact) for (dtype, *shape), fact in zip(asked, facts, strict=True)
        ]
        self._forward([], gives)
        tokens, coins, keys, scales, mass, drawn, own, row = self.here[-len(asked) :]
        cuts = [self.of("f32", "B", "A")] if rng.random() < 0.4 else []
        masses, q = ([repeated] * (1 if together else steps) for repeated in (own, row))
        if any(self.fact(value).rough for value in (logits, *cuts)):
            raise Unfit
        if not together and rng.random() < 0.5:
            field = self.field("row", tensor_type(q[0]), self.fact(q[0]))
            self.loaded.add(field)
            q[0] = self.make("carry.load", self.rows(), field=field)[0]
        rows, mode, parts = self.rows(), rng.choice(["rejection", "block"]), len(q)
        (weights,) = self.make("sample.weigh", rows, coins, scales, mass, *masses, mode=mode, parts=parts)
        entries = [self._table_of_entries()] if part else []
        given = tokens, logits, rows, keys, scales, drawn, mass, weights, *cuts, *entries, *masses, *q
        attrs = {"parts": parts, "cut": len(cuts), "most": rng.randint(1, steps), "mapped": len(entries)}
        left, sums = self.make("sample.residual", *given, **attrs, facts=[Fact(), Fact(rough=True)])
        self.make("sample.accept", tokens, rows, coins, drawn, weights, left, sums)

    def _table_of_entries(self) -> Value:
        """What tokens are in a reduced vocabulary."""
        type_ = TensorType("i32", ("V",), "Vd")
        return self.module.inputs.get(TOKEN_ENTRIES) or self.module.add_input(TOKEN_ENTRIES, type_)

    def logprob(self) -> None:
        """Of the winners of the same logits, or of tokens that are below every vocabulary."""
        logits = self.logits(4)
        shape = tensor_type(logits).shape[:-1]

        def fits(type_: TensorType, fact: Fact) -> bool:
            return type_ == TensorType("i32", shape) and fact.kind == "token"

        same = [
            v
            for v in self.here
            if v.source
            and v.source.opcode == "vocab.argmax"
            and v.source["logits"] is logits
            and tensor_type(v) == TensorType("i32", shape)
        ]
        index = self.rng.choice(same) if same else self.pick(fits)
        self.make("vocab.logprob", logits, self.rows(), index, facts=[Fact(rough=True)])

    def scale(self) -> None:
        """Logits as a token is drawn from them, with a cut or without."""
        logits = self.logits()
        shape = tensor_type(logits).shape[:-1]
        operands = [self.of("f32", *shape) for _ in range(self.rng.choice([1, 2]))]
        rough = any(self.fact(value).rough for value in operands)
        (scaled,) = self.make("sample.scale", logits, *operands, facts=[Fact(rough=rough)])
        if self.rng.random() < 0.5 and not rough:
            self._argmax(scaled)

    def best(self) -> None:
        """The best tokens of all rows."""
        count = self.rng.randint(1, 5)
        facts = [Fact(), Fact(rough=True)]
        self.make("vocab.best", self.logits(count), self.rows(), count=count, facts=facts)

    def _tokens(self) -> Value:
        """Tokens along a path, perhaps such as a forward gives for it."""
        type_ = TensorType("i32", ("B", "A"))
        try:
            return self.pick(lambda candidate, fact: candidate == type_ and fact.kind == "token")
        except Unfit:
            return self._asked("ids", type_, Fact("token"))

    def scores(self) -> None:
        """Log-probabilities along a path, of tokens, or of the best ones, or of both."""
        path = self.pick(lambda _, fact: fact.kind == "path")
        count, axis, which = self.rng.randint(1, 4), self.fact(path).axis, self.rng.randrange(3)
        logits = self.pick(
            lambda type_, fact: type_.shape[:2] == ("B", axis) and type_.shape[2:] in (("V",), ("Vd",))
            and type_.dtype in FLOATS and not fact.rough
        )  # fmt: skip
        rows = self.rows()
        if which:
            index = self._tokens()
            self.make("vocab.logprob_path", logits, rows, index, path, facts=[Fact(rough=True)])
        if which != 1:
            facts = [Fact(), Fact(rough=True)]
            self.make("vocab.best_path", logits, rows, path, count=count, facts=facts)
