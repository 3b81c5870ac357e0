"""What differs between two programs."""

from __future__ import annotations

from told_pages import page_of

from specc.compiler.explain.page.diff import Area, Difference, _differing, compare, count


def areas(here: str, there: str) -> dict[str, Area]:
    return {area.name.partition(" of ")[0]: area for area in compare(page_of(here), page_of(there))}


def test_nothing_differs_from_itself() -> None:
    compared = compare(page_of("eagle_tree"), page_of("eagle_tree"))
    assert count(compared) == 0
    assert len(compared) == 6


def test_a_tree_and_a_sampled_tree() -> None:
    by_area = areas("eagle_tree", "sampled_tree")
    assert by_area["Configuration"].differences == (
        Difference("name", "eagle_tree", "sampled_tree"),
        Difference("verify", "greedy", "target_only"),
        Difference("verify_rows", "auto", "lazy"),
        Difference("sampling", "none", "top_k"),
    )
    carried = {
        difference.what: (difference.here, difference.there) for difference in by_area["What is carried"].differences
    }
    assert carried["sampling_temperature"] == (None, "f32[1], 4 bytes")
    assert "hidden" not in carried
    costs = {difference.what: (difference.here, difference.there) for difference in by_area["Costs"].differences}
    assert costs["launches in graph"] == ("7", "14")
    assert {"arena, bytes", "carried rows, bytes", "scratch, bytes"} <= costs.keys()
    decided = {difference.what: (difference.here, difference.there) for difference in by_area["Decisions"].differences}
    assert decided["select-verify: verification"] == ("greedy", "target_only")
    runs = {difference.what: difference for difference in by_area["What runs"].differences}
    assert runs["verify_argmax"].there is None
    assert runs["verify_draw_0"].here is None
    assert "target" not in runs


def test_costs_are_those_of_a_bucket_that_both_have() -> None:
    """Of batches of one, because the others of the two are not the same; hidden states are in pool rows as well."""
    differing = {difference.what for difference in areas("eagle_tree", "other_buckets")["Costs"].differences}
    assert differing == {"hidden state bytes", "arena, bytes", "carried rows, bytes", "scratch, bytes"}


def test_numbers_are_compared_as_numbers() -> None:
    assert Difference("launches", "14", "7").change == "+7 (+100%)"
    assert Difference("bytes", "1,024", "2,048").change == "-1,024 (-50%)"
    assert Difference("launches", "3", "0").change == "+3"
    assert [Difference("x", here, "7").change for here in (None, "none", "7 bytes", "1,2")] == [""] * 4
    costs = areas("eagle_tree", "sampled_tree")["Costs"]
    assert costs.counts
    assert {difference.what: difference.change for difference in costs.differences}["launches in graph"] == "-7 (-50%)"


def test_what_has_another_name_is_one_difference() -> None:
    """What runs and what is kept has names of the compiler's; keys of a configuration have their own."""
    here = {"a": "argmax over 3 ops", "b": "the same", "c": "twice", "d": "twice", "e": "of here"}
    there = {"x": "argmax over 3 ops", "b": "the same", "y": "twice", "z": "of there"}
    assert list(_differing(here, there, named=True)) == [
        Difference("argmax over 3 ops", "a", "x"),
        Difference("c", "twice", None),
        Difference("d", "twice", None),
        Difference("e", "of here", None),
        Difference("y", None, "twice"),
        Difference("z", None, "of there"),
    ]
    assert Difference("a", "argmax over 3 ops", None) in list(_differing(here, there, named=False))
