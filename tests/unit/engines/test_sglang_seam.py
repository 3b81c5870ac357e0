"""What the adapter for SGLang touches of it: the tables, and how what is missing is told, in a small package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specc.engines import sglang as adapter
from specc.engines.adapter_files import LEFT_OUT
from specc.engines.sglang import seam
from specc.engines.sglang.models import around
from specc.engines.sglang.served import KNOWN_BACKENDS
from specc.engines.sglang.served_attention import AttentionBackend

SmallEngine = Callable[[str], Path]
FOLDER = Path(adapter.__file__).parent
FILES = sorted(path for path in FOLDER.rglob("*.py") if path.relative_to(FOLDER).parts[0] not in LEFT_OUT)


@pytest.fixture(autouse=True)
def engine(small_engine: SmallEngine) -> None:
    """A package of the name of SGLang's."""
    small_engine("sglang.srt")


def test_a_version_without_something_is_refused_by_all_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "MUST", "workers.Worker: pools\nworkers.Batch(rows): rows\nworkers.order(first)")
    with pytest.raises(RuntimeError, match=r"^SGLang 9\.1: Worker has no pools; workers\.order needs second$"):
        seam.probe("9.1", tested=True)


def test_what_may_be_missing_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning, unless the version was tested without it."""
    monkeypatch.setattr(seam, "MUST", "workers")
    monkeypatch.setattr(seam, "MAY", {"all is slower": "workers.Worker: fast\nworkers.order", "more": "workers: LEVEL"})
    seam.probe("9.1", tested=True)
    assert caplog.text == ""
    seam.probe("9.1", tested=False)
    assert [record.getMessage() for record in caplog.records] == ["SGLang 9.1: Worker has no fast: all is slower"]
    assert [seam.there(feature) for feature in seam.MAY] == [False, True]
    worker, order = seam.found("all is slower")
    assert (worker.__name__, order.__name__) == ("Worker", "order")


def test_what_attention_lacks_is_named() -> None:
    seam.need(AttentionBackend("fa8", (), touches="workers.order(first second)"))
    with pytest.raises(RuntimeError, match=r"^attention of SGLang's fa9: workers\.order needs second$"):
        seam.need(AttentionBackend("fa9", (), touches="workers.order(first)"))


def test_everything_that_is_imported_is_in_a_table() -> None:
    """So that a version in which it is missing is refused, or goes without it, by name."""
    tables = (seam.MUST, *seam.MAY.values(), *(backend.touches for backend in KNOWN_BACKENDS.values()))
    touches = [touch for table in tables for touch in seam.touches(table)]
    known = {touch.place for touch in touches}
    known |= {f"{touch.place}.{name}" for touch in touches for name in touch.has.split()}
    above = {place.rpartition(".")[0] for place in known}
    imported = [
        (file.name, f"{node.module}.{alias.name}".removeprefix("sglang.srt."))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang")
        for alias in node.names
    ]
    assert len(imported) > 30
    assert all(bool(backend.touches) == bool(backend.prepared_by) for backend in KNOWN_BACKENDS.values())
    assert [(file, place) for file, place in imported if place not in known | above] == []


@pytest.mark.parametrize("batched", [True, False])
def test_what_is_around_a_forward(tmp_path: Path, batched: bool) -> None:
    """In SGLang 0.5.23, and in 0.5.22, which hands no batch to the context, and whose models know of no experts."""
    folder = tmp_path / "sglang" / "srt" / "model_executor"
    folder.mkdir()
    (folder / "__init__.py").touch()
    takes = "context, *, forward_batch=None" if batched else "context"
    (folder / "forward_context.py").write_text(
        "from contextlib import contextmanager\nentered = []\n\n"
        "def ForwardContext(attn_backend): return attn_backend\n\n"
        f"@contextmanager\ndef forward_context({takes}):\n"
        f"    entered.append((context, {'forward_batch' if batched else None}))\n    yield\n    entered.clear()\n"
    )
    (folder.parent / "runtime_context.py").write_text(
        "from contextlib import contextmanager\nnow = []\n\n"
        "class Model:\n    @contextmanager\n    def override(self, shared_experts):\n"
        "        now.append(shared_experts)\n        yield\n        now.clear()\n\n"
        "def get_model(): return Model()\n"
    )
    model = type("M", (), {"shared_experts_config": 3} if batched else {})()
    with around.running(model, "backend", "batch"):
        context = sys.modules["sglang.srt.model_executor.forward_context"].entered
        experts = sys.modules["sglang.srt.runtime_context"].now
        assert context == [("backend", "batch" if batched else None)]
        assert experts == ([3] if batched else [])
    assert context == experts == []
