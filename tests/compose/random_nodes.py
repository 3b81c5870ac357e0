"""Random ops of the nodes of a step: trees and chains, walks along them, and what follows of what was accepted."""

from __future__ import annotations

from specc.compiler.ir.core import NODE
from specc.compiler.ir.ops.lattice import SELECTOR
from specc.compiler.ir.types import TensorType

from .random_values import FLOATS, LONGEST, Fact, Unfit, Values


class NodeOps(Values):
    """Methods named after an op build one, or raise `Unfit`."""

    def grow(self) -> None:
        self._only(chain=False)
        scores, p, index = self.of("f32", "B", "K"), self.of("f32", "B", "K", "K"), self.of("i64", "B", "K", "K")
        facts = [self.fact(index), Fact(rough=True), Fact("kept"), Fact(rough=True)]
        self.make("tree.grow", scores, p, index, facts=facts)

    def select(self) -> None:
        self._only(chain=False)
        branches, nodes, steps = self.module.size("K"), self.module.size(NODE), 1
        while branches + (steps - 1) * branches**2 < nodes - 1:
            steps += 1
        steps += self.rng.randint(0, 1)
        scores = [self.of("f32", "B", "K"), *(self.of("f32", "B", "K", "K") for _ in range(1, steps))]
        tokens = [self.of("i64", "B", "K"), *(self.of("i64", "B", "K", "K") for _ in range(1, steps))]
        kept = [self.kind("kept") for _ in range(1, steps - 1)]
        operands = self.rows(), self.of("i32", "B"), *scores, *tokens, *kept
        self.make("tree.select", *operands, steps=steps, facts=[Fact(), Fact("parent", NODE)])

    def product(self) -> None:
        self._only(chain=False)
        p, index = self.of("f32", "B", "S", "K"), self.of("i64", "B", "S", "K")
        operands = self.rows(), self.of("i32", "B"), p, index
        self.make("tree.product", *operands, steps=self.module.size("S"), facts=[Fact(), Fact("parent", NODE)])

    def places(self) -> None:
        """Candidates of places one after the other, with some of them left as they were, or the best of one place."""
        dtype = self.rng.choice(["f32", "i64"])
        if self.rng.random() < 0.3:
            self.make("place.best", self.of(dtype, "B", "K"))
            return
        (places,) = self.make("place.start", self.of(dtype, "B", "K"))
        for place in range(1, self.module.size("S")):
            (places,) = self.make("place.append", places, self.of(dtype, "B", "K"), place=place)

    def lattice(self) -> None:
        """A path over the candidates of places, behind rows of some width, or the scores of one of the places."""
        p, index = self.of("f32", "B", "S", "K"), self.of("i64", "B", "S", "K")
        rank, dtype, table = self.rng.randint(1, 40), self.rng.choice(FLOATS), self.rng.choice(FLOATS)
        states = self.of(dtype, "B", "S", rank)
        names = (f"{name}_{table}_{rank}" for name in SELECTOR)
        tables = [
            self.module.inputs.get(name) or self.module.add_input(name, TensorType(table, ("V", rank)))
            for name in names
        ]
        if self.rng.random() < 0.5:
            operands, told = (self.rows(), self.of("i32", "B"), p, index, states, *tables), self.rng.choice(["", "f32"])
            names = ("tokens", "confidence")[: 1 + bool(told)]
            self._typed(self.many("lattice.walk", *operands, names=names, confidence=told), [Fact(), Fact(rough=True)])
            return
        token, place = self.of("i64", "B", *self.rng.choice([(), ("K",)])), self.rng.randrange(self.module.size("S"))
        operands = self.rows(), p, index, self.of("i64", "B", "S", "K"), token, states, *tables
        entries = self.rng.choice(["V", "Vd"])
        self.make("lattice.row", *operands, entries=entries, place=place, facts=[Fact(rough=True)])

    def comb(self) -> None:
        self._only(chain=False)
        steps = -(-(self.module.size(NODE) - 1) // self.module.size("K")) + self.rng.randint(0, 1)
        self.make("tree.comb", self.rows(), steps=steps, facts=[Fact("parent", NODE)])

    def tree_positions(self) -> None:
        self._only(chain=False)
        self.make("tree.positions", self.lens(), self.of("i64", "B", NODE))

    def mask(self) -> None:
        self._only(chain=False)
        nodes = self.module.size(NODE)
        mode = self.rng.choice(["qlen", "bitpacked", "full", "slots"])
        if mode == "slots":
            self.make("tree.seen_slots", self.of("i64", "B", NODE), self.kind("parent", NODE))
            return
        lens = self.module.inputs["seq_lens"] if mode == "full" else self.lens()
        width = {"qlen": 0, "bitpacked": 1 if nodes <= 8 else 2, "full": nodes * (LONGEST + nodes)}[mode]
        self.make("tree.mask", lens, self.kind("parent", NODE), mode=mode, width=width)

    def gather(self) -> None:
        self._only(chain=False)
        x = self.pick(lambda type_, _: type_.shape[:2] == ("B", "K"))
        self.make(
            "tree.gather", x, self.kind("kept"), facts=[self.fact(x) if self.fact(x).kind != "kept" else Fact("kept")]
        )

    def handed_on(self) -> None:
        """One copy per branch, the best of a root's candidates, or the root as a token."""
        if self.rng.random() < 0.3:
            candidates = self.of("f32", "B", "J")
            self.make("tree.best", candidates, facts=[Fact(rough=self.fact(candidates).rough)])
        elif self.rng.random() < 0.5:
            x = self.pick(
                lambda type_, _: (
                    len(type_.shape) == 2 and type_.shape[0] == "B" and not (self._late and type_.shape[1] == NODE)
                )
            )
            fact = self.fact(x)
            self.make("tree.repeat", x, facts=[Fact(rough=fact.rough)])
        else:
            self.make("tree.root", self.of("i32", "B"))

    def chain_of_tokens(self) -> None:
        """A chain, column after column, of any tokens, or its root alone."""
        self._only(chain=True)
        if self.rng.random() < 0.2:
            self.make("chain.root", self.of("i32", "B"))
            return
        token = self.of("i64", "B", "K")
        if self.rng.random() < 0.5:
            (tokens,), size, done = self.make("chain.start", self.of("i32", "B"), token), self.module.size("A"), 2
        else:
            (tokens,), size, done = self.make("chain.first", token), self.module.size("S"), 1
        for column in range(done, size):
            (tokens,) = self.make("chain.append", tokens, self.of("i64", "B", "K"), column=column)

    def join(self) -> None:
        self._only(chain=True)
        if self.rng.random() < 0.4:
            self.make("chain.drafts", self.of("i64", "B", "A"))
            return
        self.make("chain.join", self.of("i32", "B"), self.of("i64", "B", "S"))

    def shift(self) -> None:
        self._only(chain=True)
        tokens = self.replaced(lambda type_, fact: type_ == TensorType("i64", ("B", "A")))
        self.make("chain.shift", tokens, self.kind("count"), self.of("i64", "B", "K"))

    def ngram_start(self) -> None:
        prompt = self.module.inputs.get("prompt_tokens") or self.module.add_input(
            "prompt_tokens", TensorType("i64", ("T",))
        )
        self.make(
            "ngram.start",
            self.rows(),
            self.module.inputs["seq_lens"],
            self.of("i32", "B"),
            prompt,
            window=self.rng.randint(3, 60),
        )

    def propose(self) -> None:
        text = self.pick(lambda type_, _: type_.dtype == "i32" and len(type_.shape) == 2)
        corpus = [self.module.inputs.get("corpus") or self.module.add_input("corpus", TensorType("i32", ("M",)))]
        operands = self.rows(), self.lens(), text, *corpus[: self.rng.randint(0, 1)]
        steps = self.module.size("S") if self.chain else -(-(self.module.size(NODE) - 1) // self.module.size("K"))
        shortest = self.rng.randint(1, 2)
        self.make(
            "ngram.propose",
            *operands,
            axis=self.nodes,
            steps=steps,
            shortest=shortest,
            longest=shortest + self.rng.randint(0, 3),
            beyond=self.rng.choice(["period", "last"]),
        )

    # --- verification and what follows -----------------------------------------------------------------------

    def walk(self) -> None:
        axis = self.rng.choice(["A", self.nodes])
        tokens, argmax = self.of("i64", "B", axis), self.of("i32", "B", axis)
        parents = [self.kind("parent", axis)] if self.rng.random() < 0.7 and not self.chain else []
        results = self.make("verify.greedy", tokens, argmax, self.rows(), *parents)
        self.facts |= {results[1]: Fact("path", axis), results[2]: Fact("count", pair=results[1])}

    def visit(self) -> None:
        """Some steps of a walk node by node, by tokens that are drawn, or are any; with what nodes have on its way."""
        axis, rows = self.rng.choice(["A", self.nodes]), self.rows()
        tokens = self.of("i64", "B", axis)
        parents = [self.kind("parent", axis)] if self.rng.random() < 0.7 and not self.chain else []
        (node,) = self.make("walk.root", rows)
        drawn, nodes = [self.of("i32", "B")], [node]
        for _ in range(self.rng.randint(0, self.module.size("A") - 1)):
            rows, node = self.make("walk.step", tokens, drawn[-1], rows, node, *parents, facts=[Fact("rows")])
            if self.rng.random() < 0.5:
                dtype = self.rng.choice(["i32", "i64", "f32"])
                self.make("walk.at", self.of(dtype, "B", axis), node)
            try:
                logits = self.pick(
                    lambda type_, fact: type_.shape[1:] == (axis, "V") and type_.dtype in FLOATS and not fact.rough
                )
                (row,) = self.make("vocab.row", logits, node)
                token, _ = self.make("vocab.argmax", row, rows, dtype="i32", keep="")
            except Unfit:
                token = self.of("i32", "B")
            drawn.append(token)
            nodes.append(node)
        results = self.make("verify.path", *drawn, *nodes, axis=axis, parts=len(nodes))
        self.facts |= {results[1]: Fact("path", axis), results[2]: Fact("count", pair=results[1])}
        if self.rng.random() < 0.5:
            self.make("walk.bad", self.of("i1", "B", axis), self.kind("path", axis), rows="eager")

    def compact(self) -> None:
        self._only(chain=False)
        x = self.pick(lambda type_, _: type_.shape[:2] == ("B", NODE))
        self.make("commit.compact", x, self.kind("path", NODE), facts=[Fact(rough=self.fact(x).rough)])

    def last(self) -> None:
        count = self.pick(lambda _, fact: fact.pair is not None)
        path = self.fact(count).pair
        assert path is not None
        axis = self.fact(path).axis
        x = self.pick(lambda type_, _: type_.shape[:2] == ("B", axis) and type_.shape[2:3] != (NODE,))
        self.make("commit.last", x, path, count, facts=[Fact(rough=self.fact(x).rough)])

    def lengths(self) -> None:
        lens = self.lens()
        longer = Fact("lens", most=self.fact(lens).most + self.module.size("A"))
        self.make("commit.lengths", lens, self.kind("count"), self.of("i32", "B", "A"), facts=[longer])

    def extend_ids(self) -> None:
        self.make("commit.extend_ids", self.of("i32", "B", "A"), self.kind("count"))

    def chosen(self) -> None:
        self.make("commit.select", self.kind("count"))
