"""The registry of diagnostic codes: stable names that tests, scripts and documents may rely on.

A code is ``area/slug``. Once released, a code keeps its meaning; a new meaning gets a new code. Every code
has a row in ``docs/diagnostics.md`` and at least one test that provokes it.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    "config/not-yaml": "The file is not one well-formed YAML document.",
    "config/unreadable": "The file is missing, is not a regular file, may not be read, or is too large.",
    "config/encoding": "The file is not UTF-8 text.",
    "config/not-a-mapping": "Keys with values were expected, and something else stands there.",
    "config/duplicate-key": "The same key is written twice in one block.",
    "config/unknown-key": "No such key exists at this place.",
    "config/missing-key": "A key that must be written is not there.",
    "config/wrong-type": "The value has another type than the key takes.",
    "config/out-of-range": "The value has the right type, but is not one of those allowed.",
    "config/bad-name": "The name cannot be the name of a Python package.",
    "config/unknown-algorithm": "No algorithm of that name is installed.",
    "config/unknown-arch": "No GPU architecture of that name is known.",
    "config/unknown-output": "No optional output of that name exists.",
    "config/buckets": "The bucket list is not a strictly ascending list of batch sizes within max_requests.",
    "config/model-unreadable": "`model:` does not lead to a readable Hugging Face configuration.",
    "config/unknown-architecture": "transformers has no class for a model; its config.json was read as it stands.",
    "config/model-contradiction": "A value written beside `model:` differs from the model's own.",
    "config/hc-mult-default": "What a model with hyper-connections hands over was assumed, not known.",
    "config/not-yet": "The value is legal, and this version does not implement it.",
    "legal/chain-width": "A chain (topk 1) verifies exactly num_steps + 1 tokens.",
    "legal/tree-size": "A tree cannot have that many nodes with this topk and num_steps.",
    "legal/mask": "The tree mask's mode does not fit the tree.",
    "legal/chain-only": "The algorithm drafts one token after the other, and topk is above 1.",
    "legal/no-draft": "The algorithm has no draft model, and one is described.",
    "legal/modules": "The draft has one module per step, and fewer of them than num_steps.",
    "legal/depths": "Requests cannot change from one num_steps to another with this algorithm.",
    "legal/kv-mismatch": "The draft reads the target's keys and values, and expects others.",
    "legal/vocab-mismatch": "Target and draft must share one vocabulary, and their sizes differ.",
    "type/width-mismatch": "A producer and a consumer of one value disagree about its width.",
    "type/dtype-mismatch": "A producer and a consumer of one value disagree about its element type.",
    "type/axis-mismatch": "A producer and a consumer of one value disagree about its axes.",
    "ir/parse": "The text is not well-formed `.specir`.",
    "ir/invalid": "The module breaks a rule of the IR.",
    "kernel/no-cover": "No kernel family covers an operation.",
    "kernel/resources": "A compiled kernel needs more registers, shared memory or stack than allowed.",
    "aot/compile-failed": "The kernel compiler rejected a generated kernel.",
    "aot/no-compiler": "No compiler for a requested architecture is installed.",
    "aot/inspection-only": "Machine code is compiled for an architecture that the runtime cannot load.",
    "emit/io": "An output file or directory could not be written.",
    "run/wheel-missing": "The compiled program for a configuration is not installed or not found.",
    "run/wheel-unusable": "The compiled program cannot run here: another device, another torch, or damaged files.",
    "run/model-mismatch": "A model is not the one that the program was built for.",
    "run/model-unreadable": "A model's weights or tokenizer could not be loaded.",
    "internal/crash": "specc itself failed; the input may be fine.",
}
"""Code -> its meaning in one line."""
