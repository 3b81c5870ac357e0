"""Drafts that score a part of the target's tokens: what settles how many, and what is wrong with a map."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specc.runtime.plan import token_map

from .conftest import VALID, Find, Load, Model
from .test_aux import EAGLE3, HEAD, LAYERS
from .test_layers import LLAMA

V, REDUCED = 2048, 4
"""The target's tokens in `LLAMA`, and those that are scored."""


def mapped(where: str, **keys: int) -> str:
    """Return a valid configuration of sizes whose draft scores a part; the map stands in line 20."""
    text = VALID.replace("EAGLE", "STANDALONE")
    head, draft = text.split("draft:\n")
    for key, value in keys.items():
        draft = draft.replace(f"  {key}: 32000", f"  {key}: {value}")
    return f"{head}draft:\n  token_map: {where}\n{draft}"


def test_a_head_that_says_so(load: Load, model: Model) -> None:
    """Of a published EAGLE3 head nothing is written: its config.json says how many it scores."""
    model(**LLAMA)
    model("d", **HEAD, **LAYERS, draft_vocab_size=512)
    draft = load(EAGLE3).config.models["draft"]
    assert (draft.vocab_size, draft.token_map) == (512, "model")
    model("whole", **HEAD, **LAYERS, draft_vocab_size=V)
    draft = load(EAGLE3.replace("model: d", "model: whole")).config.models["draft"]
    assert (draft.vocab_size, draft.token_map) == (V, None)


def test_a_file_says_how_many(load: Load, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps([0, 3, 4, 31999]))
    torch.save([0, 3, 31999], tmp_path / "list.pt")
    torch.save(torch.tensor([0, 31999]), tmp_path / "tensor.pt")
    for name, count in (("map.json", 4), ("list.pt", 3), ("tensor.pt", 2)):
        draft = load(mapped(name, vocab_size=count)).config.models["draft"]
        assert (draft.vocab_size, draft.token_map) == (count, name)


def test_a_file_beside_a_model_of_all_tokens(load: Load, model: Model, tmp_path: Path) -> None:
    """The rows of the map are taken from the head of an ordinary draft."""
    model(**LLAMA)
    (tmp_path / "map.json").write_text(json.dumps([1, 2, 5]))
    text = EAGLE3.replace("EAGLE3", "STANDALONE").replace("model: d", "model: m\n  token_map: map.json")
    assert load(text).config.models["draft"].vocab_size == 3


def test_the_engine_brings_it(load: Load) -> None:
    draft = load(mapped("engine", vocab_size=REDUCED)).config.models["draft"]
    assert (draft.vocab_size, draft.token_map) == (REDUCED, "engine")


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ([0, 3, 4], "map/length"),
        ([0, 3, 4, 32000], "map/range"),
        ([-1, 3, 4, 5], "map/range"),
        ([0, 3, 3, 5], "map/repeated"),
        ([0, 4, 3, 5], "map/unsorted"),
        ([0, 3, 4, 5.0], "map/unreadable"),
        ([0, 3, 4, True], "map/unreadable"),
        ([], "map/unreadable"),
        ({"0": 3}, "map/unreadable"),
    ],
)
def test_what_is_wrong_with_a_map(find: Find, tmp_path: Path, tokens: object, code: str) -> None:
    (tmp_path / "map.json").write_text(json.dumps(tokens))
    (diagnostic,) = find(mapped("map.json", vocab_size=REDUCED))
    assert (diagnostic.code, diagnostic.location and diagnostic.location.line) == (code, 20)


def test_a_file_that_is_none(find: Find, tmp_path: Path) -> None:
    (tmp_path / "map.pt").write_bytes(b"PK\x03\x04 no archive")
    (tmp_path / "folder").mkdir()
    for name in ("map.pt", "nowhere.json", "folder"):
        (diagnostic,) = find(mapped(name, vocab_size=REDUCED))
        assert diagnostic.code == "map/unreadable", name


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (torch.zeros(1, dtype=torch.int64).expand(1 << 40), "more than 16777216 values"),
        (torch.zeros(4, 1, dtype=torch.int64), "2 axes is no list"),
        (torch.tensor(3), "0 axes is no list"),
        (torch.tensor([0.0, 1.5]), "torch.float32"),
        (torch.tensor([0.0, 1.0]).to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (torch.zeros(2, dtype=torch.complex64), "torch.complex64"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.zeros(1 << 40, dtype=torch.int64, device="meta"), "."),
        (torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1]), (1 << 40,), check_invariants=False), "."),
        ([0, 1 << 500], "no list of tokens"),
        ([[0, 1]], "no list of tokens"),
        ("01", "no list of tokens"),
    ],
)
def test_what_torch_saves_that_is_no_map(find: Find, tmp_path: Path, saved: object, message: str) -> None:
    """A tensor may say that it has more entries than there is memory, in a file of 1.6 kB."""
    torch.save(saved, tmp_path / "map.pt")
    (diagnostic,) = find(mapped("map.pt", vocab_size=REDUCED))
    assert diagnostic.code == "map/unreadable"
    assert re.search(message, diagnostic.message), diagnostic.message


def test_a_file_that_grows(find: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed in a file, and how many values an array has, is known before either is read."""
    monkeypatch.setattr(token_map, "MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "map.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("map/data.pkl", bytes((1 << 20) + 1))
    (diagnostic,) = find(mapped("map.pt", vocab_size=REDUCED))
    assert "bytes unpacked, more than 1048576" in diagnostic.message
    monkeypatch.setattr(token_map, "MOST_TOKENS", 3)
    (tmp_path / "map.json").write_text("[0, 1, 2, 3]")
    (diagnostic,) = find(mapped("map.json", vocab_size=REDUCED))
    assert (diagnostic.code, "more than 3 values" in diagnostic.message) == ("map/unreadable", True)


def test_weights_that_are_there_are_read(find: Find, load: Load, model: Model) -> None:
    """Offsets: row i scores token i + d2t[i]."""
    model(**LLAMA)
    directory = model("d", **HEAD, **LAYERS, draft_vocab_size=REDUCED)
    for offsets, code in (([1, 1, 1, 2000], None), ([0, 5, 3, 0], "map/unsorted"), ([0, 0, 0], "map/length")):
        save_file({"d2t": torch.tensor(offsets), "fc.weight": torch.zeros(2)}, directory / "model.safetensors")
        assert [diagnostic.code for diagnostic in find(EAGLE3)] == [code] * (code is not None)
    (directory / "model.safetensors").write_bytes(b"damaged")
    assert [diagnostic.code for diagnostic in find(EAGLE3)] == ["map/unreadable"]


def test_what_scores_all_tokens_has_no_map(find: Find, tmp_path: Path) -> None:
    (diagnostic,) = find(mapped("engine"))
    assert (diagnostic.code, diagnostic.location and diagnostic.location.line) == ("legal/vocab-mismatch", 20)


def test_a_target_has_no_map(find: Find) -> None:
    (diagnostic,) = find(VALID.replace("target:\n", "target:\n  token_map: engine\n"))
    assert (diagnostic.code, diagnostic.location and diagnostic.location.line) == ("config/unknown-key", 13)
