"""The fixture notices what it is there for."""

from __future__ import annotations

from seen import Seen


def test_complaints_are_kept(seen: Seen) -> None:
    seen.page.set_content("<script>console.error('first'); throw new Error('second')</script>")
    seen.page.set_content("<img src='http://127.0.0.1:9/none.png'><p style='width: 3000px'>wide</p>")
    assert [
        word for word in ("first", "second", "none.png") if any(word in complaint for complaint in seen.complaints)
    ] == [
        "first",
        "second",
        "none.png",
    ]
    assert seen.overflow() > 1500


def test_what_scrolls_unseen_is_noticed(seen: Seen) -> None:
    seen.page.set_content("<div style='overflow-x: auto'><p style='width: 3000px'>wide</p></div><pre>narrow</pre>")
    assert seen.unmarked() == ["DIV : wide"]
    assert seen.overflow() <= 0
