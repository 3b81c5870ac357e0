"""Emit a wheel: the program, its runtime and its machine code as an ordinary Python distribution.

The bytes depend on the arguments and on specc alone: entries are sorted and stored uncompressed (zlib's output
differs between its versions), timestamps and permissions are fixed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipInfo

import jinja2
from packaging.metadata import Metadata
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version
from wheel.wheelfile import WheelFile

from specc.compiler.codegen.artifact import least_driver
from specc.compiler.config.presets import PRESETS
from specc.compiler.driver.wheel import ENTRY_POINTS
from specc.compiler.driver.wheel.pages import package_page, wanted
from specc.compiler.driver.wheel.runtime_files import runtime_files
from specc.compiler.driver.wheel.sources import LICENSE, license_text, template
from specc.compiler.support.files.writing import unfinished
from specc.runtime.plan.files.manifest import MANIFEST, PLAN, Artifact, Assembler, Manifest
from specc.runtime.plan.files.plan_json import plan_text
from specc.runtime.plan.plan import FORMAT, Plan
from specc.runtime.plan.typed import to_json

if TYPE_CHECKING:
    from _typeshed import SizedBuffer

    from specc.compiler.codegen import artifact as compiled

EPOCH = (1980, 1, 1, 0, 0, 0)
MODE = 0o644
TAG = Tag("py3", "none", "any")
RUNTIME = "_runtime"
TORCH_MINIMUM = "2.11"
PYTHON = ">=3.11"
CUDA_REQUIRES = ("cuda-core>=0.5", "cuda-bindings>=12")
"""The same as specc's own extra `cuda`."""
PREFIX = "specc-program-"
"""What the distribution of every program begins with, so that none has the name of specc, a plugin or another tool."""


@dataclass(frozen=True)
class Names:
    """Names of a generated distribution: `specc-program-eagle-chain` holds `specc_program_eagle_chain`."""

    config: str
    distribution: str
    package: str


def wheel_names(name: str) -> Names:
    """Names of the wheel of the configuration `name`. ValueError when they would not be importable."""
    distribution = canonicalize_name(PREFIX + name)
    package = distribution.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or not package.isidentifier():
        raise ValueError(f"a program cannot be called {name!r}: letters, digits, '_' and '-', a letter first")
    return Names(name, distribution, package)


def write_wheel(
    out_dir: Path,
    *,
    name: str,
    version: str,
    plans: Mapping[str, Plan],
    sources: Mapping[str, str],
    specirs: Mapping[str, str],
    config_text: str,
    artifacts: Sequence[compiled.KernelBinary],
    summary: str,
    triton: str | None = None,
    requires: Sequence[str] = (),
    torch_minimum: str = TORCH_MINIMUM,
) -> Path:
    """Write the wheel of one program into `out_dir`, in place of older ones of its name; returns its path.

    Its version is specc's with a local label, the digest of all that the wheel holds: equal programs have equal
    versions, and pip replaces a program by one of another label.

    Args:
        out_dir: folder, made if it is missing.
        name: the configuration's name.
        version: specc's version.
        plans: path inside the package to the plan of every shape, `plan.json`, that of the deepest, first.
        sources: Triton sources, references of plugins' ops and a tuning file, path inside the package to text.
        specirs: path inside the package to the lowered module of every shape as text.
        config_text: the configuration as written.
        artifacts: machine code; none makes a wheel for the CPU backend alone.
        summary: one line for people; the archs are added.
        triton: version of the compiler that made the machine code; None where there is none.
        requires: further requirements of the wheel.
        torch_minimum: the oldest torch the program runs on.

    Raises ValueError on a name that cannot be imported, a path outside the package, two files of one path, plans
    whose kernels have no source, machine code that needs scratch memory, or metadata that is not valid.
    """
    names = wheel_names(name)
    _check_sources(plans, sources)
    files = _package_files(names, config_text, plans, specirs, sources)
    listed = [_add_artifact(files, artifact) for artifact in artifacts]
    made = _assemblers(artifacts)
    archs = sorted({artifact.arch for artifact in listed})
    needed = [f"torch>={torch_minimum}", *requires]
    info = {
        "entry_points.txt": _entry_points(names, plans[PLAN].engine).encode(),
        f"licenses/{LICENSE}": license_text().encode(),
        "WHEEL": _wheel_file(version),
    }
    unlabelled = {
        **files.content,
        **info,
        MANIFEST: _manifest(names, version, "", triton, plans, listed, made, files, torch_minimum).encode(),
        "METADATA": _metadata(names, version, summary, archs, needed, wanted(plans[PLAN])),
    }
    digest = _digest(unlabelled)
    labelled = f"{version}+{label(digest)}"
    files.add(MANIFEST, _manifest(names, labelled, digest, triton, plans, listed, made, files, torch_minimum))
    info["METADATA"] = _metadata(names, labelled, summary, archs, needed, wanted(plans[PLAN]))
    return _write(out_dir, names, labelled, files.content, info)


def file_name(names: Names, version: str) -> str:
    """The name of a program's wheel, which pip is given: no index has programs."""
    return f"{names.package}-{version}-{TAG}.whl"


def _package_files(
    names: Names, config_text: str, plans: Mapping[str, Plan], specirs: Mapping[str, str], sources: Mapping[str, str]
) -> _Files:
    """All text of the package but the manifest."""
    files = _Files()
    face = _rendered("package.py", **package_page(names.package, plans))
    own = {"config.yaml": config_text, "py.typed": "", "__init__.py": face}
    texts = {path: plan_text(plan) for path, plan in plans.items()}
    islands = runtime_files(list(plans.values()), RUNTIME)
    if engine := plans[PLAN].engine:
        islands |= PRESETS[engine].adapter()
    for part in (texts, specirs, own, sources, islands):
        for path, text in part.items():
            files.add(path, text)
    return files


def label(digest: str) -> str:
    """The local version label of a program: 12 digits after a letter, for digits alone would lose leading zeros."""
    return f"p{digest[:12]}"


def _digest(files: Mapping[str, bytes]) -> str:
    """The sha256, in hex, of files with their paths, in whatever order they are."""
    listed = "".join(f"{hashlib.sha256(files[path]).hexdigest()} {path}\n" for path in sorted(files))
    return hashlib.sha256(listed.encode()).hexdigest()


class _Files:
    """Content by path inside the package."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def add(self, path: str, content: str | bytes) -> None:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path or "\\" in path:
            raise ValueError(f"not a path inside the package: {path!r}")
        if path in self.content:
            raise ValueError(f"two files of the path {path!r}")
        self.content[path] = content.encode() if isinstance(content, str) else content


def _check_sources(plans: Mapping[str, Plan], sources: Mapping[str, str]) -> None:
    named = {part.source for plan in plans.values() for part in (*plan.kernels.values(), *plan.ops.values())}
    missing = sorted(named - sources.keys())
    if missing:
        raise ValueError(f"the plan names sources that are not there: {', '.join(missing)}")


def _entry_points(names: Names, engine: str | None) -> str:
    """The program by its configuration's name; for an engine also the adapter, as a plugin of the package's name."""
    text = f"[{ENTRY_POINTS}]\n{names.config} = {names.package}\n"
    if engine is None:
        return text
    plugins = PRESETS[engine].plugins
    return f"{text}\n[{plugins}]\n{names.package} = {names.package}._{engine}:register\n"


def _add_artifact(files: _Files, artifact: compiled.KernelBinary) -> Artifact:
    if artifact.global_scratch or artifact.profile_scratch:
        raise ValueError(f"{artifact.kernel} for {artifact.arch} needs scratch memory, which no launch gives it")
    file = f"machine_code/{artifact.arch}/{artifact.kernel}.{artifact.kind}"
    files.add(file, artifact.binary)
    return Artifact(
        kernel=artifact.kernel,
        arch=artifact.arch,
        kind=artifact.kind,
        file=file,
        entry=artifact.entry,
        num_warps=artifact.num_warps,
        shared=artifact.shared,
        parameters=tuple(artifact.parameters),
        registers=artifact.registers,
    )


def _assemblers(artifacts: Sequence[compiled.KernelBinary]) -> dict[str, Assembler]:
    """What assembled the machine code by arch, the newest where there are several, and the driver that it asks for."""
    newest: dict[str, str] = {}
    for artifact in artifacts:
        if artifact.assembler is not None:
            assembler = newest.setdefault(artifact.arch, artifact.assembler)
            newest[artifact.arch] = max(assembler, artifact.assembler, key=Version)
    return {arch: Assembler(version, least_driver(arch, version)) for arch, version in newest.items()}


def _manifest(
    names: Names,
    version: str,
    digest: str,
    triton: str | None,
    plans: Mapping[str, Plan],
    artifacts: Sequence[Artifact],
    assemblers: Mapping[str, Assembler],
    files: _Files,
    torch_minimum: str,
) -> str:
    plan = plans[PLAN]
    ordered = sorted(artifacts, key=lambda artifact: (artifact.arch, artifact.kernel))
    manifest = Manifest(
        name=names.config,
        version=version,
        digest=digest,
        engine=plan.engine,
        specc=plan.specc,
        triton=triton,
        plan_format=FORMAT,
        plans={str(plan.shape): path for path, plan in plans.items()},
        torch=torch_minimum,
        archs=tuple(sorted({artifact.arch for artifact in artifacts})),
        artifacts=tuple(ordered),
        assemblers=assemblers,
        files={path: hashlib.sha256(content).hexdigest() for path, content in files.content.items()},
    )
    return json.dumps(to_json(manifest), sort_keys=True, indent=2) + "\n"


@functools.cache
def _template(text: str) -> jinja2.Template:
    """A template with this text."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(text)


def _rendered(name: str, **fields: Any) -> str:
    """A file of `templates/wheel` with fields filled in."""
    return _template(template(name)).render(**fields)


def _metadata(
    names: Names, version: str, summary: str, archs: Sequence[str], requires: Sequence[str], sections: Mapping[str, Any]
) -> bytes:
    fields = {
        "distribution": names.distribution,
        "package": names.package,
        "version": version,
        "file": file_name(names, version),
    }
    message = Message()
    for header, value in (
        ("Metadata-Version", "2.4"),
        ("Name", names.distribution),
        ("Version", version),
        ("Summary", f"{summary}, for {', '.join(archs)}" if archs else summary),
        ("Keywords", ",".join(["speculative-decoding", *archs])),
        ("License-Expression", "Apache-2.0"),
        ("License-File", LICENSE),
        ("Requires-Python", PYTHON),
        *(("Requires-Dist", requirement) for requirement in requires),
        ("Provides-Extra", "cuda"),
        *(("Requires-Dist", f'{requirement}; extra == "cuda"') for requirement in CUDA_REQUIRES),
        ("Description-Content-Type", "text/markdown"),
    ):
        if "\n" in value or "\r" in value:
            raise ValueError(f"{header} of a wheel must be one line: {value!r}")
        message[header] = value
    body = _rendered("README.md.jinja", summary=summary, archs=archs, **sections, **fields)
    content = _headers(message) + body.encode()
    Metadata.from_email(content, validate=True)
    return content


def _wheel_file(version: str) -> bytes:
    message = Message()
    message["Wheel-Version"] = "1.0"
    message["Generator"] = f"specc {version}"
    message["Root-Is-Purelib"] = "true"
    message["Tag"] = str(TAG)
    return _headers(message)


def _headers(message: Message) -> bytes:
    """Headers as UTF-8, one line each, and the blank line that ends them."""
    return "".join(f"{name}: {value}\n" for name, value in message.items()).encode() + b"\n"


class _ReproducibleWheel(WheelFile):
    """A wheel whose every entry, RECORD included, has the same date and permissions."""

    def writestr(
        self, zinfo_or_arcname: str | ZipInfo, data: SizedBuffer | str, compress_type: int | None = None
    ) -> None:
        name = zinfo_or_arcname if isinstance(zinfo_or_arcname, str) else zinfo_or_arcname.filename
        entry = ZipInfo(name, date_time=EPOCH)
        entry.external_attr = (stat.S_IFREG | MODE) << 16
        entry.create_system = 3  # unix, wherever specc runs
        entry.compress_type = ZIP_STORED
        super().writestr(entry, data)

    def close(self) -> None:
        """Write RECORD and the directory; where that fails, as on a full disk, it is not tried again later."""
        file = self.fp
        try:
            super().close()
        except BaseException:
            self.fp = None
            if file is not None:
                with contextlib.suppress(OSError, ValueError):
                    file.close()
            raise


def _write(out_dir: Path, names: Names, version: str, files: Mapping[str, bytes], info: Mapping[str, bytes]) -> Path:
    wheel = out_dir / file_name(names, version)
    with unfinished(wheel) as path, _ReproducibleWheel(path, "w", compression=ZIP_STORED) as archive:
        for inside in sorted(files):
            archive.writestr(f"{names.package}/{inside}", files[inside])
        for inside in sorted(info):
            archive.writestr(f"{archive.dist_info_path}/{inside}", info[inside])
    for older in set(out_dir.glob(f"{names.package}-*-{TAG}.whl")) - {wheel}:
        older.unlink()
    return wheel
