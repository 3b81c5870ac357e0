"""Two servers of SGLang for the same requests: one prefills them, the other decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ports import HOST, free_port
from sglang_files import ON_GPU
from sglang_server import Served, serve

WHEN = ("after", "delay", "abort_after", "stream")
"""What says when a request comes and goes, which the server that prefills is told by the other one."""

APART = {
    "disaggregation_transfer_backend": "nixl" if ON_GPU else "mooncake",
    "num_reserved_decode_tokens": 16,
    "disaggregation_decode_retraction_backup": "cpu_tensor",
}
"""NIXL between processes of a GPU, a stand-in for Mooncake between those of a CPU. The server that decodes keeps fewer
slots free for each request than the small pools of tests have; those that are thrown out are kept without streams of a
GPU."""
ONE_MACHINE = {"SGLANG_HOST_IP": HOST} | dict.fromkeys(
    ("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"), "3000"
)
"""Requests wait at the server that prefills as long as a job takes."""


def serve_apart(
    engine: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    overlap: bool = False,
    wheels: Mapping[str, Path] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Mapping[str, Served]:
    """Run both servers of an engine for a list of requests, as `serve` does one: what came of `prefill` and `decode`.

    Both have a wheel of `wheels`, by the same words. All requests wait at the server that prefills for the other one to
    ask for them. `overlap` is that of the one that decodes.
    """
    port = free_port()
    with_rooms = [{**request, "room": [port, number]} for number, request in enumerate(requests, 1)]
    at_once = [{key: value for key, value in request.items() if key not in WHEN} for request in with_rooms]

    def run(role: str, given: Sequence[Mapping[str, Any]]) -> Served:
        arguments = {
            **engine,
            "disaggregation_mode": role,
            "disaggregation_bootstrap_port": port,
            **APART,
        }
        wheel = (wheels or {}).get(role)
        ahead = overlap and role == "decode"  # to send a cached prefix ahead SGLang waits for a GPU
        return serve(
            arguments, given, folder / role, overlap=ahead, wheel=wheel, settings={**ONE_MACHINE, **(settings or {})}
        )

    with ThreadPoolExecutor(2) as pool:
        sides = {"prefill": pool.submit(run, "prefill", at_once), "decode": pool.submit(run, "decode", with_rooms)}
        return {role: served.result() for role, served in sides.items()}
