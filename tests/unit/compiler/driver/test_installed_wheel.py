"""A generated wheel installed with pip, used where specc and its dependencies do not exist."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import venv
from importlib import import_module
from pathlib import Path

import pytest
from fakes.toy_wheel import PACKAGE, installed, toy_wheel

import specc.runtime

BLOCKER = """
import sys

class Blocker:
    names = {"specc", "jinja2", "networkx", "triton", "pydantic", "wheel", "packaging"}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
"""

IMPORT = """
from importlib.metadata import version
import specc_program_toy_chain as k
assert "torch" not in sys.modules
assert (k.plan.name, k.manifest.archs) == ("toy_chain", ("sm_100", "sm_90"))
assert k.__version__ == k.manifest.version == version("specc-program-toy-chain")
assert issubclass(k.DamagedWheelError, k.SpeccError)
assert k.faults(1) == ("draft",) and k.Batch
assert "torch" not in sys.modules
assert set(dir(k)) == set(k.__all__) >= {"load", "manifest", "plan", "Batch", "SpeccError", "Step"}
assert "torch" not in sys.modules
assert set(k.__all__) == {name for name in k.__all__ if hasattr(k, name)}
try:
    k.nothing
except AttributeError as error:
    assert "has no attribute 'nothing'" in str(error)
print("cheap")
"""

RUN = """
import torch
import specc_program_toy_chain as k

class Callbacks:
    def draft(self, *, step, tokens, positions, slots, rows, seq_lens, capture):
        return k.Forward(torch.zeros(len(rows), 1, 32))
    def target(self, *, tokens, positions, slots, rows, seq_lens, capture):
        return k.Forward(torch.zeros(len(rows), 4, 32))
    def extend(self, *, tokens, positions, slots, select, accept_lens, rows, seq_lens, capture):
        return k.Forward(torch.zeros(len(rows), 32))
    def prefill_target(self, *, rows, seq_lens, capture):
        return k.Forward(torch.zeros(len(rows), 32))
    def prefill_draft(self, *, first, rows, seq_lens, capture):
        return k.Forward(torch.zeros(len(rows), 32))

program = k.load("cpu")
what = "STANDALONE, a chain of 3 drafts, up to 4 requests"
assert repr(program) == f"<Program toy_chain {k.__version__}: {what}, on cpu>"
assert repr(k.plan) == f"<Plan toy_chain: {what}>"
assert repr(k.manifest) == f"<Manifest toy_chain {k.__version__}, for sm_100, sm_90>"
assert program.device == torch.device("cpu")
step = program.bind(Callbacks(), torch.arange(8 * 50, dtype=torch.int32).view(8, 50))
assert repr(step) == f"<Step toy_chain: {what}, req_to_token [8, 50], on cpu, not captured>"
assert step.prefill(k.Batch([3, 5], [2, 4])).to_host().bonus == [0, 0]
result = step.decode(k.Batch([5, 3], [4, 2])).to_host()
assert [result.tokens(0), result.new_seq_lens] == [[0, 0, 0, 0], [8, 6]]
assert len(program.idle_carry()) == 0
try:
    k.load("mps")
except k.UnsupportedDeviceError as error:
    assert "neither cpu nor cuda" in str(error)
torch.__version__ = "2.10.3"
try:
    k.load("cpu")
except k.UnsupportedTorchError as error:
    print(error)
"""

DAMAGE = """
import specc_program_toy_chain as k
try:
    k.load("cpu")
except k.DamagedWheelError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    wheel = toy_wheel(folder)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--quiet"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(wheel)], check=True, capture_output=True)
    return folder / "site"


def child(site: Path, script: str) -> str:
    command = [sys.executable, "-W", "error", "-c", BLOCKER + script, str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=site)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_is_cheap_and_a_step_needs_no_specc(site: Path) -> None:
    """In one process, which imports torch when it is asked for what needs it."""
    refused = "torch 2.10.3 is installed, the program needs 2.11 or later"
    assert child(site, IMPORT + RUN).splitlines() == ["cheap", refused]


def test_the_entry_point_names_the_package(site: Path) -> None:
    script = """
from importlib.metadata import entry_points
print(*[(point.name, point.value) for point in entry_points(group="specc.programs", name="toy_chain")])
"""
    assert child(site, script) == "('toy_chain', 'specc_program_toy_chain')"


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("kernels/prepare_rows.py", b"# other\n", "kernels/prepare_rows.py differs from its digest"),
        ("machine_code/sm_90/prepare_rows.cubin", b"", "machine_code/sm_90/prepare_rows.cubin differs"),
        ("plan.json", None, "plan.json is missing"),
        ("_runtime/state/relay.py", None, "_runtime/state/relay.py is missing"),
        ("manifest.json", b"{", "manifest.json: JSONDecodeError"),
        ("manifest.json", b"{}", "manifest.json: TypeError: manifest.json has no 'archs'"),
        ("manifest.json", None, "manifest.json is missing"),
    ],
)
def test_damage_is_found_and_named(site: Path, file: str, damage: bytes | None, message: str) -> None:
    path = site / "specc_program_toy_chain" / file
    whole = path.read_bytes()
    try:
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        assert child(site, DAMAGE).startswith(message)
    finally:
        path.write_bytes(whole)


def test_digests_can_be_skipped(tmp_path: Path) -> None:
    with installed(toy_wheel(tmp_path), tmp_path / "site"):
        (tmp_path / "site" / PACKAGE / "config.yaml").write_bytes(b"other")
        program = import_module(PACKAGE)
        with pytest.raises(program.DamagedWheelError, match=r"^config\.yaml differs"):
            program.load("cpu")
        assert program.load("cpu", verify=False).plan.name == "toy_chain"


def test_the_manifest_says_what_is_installed(site: Path) -> None:
    manifest = json.loads((site / "specc_program_toy_chain" / "manifest.json").read_text())
    for file in manifest["files"]:
        assert (site / "specc_program_toy_chain" / file).is_file()


def test_the_runtime_is_an_island() -> None:
    """It imports the standard library, torch, in the CUDA backend cuda, and itself by relative imports."""
    allowed = sys.stdlib_module_names | {"torch"}
    for path in Path(specc.runtime.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = {(node.module or "").partition(".")[0]}
            else:
                continue
            assert roots <= (allowed | {"cuda"} if path.name == "cuda.py" else allowed), path


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of an environment with nothing in it."""
    venv.create(tmp_path / "environment", with_pip=False)
    return tmp_path / "environment" / "bin" / "python"


def install(python: Path, *wheels: Path) -> None:
    """Install wheels as anybody does: no --force-reinstall."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--quiet", *map(str, wheels)], check=True, capture_output=True)


def said(python: Path, script: str) -> str:
    """What a script prints there."""
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_pip_replaces_a_program_whose_configuration_changed(environment: Path, tmp_path: Path) -> None:
    script = (
        "import importlib.resources as r; print(r.files('specc_program_toy_chain').joinpath('config.yaml').read_text())"
    )
    for text in ("num_steps: 3", "num_steps: 5", "num_steps: 3"):
        install(environment, toy_wheel(tmp_path, config_text=text))
        assert said(environment, script) == text


def test_a_program_named_like_a_plugin_leaves_the_plugin(environment: Path, tmp_path: Path) -> None:
    plugin = Path(__file__).parents[4] / "examples" / "plugin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--quiet", "--wheel-dir", str(tmp_path), str(plugin)], check=True, capture_output=True)
    install(environment, *tmp_path.glob("specc_anchored-*.whl"))
    install(environment, toy_wheel(tmp_path, name="anchored"))
    script = """
from importlib.metadata import distributions, entry_points
from importlib.util import find_spec
print(sorted(found.name for found in distributions()))
print(*entry_points(group="specc.algorithms").names, *entry_points(group="specc.programs").names)
assert find_spec("specc_anchored") and find_spec("specc_program_anchored")
"""
    assert said(environment, script).splitlines() == [
        "['specc-anchored', 'specc-program-anchored']",
        "anchored anchored",
    ]
