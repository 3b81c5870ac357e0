"""Lines that people type, with which `--help` of every command ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": (
        "specc init models/target models/draft",
        "specc init models/target models/draft --topk 4 -o tree.yaml",
        "specc init meta-llama/Llama-3.1-8B-Instruct models/draft --num-steps 5",
        "specc init models/target models/draft -o - | specc check -",
    ),
    "check": ("specc check chain.yaml", "specc check dist/program.whl"),
    "explain": (
        "specc explain chain.yaml",
        "specc explain chain.yaml --pass select-verify",
        "specc explain specc_program_chain --full",
    ),
    "report": ("specc report chain.yaml -o chain.html", "specc report tree.yaml --against chain.yaml"),
    "build": (
        "specc build chain.yaml",
        "specc build chain.yaml --arch sm_80,sm_90 -o wheels",
        "specc build chain.yaml --emit plan --emit kernels -o out",
    ),
    "list": ("specc list", "specc list --models"),
    "inspect": ("specc inspect dist/program.whl", "specc inspect specc_program_chain --format json"),
    "run": (
        "specc run dist/program.whl --target models/target --draft models/draft --prompt 'def main():'",
        "specc run specc_program_chain --target models/target --draft models/draft --prompts prompts.json --check",
        "specc run specc_program_chain --target models/target --draft models/draft --prompt Hi --temperature 0.8",
    ),
    "bench": ("specc bench chain.yaml --buckets 1,8", "specc bench dist/program.whl --plot bench.svg"),
    "bench-serve": (
        "specc bench-serve -- sglang serve --model-path models/target ...",
        "specc bench-serve --batch 1,32 -- vllm serve models/target --speculative-config '{...}'",
        "specc bench-serve --url http://127.0.0.1:30000",
        "specc bench-serve --url http://127.0.0.1:8000 --against http://127.0.0.1:8001 --prompts prompts.json",
    ),
    "tune": ("specc tune chain.yaml --seconds 300", "specc tune --shapes shapes.yaml -o shapes.times.json"),
    "hot-tokens": ("specc hot-tokens corpus/*.txt --tokenizer models/target --size 32768 -o hot.json",),
    "schema": ("specc schema > specc.schema.json",),
    "doctor": ("specc doctor", "specc doctor --format json"),
}
"""Lines by command; names of files stand for the user's own. Lines of an engine's commands stand beside these."""


def epilog(lines: Iterable[str]) -> str:
    """The end of a command's help, whose lines stay as they are: that is what the backspace says."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))
