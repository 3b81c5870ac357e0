"""What `--help` of every command ends with: lines that people type."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": (
        "specc init models/target models/draft",
        "specc init models/target models/draft --topk 4 -o tree.yaml",
        "specc init meta-llama/Llama-3.1-8B-Instruct models/eagle --engine sglang --gpu h100",
        "specc init models/target models/draft -o - | specc check -",
    ),
    "check": ("specc check eagle.yaml", "specc check eagle.yaml --engine vllm", "specc check dist/program.whl"),
    "explain": (
        "specc explain eagle.yaml",
        "specc explain eagle.yaml --pass select-verify",
        "specc explain specc_program_eagle --full",
    ),
    "report": ("specc report eagle.yaml -o eagle.html", "specc report tree.yaml --against eagle.yaml"),
    "build": (
        "specc build eagle.yaml",
        "specc build eagle.yaml --arch sm_80,sm_90 -o wheels",
        "specc build eagle.yaml --emit plan --emit kernels -o out",
    ),
    "list": ("specc list", "specc list --models"),
    "inspect": ("specc inspect dist/program.whl", "specc inspect specc_program_eagle --format json"),
    "run": (
        "specc run dist/program.whl --target models/target --draft models/draft --prompt 'def main():'",
        "specc run specc_program_eagle --target models/target --draft models/draft --prompts prompts.json --check",
        "specc run specc_program_eagle --target models/target --draft models/draft --prompt Hi --temperature 0.8",
    ),
    "bench": ("specc bench eagle.yaml --buckets 1,8", "specc bench dist/program.whl --plot bench.svg"),
    "tune": ("specc tune eagle.yaml --seconds 300",),
    "hot-tokens": ("specc hot-tokens corpus/*.txt --tokenizer models/target --size 32768 -o hot.json",),
    "schema": ("specc schema > specc.schema.json",),
    "doctor": ("specc doctor", "specc doctor --format json"),
    "sglang check": (
        "specc sglang check -- python -m sglang.launch_server --model-path models/target "
        "--speculative-algorithm EAGLE --speculative-draft-model-path models/eagle",
        "specc sglang check --gpu b200 -o server.yaml -- 'sglang serve --model-path ...'",
    ),
    "vllm check": (
        """specc vllm check -- vllm serve models/target --speculative-config '{"method": "eagle", """
        """"model": "models/eagle", "num_speculative_tokens": 3}'""",
    ),
}
"""By command the lines, in which names of files stand for the user's own."""


def epilog(command: str) -> str:
    """The end of a command's help, whose lines stay as they are: that is what the backspace says."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in EXAMPLES[command])))
