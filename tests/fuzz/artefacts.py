"""Programs as files: flipped bytes that digests must catch, and plans and manifests changed and signed again.

What loads is bound to an engine, prefilled and decoded once: right, or an error of the runtime's own. A plan that was
signed again is trusted, so what it computes is not judged; that it ends with no other error, and in time, is.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import tempfile
import traceback
from pathlib import Path
from typing import Any

from fakes import engine

from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.errors import DamagedWheelError, SpeccError
from specc.runtime.plan.files.manifest import MANIFEST, PLAN
from specc.runtime.plan.nodes import KINDS as BINDINGS
from specc.runtime.plan.plan import FORMAT, PROMPT
from specc.runtime.program import load
from specc.runtime.rotated import RotatedStep

from . import bound, sessions
from .outcome import RIGHT, Failure, expect

POOL = 24
"""Programs that the cases of one seed damage."""
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 255, 1 << 31, 1 << 40, 1 << 63, 1 << 80, 1.5, "", "x", "B", "i64", "f32",
    "arena", "engine",
    "req_to_token", "plan.json", "../plan.json", "/etc/passwd", "a\x00b", "\ud800", [], [1], [[1]], ["B"], [None],
    {}, {"a": 1}, "9" * 5000,
)  # fmt: skip
KINDS = ("bytes", "plan", "plan", "plan", "argument", "manifest", "text")


def files_of(compiled: bound.Compiled) -> dict[str, bytes]:
    """A package folder as a wheel has it, without machine code."""
    files: dict[str, bytes] = {"module.specir": b"module\n", "kernels/prepare.py": b"# a kernel\n"}
    plans = {}
    for number, plan in enumerate(compiled.texts):
        file = PLAN if not number else f"plan_{number}.json"
        files[file] = plan.encode()
        plans[str(compiled.plans[number].shape)] = file
    manifest = {
        "name": "fuzzed", "version": "1.0+p0", "digest": "0" * 64, "specc": "1.0", "triton": None,
        "plan_format": FORMAT, "torch": "2.11",
        "archs": [], "artifacts": [], "plans": plans, "assemblers": {},
    }  # fmt: skip
    return signed(files, manifest)


def signed(files: dict[str, bytes], manifest: dict[str, Any]) -> dict[str, bytes]:
    """The files with a manifest that has their digests."""
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items() if path != MANIFEST}
    return {**files, MANIFEST: json.dumps({**manifest, "files": digests}).encode()}


def case(seed: str, rng: random.Random) -> str:
    """One damaged program."""
    compiled = bound.program(f"artefacts/{seed}/{rng.randrange(POOL)}")
    if isinstance(compiled, str):
        return compiled
    files = files_of(compiled)
    kind, untouched = rng.choice(KINDS), dict(files)
    plan = rng.choice([path for path in files if path.startswith("plan")])
    manifest = json.loads(files[MANIFEST])
    if kind == "bytes":
        path = rng.choice(list(files))
        files[path] = damaged(rng, files[path])
    elif kind == "plan":
        data = json.loads(files[plan])
        for _ in range(rng.choice([1, 1, 2, 4])):
            data = changed(rng, data)
        files = signed({**files, plan: json.dumps(data).encode()}, manifest)
    elif kind == "argument":
        data = json.loads(files[plan])
        for _ in range(rng.choice([1, 1, 2, 4])):
            rebind(rng, data)
        files = signed({**files, plan: json.dumps(data).encode()}, manifest)
    elif kind == "text":
        files = signed({**files, plan: damaged(rng, files[plan])}, manifest)
    else:
        for _ in range(rng.choice([1, 1, 2])):
            manifest = changed(rng, manifest)
        files[MANIFEST] = json.dumps(manifest).encode()
    with tempfile.TemporaryDirectory() as folder:
        for path, content in files.items():
            place = Path(folder) / path
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
        caught = kind != "bytes" or files == untouched or files[MANIFEST] != untouched[MANIFEST]
        return f"{kind}: {attempt(Path(folder), compiled, rng, caught=caught)}"


def attempt(folder: Path, compiled: bound.Compiled, rng: random.Random, *, caught: bool) -> str:
    """Load, bind, prefill and decode; ``caught`` is False when a digest must have said that a file is damaged."""
    try:
        program = load(folder, "cpu")
        expect(caught, "a file is not what its digest says, and it loads")
        session = sessions.session_of(compiled, rng)
        made, (table, more) = session.engine, session.place
        step = program.bind(made, table, made.kv, tables=session.tables, **more)
        made.prompts = {1: [0, 0]}
        prompt = [0, 0] if PROMPT in compiled.plan.reads("prefill") else None
        if compiled.plan.samples:
            step.set_sampling([1], [Sampling(rng.choice([0.0, 1.0]))])
        first = step.prefill(Batch([1], [min(2, session.room)], prompt)) if session.room > 1 else None
        if first is not None and isinstance(step, RotatedStep):
            given, batch = step.zeros(), Batch([1], [2])
            step.commit(batch, given["logits"], at_least=rng.choice([0, 1])).to_host()
            step.propose(batch, given.get("hidden")).to_host()
        elif first is not None:
            step.decode(Batch([1], [2]), at_least=rng.choice([0, 1])).to_host()
    except DamagedWheelError as error:
        expect(str(error).strip(), "an error that says nothing")
        return "DamagedWheelError"
    except SpeccError as error:
        expect(str(error).strip(), "an error that says nothing")
        return type(error).__name__
    except Failure:
        raise
    except Exception as error:
        if any(place.filename == engine.__file__ for place in traceback.extract_tb(error.__traceback__)):
            return "the engine's own error"  # its forwards got operands of a plan that is not theirs
        raise
    return RIGHT


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Bytes flipped, cut off, doubled or put in."""
    at = rng.randrange(len(content)) if content else 0
    match rng.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + content[at + rng.choice([1, 2, 64]) :]
        case 2:
            return content[:at] + rng.randbytes(rng.choice([1, 8])) + content[at:]
        case 3:
            return content[:at] + content[: rng.randint(0, 100)] + content[at:]
        case 4:
            return rng.choice([b"", b"\x00" * 100, b"[" * 100000, b"null", b"[]", b"3", b'"x"', b"{}", b'{"a": 1e999}'])
        case _:
            return (
                content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :] if content else b"x"
            )


def rebind(rng: random.Random, plan: Any) -> None:
    """Give an argument of a launch another kind, target, literal or axis, or all that another one is bound to."""
    nodes = [node for phase in plan["phases"] for node in phase["nodes"]]
    args = [argument for node in nodes for argument in node.get("args", ())]
    rebound, donor = rng.choice(args), rng.choice(args)
    match rng.randrange(5):
        case 0:
            rebound["kind"] = rng.choice(BINDINGS)
        case 1:
            rebound["target"] = rng.choice([*plan["values"], *plan["kv_pools"], donor.get("target", "x")])
        case 2:
            rebound["literal"] = rng.choice([0, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), donor.get("literal")])
        case 3:
            rebound["axis"] = rng.choice([0, 1, 9, 1 << 40, -1])
        case _:
            rebound |= {key: inner for key, inner in donor.items() if key != "name"}


def changed(rng: random.Random, data: Any) -> Any:
    """JSON with one value somewhere in it removed, retyped, doubled or changed a little."""
    data = copy.deepcopy(data)
    if not isinstance(data, dict | list) or not data or rng.random() < 0.01:
        return rng.choice(ODD)
    at = data
    while True:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            break
        at = inner
    match rng.randrange(6):
        case 0:
            del at[key]
        case 1:
            at[key] = [inner]
        case 2:
            second_key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
            at[key], at[second_key] = at[second_key], at[key]
        case 3 if isinstance(inner, int):
            at[key] = rng.choice([inner + 1, inner - 1, -inner, inner * 2, float(inner), str(inner), inner + (1 << 33)])
        case 4 if isinstance(at, dict):
            at[rng.choice(["x", "", "B", str(key)])] = inner
        case _:
            at[key] = rng.choice(ODD)
    return data
