"""What is known of types without transformers is what its classes say; and what is read so imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from specc.compiler.config.models import known

from . import known_types
from .test_models import LLAMA, TEXT

ROOT = Path(__file__).parents[4]
TABLE = json.loads(known.TABLE.read_text())
COMMON = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "deepseek_v3", "glm4_moe", "gpt_oss"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", known.known_types())
def test_a_type_is_what_its_class_says(kind: str) -> None:
    """Random files, of which both say something, are read alike; most are read without the class."""
    transformers.utils.logging.set_verbosity_error()
    assert known_types.differ(kind, known.known_types()[kind], "test", 20) is None
    if transformers.__version__ == TABLE["transformers"]:
        assert known_types.entry(kind) == known.known_types()[kind], "run `make known`, and look at what has changed"


def test_common_types_are_known() -> None:
    assert known.known_types().keys() >= COMMON


@pytest.mark.parametrize(
    "odd",
    [
        {"hidden_size": "256"},
        {"hidden_size": 256.0},
        {"num_hidden_layers": True},
        {"num_attention_heads": 3},
        {"num_key_value_heads": 0},
        {"text_config": {"hidden_size": 8}},
        {"layer_types": ["conv"] * 4},
        {"layer_types": ["full_attention"]},
        {"full_attn_idxs": [1]},
        {"rope_parameters": {"rope_type": "longrope"}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"rope_scaling": {"type": "linear", "factor": float("nan")}},
        {"rope_scaling": {"type": "linear"}, "rope_parameters": {"rope_type": "default"}},
    ],
)
def test_what_is_not_plain_is_left_to_the_class(odd: dict[str, object]) -> None:
    assert known.plain(LLAMA) is not None
    assert known.plain(LLAMA | odd) is None


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "pad_token_id": None},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "eos_token_id": [1, 2]},
        {"layer_types": ["full_attention"] * 4, "quantization_config": {"quant_method": "fp8"}},
        {"num_key_value_heads": None, "head_dim": None, "rope_scaling": None, "auto_map": {"AutoConfig": "x.X"}},
    ],
)
def test_files_as_they_are_published_need_no_class(keys: dict[str, object]) -> None:
    content = LLAMA | keys
    assert known_types.said_by_table(content) == known_types.said_by_class(content) is not None


@pytest.mark.parametrize("name", ["target", "eagle", "eagle3", "standalone", "mtp", "dflash", "dflash2"])
def test_models_of_the_examples_need_no_class(name: str) -> None:
    assert known.plain(json.loads((ROOT / "examples" / "models" / name / "config.json").read_text())) is not None


def test_a_type_without_heads_may_say_any_number_of_them() -> None:
    assert known.plain({"model_type": "mamba", "hidden_size": 8, "num_attention_heads": 0}) is None


def test_scaling_of_positions_that_a_class_does_not_have() -> None:
    assert known.plain({"model_type": "gpt2"}) is not None
    assert known.plain({"model_type": "gpt2", "rope_parameters": {"rope_type": "linear", "factor": 2.0}}) is None


def test_a_known_type_is_checked_without_transformers(tmp_path: Path) -> None:
    """The whole command, the first time."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["LlamaForCausalLM"]}))
    (tmp_path / "c.yaml").write_text(TEXT)
    heavy = ("torch", "triton", "transformers", "numpy", "jinja2", "safetensors")
    code = (
        "import sys\nfrom specc.cli.main import app\n"
        f"app(['check', {str(tmp_path / 'c.yaml')!r}], standalone_mode=False)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    asked = {**os.environ, "PYTHONPATH": str(ROOT), "SPECC_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=asked)
    assert done.stdout.splitlines() == ["ok: with_models: STANDALONE, chain of 3, page 1, buckets 1..8", "[]"]
    assert not (tmp_path / "cache").exists()
