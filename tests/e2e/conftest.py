"""Programs built from configurations with the real command line, and models to run them with."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from published_modules import KINDS, make_published
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, Qwen3Config
from typer.testing import CliRunner

from specc.cli.main import app
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head
from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.dspark_head import DsparkHead
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.heads.eagle_head import EagleHead
from specc.lab.engine.models.heads.frozen_kv_head import FrozenKvHead
from specc.lab.engine.models.heads.mtp_heads import MtpHeads
from specc.lab.engine.models.heads.published_heads import read_config, read_weights

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "models"
VOCAB = 2048
DRAFTS = {
    "STANDALONE": "standalone",
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "FROZEN_KV_MTP": "frozen_kv",
    "MULTI_LAYER_EAGLE": "mtp",
    "DFLASH": "dflash",
}
"""The directory of each algorithm's draft; NGRAM has none."""
SELECTOR = {"selector_rank": 24, "selector_top_k": 5, "conv_kernel_size": 3, "conv_group_size": 16}
"""What a draft of blocks says of its selector and its convolutions."""
PROMPTS = (
    "def main():\n",
    "import os\nimport sys\n\n",
    "class Node:\n    def __init__(self, value):\n        self.",
    "x",
    "for index in range(",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--prompts``."""
    parser.addoption("--prompts", type=int, default=12, help="how many prompts a grammar is tried on; default 12")


@dataclass(frozen=True)
class Case:
    """One configuration to build: which models, and the keys that vary."""

    algorithm: str
    models: str
    steps: int = 3
    page_size: int = 1
    overlap: bool = True
    draft_positions: str = "auto"
    topk: int = 1
    nodes: int | None = None
    mask: str = "qlen"
    corpus: bool = False
    mixed: bool = False
    """Models in bf16 whose scores are handed over in f32."""
    reduced: bool = False
    """The draft scores two tokens of three, by a file."""
    head: str = "engine"
    """Who computes the head of the draft's vocabulary, and by which weights."""
    budget: int | None = None
    """Rows of the target, a request on average."""
    form: str = "engine"
    """Who commits the target's recurrent state."""
    ranks: int = 0
    """Ranks that logits are sharded over, on four columns more than there are tokens; 0: they are whole."""

    @property
    def name(self) -> str:
        """Return the configuration's name, which is the package's too."""
        flags = f"p{self.page_size}_s{self.steps}_{'o' if self.overlap else 'n'}_{self.draft_positions}"
        tree = f"_k{self.topk}_n{self.nodes}_{self.mask}" if self.topk > 1 else ""
        marks = {"_corpus": self.corpus, "_mixed": self.mixed, "_reduced": self.reduced, f"_r{self.ranks}": self.ranks}
        marks[f"_b{self.budget}"] = self.budget is not None
        marks |= {f"_{self.head}": self.head != "engine", f"_{self.form}": self.form != "engine"}
        ends = "".join(end for end, there in marks.items() if there)
        return f"{self.algorithm.lower()}_{self.models}_{flags}{tree}{ends}"


@dataclass(frozen=True)
class Models:
    """Directories of a target and of the draft for each algorithm, a text to look drafts up in, and some tokens."""

    target: Path
    drafts: dict[str, Path]
    corpus: Path
    token_map: Path


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Keep sums in one order and leave the other cores alone."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Models]:
    """Return the trained models of the examples, and random ones of another architecture."""
    trained = {name: EXAMPLES / directory for name, directory in DRAFTS.items()}
    tokens = tmp_path_factory.mktemp("tokens") / "map.json"
    tokens.write_text(json.dumps([token for token in range(VOCAB) if token % 3 != 1]), encoding="utf-8")
    return {
        "trained": Models(EXAMPLES / "target", trained, EXAMPLES / "heads.py", tokens),
        "random": _random_models(tmp_path_factory.mktemp("random"), tokens),
        "learned": _learned_positions(tmp_path_factory.mktemp("learned"), tokens),
        "corrected": _corrected_blocks(tmp_path_factory.mktemp("corrected"), tokens),
        "unlisted": _unlisted_layers(tmp_path_factory.mktemp("unlisted"), tokens),
        **{kind: _with_module(kind, tmp_path_factory.mktemp(kind), tokens) for kind in KINDS},
    }


def _with_module(kind: str, root: Path, tokens: Path) -> Models:
    """Write a target as models of a kind are published, whose module drafts for it."""
    make_published(kind, root, vocab=VOCAB, likely=True)
    AutoTokenizer.from_pretrained(EXAMPLES / "target").save_pretrained(root)
    return Models(root, dict.fromkeys(("EAGLE", "MULTI_LAYER_EAGLE"), root), ROOT / "Makefile", tokens)


def _learned_positions(root: Path, tokens: Path) -> Models:
    """Write a random GPT-2 target and a draft, with an embedding for each of few positions: the draft has fewer."""
    for name, positions, layers in (("target", 40, 2), ("standalone", 36, 1)):
        torch.manual_seed(layers)
        sizes = {"n_positions": positions, "n_embd": 32, "n_layer": layers, "n_head": 2, "vocab_size": VOCAB}
        config = GPT2Config(**sizes, initializer_range=0.4, bos_token_id=0, eos_token_id=1, dtype="float32")
        AutoModelForCausalLM.from_config(config).save_pretrained(root / name)
    return Models(root / "target", {"STANDALONE": root / "standalone"}, ROOT / "Makefile", tokens)


def _random_models(root: Path, tokens: Path) -> Models:
    """Write a random Qwen3 target, a standalone draft of another width, and heads."""
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(_qwen3(hidden=64, layers=2, heads=4, kv_heads=2))
    target.save_pretrained(root / "target")
    AutoTokenizer.from_pretrained(EXAMPLES / "target").save_pretrained(root / "target")
    draft = AutoModelForCausalLM.from_config(_qwen3(hidden=32, layers=1, heads=2, kv_heads=1))
    draft.save_pretrained(root / "standalone")
    EagleHead(_qwen3(hidden=64, layers=1, heads=4, kv_heads=2)).save(root / "eagle")
    narrower = _qwen3(hidden=32, layers=1, heads=2, kv_heads=1)
    narrower.target_hidden_size, narrower.eagle_config = 64, {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    Eagle3Head(narrower).save(root / "eagle3")
    frozen = _qwen3(hidden=32, layers=2, heads=2, kv_heads=2)
    frozen.backbone_hidden_size, frozen.kv_layers = 64, [1, 0]
    FrozenKvHead(frozen).save(root / "frozen_kv")
    MtpHeads(_qwen3(hidden=64, layers=5, heads=4, kv_heads=1)).save(root / "mtp")
    block = _qwen3(hidden=64, layers=2, heads=4, kv_heads=1)
    block.dflash_config = {"target_layer_ids": [0, 1], "block_size": 4}
    DflashHead(block).save(root / "dflash")
    block.markov_rank = 24
    DsparkHead(block).save(root / "dspark")
    block.dflash_config |= SELECTOR
    Dflash2Head(block).save(root / "dflash2")
    drafts = {name: root / directory for name, directory in DRAFTS.items()}
    drafts |= {"DSPARK": root / "dspark", "DFLASH2": root / "dflash2"}
    return Models(root / "target", drafts, ROOT / "Makefile", tokens)


def _unlisted_layers(root: Path, tokens: Path) -> Models:
    """Write a random Qwen3 target, a head that reads its last hidden state, and blocks of no listed layers."""
    torch.manual_seed(1)
    target = AutoModelForCausalLM.from_config(_qwen3(hidden=64, layers=5, heads=4, kv_heads=2))
    target.save_pretrained(root / "target")
    AutoTokenizer.from_pretrained(EXAMPLES / "target").save_pretrained(root / "target")
    head = _qwen3(hidden=64, layers=1, heads=4, kv_heads=2)
    head.eagle_config = {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": []}
    Eagle3Head(head).save(root / "eagle3")
    block = _qwen3(hidden=64, layers=2, heads=4, kv_heads=1)
    block.dflash_config, block.num_target_layers = {"block_size": 4}, 5
    DflashHead(block).save(root / "dflash")
    block.markov_rank, block.sample_from_anchor = 24, False
    DsparkHead(block).save(root / "dspark")
    block.dflash_config |= {"selector_rank": 8, "selector_top_k": 16}
    Dflash2Head(block).save(root / "dflash2")
    drafts = {name: root / DRAFTS[name] for name in ("EAGLE3", "DFLASH")}
    drafts |= {"DSPARK": root / "dspark", "DFLASH2": root / "dflash2"}
    return Models(root / "target", drafts, ROOT / "Makefile", tokens)


def _corrected_blocks(root: Path, tokens: Path) -> Models:
    """Write the trained head of blocks with a random Markov head over it, and with a random selector."""
    torch.manual_seed(2)
    config = read_config(EXAMPLES / "dflash")
    weights = read_weights(EXAMPLES / "dflash", config)
    config.markov_rank, config.sample_from_anchor, config.initializer_range = 8, False, 0.5
    sizes = {"selector_rank": 8, "selector_top_k": 4}
    for kind, options in ((DsparkHead, {}), (Dflash2Head, sizes)):
        config.dflash_config = config.dflash_config | options
        head = kind(config)
        assert not head.load_state_dict(weights, strict=False).unexpected_keys
        head.save(root / kind.__name__)
    drafts = {"DSPARK": root / DsparkHead.__name__, "DFLASH2": root / Dflash2Head.__name__}
    return Models(EXAMPLES / "target", drafts, EXAMPLES / "heads.py", tokens)


def _qwen3(*, hidden: int, layers: int, heads: int, kv_heads: int) -> Qwen3Config:
    """Return a small Qwen3 configuration in f32 whose random weights prefer some tokens clearly."""
    return Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        dtype="float32",
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that wheels are unpacked into."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="session")
def build(
    tmp_path_factory: pytest.TempPathFactory, models: dict[str, Models], site: Path
) -> Iterator[Callable[[Case], ModuleType]]:
    """Return a function that builds a case, unpacks its wheel and imports it; each case once.

    The wheels are for the CPU alone: no machine code is made that nothing here could run, but where the target is told
    the tree by a full mask: those kernels are the nearest to running out of registers.
    """
    sys.path.insert(0, str(site))
    built: dict[Case, ModuleType] = {}

    def make(case: Case) -> ModuleType:
        if case not in built:
            with pytest.MonkeyPatch.context() as patch:
                if case.mask != "full":
                    patch.setattr("specc.compiler.driver.build.compile_machine_code", lambda *_, **__: None)
                wheel = build_wheel(case, models[case.models], tmp_path_factory.mktemp(case.name))
            with ZipFile(wheel) as archive:
                archive.extractall(site)
            importlib.invalidate_caches()
            built[case] = importlib.import_module(f"specc_program_{case.name}")
        return built[case]

    yield make
    sys.path.remove(str(site))


def config_text(case: Case, models: Models) -> str:
    """Return the configuration of a case as YAML."""
    dtypes = ", dtype: bfloat16, logits_dtype: float32" if case.mixed else ""
    draft = models.drafts.get(case.algorithm)
    token_map = f", token_map: {str(models.token_map)!r}" if case.reduced else ""
    token_map += f", head: {case.head}" if case.head != "engine" else ""
    dtypes += f", padded_vocab_size: {VOCAB + 4}" if case.ranks else ""
    form = f", state_form: {case.form}" if case.form != "engine" else ""
    return "\n".join(
        (
            f"name: {case.name}",
            f"algorithm: {case.algorithm}",
            f"num_steps: {case.steps}",
            f"page_size: {case.page_size}",
            f"overlap: {str(case.overlap).lower()}",
            f"draft_positions: {case.draft_positions!r}",
            f"topk: {case.topk}",
            f"num_draft_tokens: {case.nodes or case.steps + 1}",
            *([f"mask: {case.mask}", "context_length: 256"] if case.topk > 1 else []),
            "buckets: [1, 2, 4]",
            *([f"budget: {case.budget}"] if case.budget else []),
            "max_requests: 6",
            "disaggregation: true",
            f"target: {{model: {str(models.target)!r}{dtypes}{form}}}",
            *([f"draft: {{model: {str(draft)!r}{dtypes}{token_map}}}"] if draft else []),
            *(["options: {corpus: corpus.txt}"] if case.corpus else []),
            *([f"tensor_parallel: {case.ranks}", "logits: sharded"] if case.ranks else []),
            "",
        )
    )


def build_wheel(case: Case, models: Models, directory: Path) -> Path:
    """Run `specc build` on a case, in this process; returns the wheel."""
    config = directory / f"{case.name}.yaml"
    config.write_text(config_text(case, models), encoding="utf-8")
    out = directory / "out"
    result = CliRunner().invoke(app, ["build", str(config), "-o", str(out), "--emit", "wheel"])
    assert result.exit_code == 0, result.output
    (wheel,) = out.rglob("*.whl")
    return wheel


def install(site: Path, *wheels: Path) -> None:
    """Install wheels with pip, without their dependencies, into a directory."""
    run_command("pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), *map(str, wheels))


def run_command(module: str, *arguments: str) -> str:
    """Run a Python module as a program and return its output; fails the test with its messages."""
    command = [sys.executable, "-m", module, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.fail(f"{module} {' '.join(arguments)} exited with {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def load_engine(
    package: ModuleType,
    case: Case,
    models: Models,
    *,
    program: Callable[[Any], Any] = lambda loaded: loaded,
    **options: Any,
) -> Any:
    """Make an engine for a case's package; program: what it serves instead of what was loaded."""
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.models.loading import load_corpus, load_draft, load_target

    loaded = package.load("cpu")
    target = load_target(models.target, loaded.plan)
    tokens, draft = models.token_map if case.reduced else None, None
    if case.algorithm in models.drafts:
        draft = load_draft(models.drafts[case.algorithm], loaded.plan, target, tokens)
    tables = {"corpus": load_corpus(models.corpus, target)} if case.corpus else {}
    options = {"max_context": 256, "overlap": case.overlap, **options}
    return Engine(program(loaded), target, draft, tables=tables, **options)


@pytest.fixture
def make_engine(build: Callable[[Case], ModuleType], models: dict[str, Models]) -> Callable[..., Any]:
    """Return a function that builds a case and makes an engine for it."""
    return lambda case, **options: load_engine(build(case), case, models[case.models], **options)
