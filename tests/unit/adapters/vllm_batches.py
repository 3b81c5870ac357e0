"""Some steps of a server of vLLM, on stand-ins."""

from __future__ import annotations

from fakes.vllm_server import Server

PROMPTS = {2: [4, 9, 2], 0: [7, 1]}
BATCHES = [[2, 0], [0], [2]]


def decode(server: Server) -> None:
    """Decode `BATCHES`; texts are the target's own whoever runs the steps."""
    server.begin(PROMPTS)
    for rows in BATCHES:
        server.decode(rows)
    server.judge()
