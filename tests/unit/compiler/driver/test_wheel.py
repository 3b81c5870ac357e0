"""What a generated wheel holds, and that its bytes depend on nothing else."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fakes.plans import chain_plan, tree_plan
from fakes.toy_wheel import toy_artifact, toy_wheel
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename
from programs import planned
from wheel.wheelfile import WheelFile

import specc.runtime
from specc.compiler.driver.wheel import sources
from specc.compiler.driver.wheel import wheel as module
from specc.compiler.driver.wheel.wheel import label, wheel_names
from specc.runtime.plan.files.plan_json import plan_text, read_plan
from specc.runtime.plan.plan import FORMAT

ROOT = Path(module.__file__).parents[4]
PACKAGE = "specc_program_toy_chain"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def info(built: Path) -> str:
    """The folder of the wheel's metadata."""
    return f"{PACKAGE}-{version_of(built)}.dist-info"


def version_of(wheel: Path) -> str:
    """As the file's name has it."""
    return str(parse_wheel_filename(wheel.name)[1])


def read(wheel: Path) -> dict[str, bytes]:
    """All files of a wheel, each compared with RECORD by the reader."""
    with WheelFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_names(built: Path) -> None:
    name, version, build, tags = parse_wheel_filename(built.name)
    assert (name, version.public, build) == ("specc-program-toy-chain", "0.1.0", ())
    assert re.fullmatch("p[0-9a-f]{12}", version.local or "")
    assert {str(tag) for tag in tags} == {"py3-none-any"}
    names = wheel_names("Big-Chain_2")
    assert (names.distribution, names.package) == ("specc-program-big-chain-2", "specc_program_big_chain_2")


def test_no_program_has_the_name_of_a_plugin() -> None:
    """The example's plugin is specc-anchored: a configuration of its algorithm may well be called anchored."""
    with (ROOT / "examples" / "plugin" / "pyproject.toml").open("rb") as file:
        plugin = tomllib.load(file)["project"]
    names = wheel_names(plugin["name"].removeprefix("specc-"))
    assert names.config == "anchored"
    assert names.distribution != plugin["name"]
    assert names.package not in plugin["entry-points"]["specc.algorithms"].values()


def test_files(built: Path, info: str) -> None:
    files = read(built)
    kernels = list(chain_plan()["kernels"])
    expected = {f"{PACKAGE}/{name}" for name in ("__init__.py", "py.typed", "plan.json", "manifest.json")}
    expected |= {f"{PACKAGE}/module.specir", f"{PACKAGE}/config.yaml"}
    expected |= {f"{PACKAGE}/kernels/{name}.py" for name in kernels}
    for arch in ("sm_90", "sm_100"):
        expected |= {f"{PACKAGE}/machine_code/{arch}/{name}.cubin" for name in kernels}
    expected |= {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert {name for name in files if "/_runtime/" not in name} == expected
    own = sorted(name for name in files if info not in name)
    about = sorted(name for name in files if info in name and "RECORD" not in name)
    assert list(files) == [*own, *about, f"{info}/RECORD"]
    assert files[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert read_plan(json.loads(files[f"{PACKAGE}/plan.json"])) == read_plan(chain_plan())
    assert files[f"{PACKAGE}/plan.json"].decode() == plan_text(read_plan(chain_plan()))


def test_the_runtime_is_copied_byte_for_byte(built: Path) -> None:
    """But for files that the program has no use for, and the lists of what is there."""
    root = Path(specc.runtime.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.py")}
    prefix = f"{PACKAGE}/_runtime/"
    copied = {name.removeprefix(prefix): data for name, data in read(built).items() if name.startswith(prefix)}
    assert {name for name in copied if copied[name] != sources[name]} == {"api.py", "program.py", "step.py"}
    dialects = [
        "blocks",
        "budget",
        "head",
        "lattice",
        "moves",
        "ngram",
        "place",
        "rejection",
        "roots",
        "sample",
        "scores",
        "shards",
        "state_forms",
        "tree",
        "walk",
    ]
    capabilities = [
        "brought",
        "budgets/confidence",
        "collective",
        "moving",
        "records",
        "sampled",
        "sampling",
        "shape",
        "states/fold",
        "states/point",
        "states/select",
        "step_times",
        "draft_tables",
        "given_rows",
    ]
    missing = {*(f"semantics/{name}.py" for name in dialects), *(f"capabilities/{name}.py" for name in capabilities)}
    missing |= {
        "entry/callbacks.py",
        "entry/first.py",
        "memory/kv_pools.py",
        "memory/state_pools.py",
        "plan/recurrent/state_tables.py",
        "plan/draft_head/part_size.py",
        "plan/parameters.py",
        "plan/token_map.py",
        "rotated.py",
        "rounding.py",
    }
    missing |= {"state/peer.py", "state/transfer.py"}
    assert sources.keys() - copied.keys() == missing


def test_metadata(built: Path, info: str) -> None:
    files = read(built)
    metadata = Metadata.from_email(files[f"{info}/METADATA"])
    assert metadata.name == "specc-program-toy-chain"
    assert str(metadata.version) == version_of(built)
    assert metadata.metadata_version == "2.4"
    assert (metadata.license_expression, metadata.license_files) == ("Apache-2.0", ["LICENSE"])
    assert metadata.summary == "A toy chain: Größe 3, for sm_100, sm_90"
    assert metadata.keywords == ["speculative-decoding", "sm_100", "sm_90"]
    assert str(metadata.requires_python) == ">=3.11"
    assert [str(r) for r in metadata.requires_dist or ()] == [
        "torch>=2.11",
        'cuda-core>=0.5; extra == "cuda"',
        'cuda-bindings>=12; extra == "cuda"',
    ]
    assert metadata.provides_extra == ["cuda"]
    assert "import specc_program_toy_chain as k" in (metadata.description or "")
    assert "for sm_100, sm_90" in (metadata.description or "")
    assert f"`pip install '{built.name}[cuda]'`" in (metadata.description or "")
    assert files[f"{info}/entry_points.txt"].decode() == "[specc.programs]\ntoy_chain = specc_program_toy_chain\n"
    assert b"Tag: py3-none-any\n" in files[f"{info}/WHEEL"]


def test_the_description_says_which_kv_buffers_to_bind(built: Path, info: str, tmp_path: Path) -> None:
    chain = read(built)[f"{info}/METADATA"].decode()
    assert "step = program.bind(callbacks, req_to_token)\n" in chain
    assert "kv_pools" not in chain
    other = toy_wheel(tmp_path, plan=read_plan(tree_plan()))
    tree = read(other)[f"{PACKAGE}-{version_of(other)}.dist-info/METADATA"].decode()
    assert "step = program.bind(callbacks, req_to_token, kv_pools)\n" in tree
    assert 'of the draft and the target. `kv_pools` has the engine\'s buffers, by model: `"draft"`, `"target"`,' in tree


STATES = {"kind": "GDN", "heads": 2, "rows": 4, "columns": 4, "groups": 1, "kernel": 4}
BOUND = {
    "select": 'copies states of the target\'s recurrent layers. `state_pools` has under `"target"` a pair of tensors',
    "fold": "layer by layer, the parts `(matrix f32[rows, 2, 4, 4], decay f32[requests, N, 2], ",
    "point": '`state_pools` has under `"target"`, layer by layer, tensors `[rows, snapshots, ...]`, each in a tuple',
}


@pytest.mark.parametrize("form", BOUND)
def test_the_description_says_which_states_to_bind(form: str, tmp_path: Path) -> None:
    state = {"state": STATES} if form == "fold" else {}
    (plan,) = planned("STANDALONE", target={"state_layers": 2, "state_form": form, **state})
    made = toy_wheel(tmp_path, plan=plan, artifacts=[toy_artifact(name, "sm_90") for name in plan.kernels])
    files = read(made)
    description = files[f"{PACKAGE}-{version_of(made)}.dist-info/METADATA"].decode()
    assert "state_pools=state_pools" in description
    assert BOUND[form] in description
    assert b"* `state_pools`: the states of the target's recurrent layers" in files[f"{PACKAGE}/__init__.py"]


def test_manifest(built: Path) -> None:
    files = read(built)
    manifest = json.loads(files[f"{PACKAGE}/manifest.json"])
    assert manifest["archs"] == ["sm_100", "sm_90"]
    assert (manifest["torch"], manifest["triton"], manifest["plan_format"]) == ("2.11", "3.8.0", FORMAT)
    assert manifest["version"] == version_of(built) == f"0.1.0+{label(manifest['digest'])}"
    own = {name.removeprefix(f"{PACKAGE}/") for name in files if name.startswith(PACKAGE + "/")}
    assert manifest["files"].keys() == own - {"manifest.json"}
    assert manifest["artifacts"][0] == {
        "arch": "sm_100",
        "entry": "entry",
        "file": "machine_code/sm_100/draft_argmax_0.cubin",
        "kernel": "draft_argmax_0",
        "kind": "cubin",
        "num_warps": 4,
        "parameters": ["*i64", "i64", "*i8", "*i8"],
        "registers": 40,
        "shared": 512,
    }
    assert manifest["assemblers"] == {
        "sm_100": {"driver": 12080, "version": "12.8.93"},
        "sm_90": {"driver": 12000, "version": "12.8.93"},
    }


def test_the_driver_is_that_of_the_newest_assembler(tmp_path: Path) -> None:
    """And code for inspection has none."""
    kernels = list(read_plan(chain_plan()).kernels)
    versions = dict.fromkeys(kernels, "9.2.0") | {kernels[1]: "13.4.59", kernels[2]: "12.9.86"}
    made = [toy_artifact(name, "sm_90", assembler=version) for name, version in versions.items()]
    made += [toy_artifact(name, "gfx942", kind="hsaco", assembler=None) for name in kernels]
    manifest = json.loads(read(toy_wheel(tmp_path, artifacts=made))[f"{PACKAGE}/manifest.json"])
    assert manifest["assemblers"] == {"sm_90": {"driver": 13000, "version": "13.4.59"}}


def _backwards(value: Any) -> Any:
    """A mapping with its keys in another order, and anything else as it is."""
    return dict(reversed(value.items())) if isinstance(value, dict) else value


def test_bytes_depend_on_the_arguments_alone(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr("time.time", lambda: 1.8e9)
    plan = read_plan({key: _backwards(value) for key, value in reversed(chain_plan().items())})
    sources = {kernel.source: f"# {name}\n" for name, kernel in plan.kernels.items()}
    archs = ("sm_100", "sm_90")
    artifacts = [toy_artifact(name, arch) for name in plan.kernels for arch in archs]
    again = toy_wheel(tmp_path / "new" / "folder", plan=plan, sources=sources, artifacts=artifacts)
    assert again.read_bytes() == built.read_bytes()
    assert list(again.parent.iterdir()) == [again]
    with zipfile.ZipFile(again) as archive:
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.external_attr >> 16 == 0o100644
            assert (entry.compress_type, entry.create_system) == (zipfile.ZIP_STORED, 3)


CHANGES: list[dict[str, Any]] = [
    {"artifacts": []},
    {"artifacts": [toy_artifact("prepare_rows", shared=1024)]},
    {"config_text": "algorithm: STANDALONE  # another\n"},
    {"plan": read_plan(chain_plan() | {"disaggregation": True})},
    {"specirs": {"module.specir": "module @other {\n}\n"}},
    {"summary": "Another"},
    {"requires": ["numpy"]},
    {"torch_minimum": "2.12"},
    {"triton": "3.7.1"},
    {"version": "0.2.0"},
]


def test_the_version_changes_with_whatever_the_wheel_holds(built: Path, tmp_path: Path) -> None:
    """Else pip calls a changed program already installed."""
    versions = [version_of(toy_wheel(tmp_path / str(i), **change)) for i, change in enumerate(CHANGES)]
    labels = {version.partition("+")[2] for version in [version_of(built), *versions]}
    assert len(labels) == len(CHANGES) + 1


def test_the_version_changes_with_the_runtime(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = module.runtime_files
    monkeypatch.setattr(module, "runtime_files", lambda *a: whole(*a) | {"_runtime/state/relay.py": "# changed\n"})
    assert version_of(toy_wheel(tmp_path)) != version_of(built)


def test_one_bound_for_each_requirement() -> None:
    """What specc needs to run a program is what its wheels ask for."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert tuple(project["optional-dependencies"]["cuda"]) == module.CUDA_REQUIRES
    (torch,) = (need for need in project["dependencies"] if need.startswith("torch"))
    assert torch.split(",")[0] == f"torch>={module.TORCH_MINIMUM}"
    assert project["requires-python"] == module.PYTHON
    assert project["license"] == "Apache-2.0"


def test_a_wheel_replaces_older_ones_of_its_name_alone(tmp_path: Path) -> None:
    first = toy_wheel(tmp_path)
    other = toy_wheel(tmp_path, name="toy_chain_2")
    (tmp_path / f"{PACKAGE}-notes.txt").touch()
    second = toy_wheel(tmp_path, artifacts=[])
    assert second != first
    assert set(tmp_path.glob("*.whl")) == {other, second}
    assert (tmp_path / f"{PACKAGE}-notes.txt").exists()
    assert json.loads(read(second)[f"{PACKAGE}/manifest.json"])["archs"] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "1x"}, "a program cannot be called '1x'"),
        ({"name": "a.b"}, "a program cannot be called"),
        ({"name": "a b"}, "a program cannot be called"),
        ({"sources": {}}, "sources that are not there: kernels/draft_argmax_0.py"),
        ({"summary": "two\nlines"}, "Summary of a wheel must be one line"),
        ({"artifacts": [toy_artifact("a")] * 2}, "two files of the path 'machine_code/sm_90/a.cubin'"),
        ({"artifacts": [toy_artifact("../a")]}, "not a path inside the package"),
        ({"artifacts": [toy_artifact("a", global_scratch=128)]}, "a for sm_90 needs scratch memory"),
        ({"artifacts": [toy_artifact("a", profile_scratch=8)]}, "a for sm_90 needs scratch memory"),
        ({"requires": ["a b c"]}, "requires-dist|a b c"),
    ],
)
def test_what_cannot_be_a_wheel(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ExceptionGroup)) as caught:
        toy_wheel(tmp_path, **changes)
    error = caught.value
    text = str(error) + "".join(map(str, getattr(error, "exceptions", ())))
    assert any(part in text for part in message.split("|"))
    assert not list(tmp_path.iterdir())


def test_nothing_in_a_source_path_leaves_the_package(tmp_path: Path) -> None:
    sources = {kernel["source"]: "" for kernel in chain_plan()["kernels"].values()}
    for path in ("/etc/x", "../x", "a/../x", "a\\x", "a//x", "plan.json"):
        with pytest.raises(ValueError, match="path"):
            toy_wheel(tmp_path, sources=sources | {path: ""})


def test_templates_are_found_in_an_installed_specc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_templates" / "wheel").mkdir(parents=True)
    (tmp_path / "_templates" / "wheel" / "package.py").write_text("installed")
    monkeypatch.setattr(sources.importlib.resources, "files", lambda name: tmp_path)
    assert sources.template("package.py") == "installed"
    assert "specc" in sources.template("README.md.jinja")
