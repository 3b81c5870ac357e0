#!/bin/bash
# Makes the folder that a GPU machine without a package index needs to run bench/vllm, or tests/vllm/on_gpu.sh:
#
#   bench/vllm/bundle.sh OUT [WHEEL.whl ...]
#
# Needs any Python with pip and a package index, and about 1 GB in TMPDIR. OUT must be new. The wheels are programs of
# programs.py, which the tests do without. The machine itself brings Linux x86-64, Python 3.12, torch 2.11 for CUDA 13,
# triton 3.6, transformers and an sm_90 GPU.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 OUT [WHEEL.whl ...]" >&2; exit 2; }
out=$1; shift
[ ! -e "$out" ] || { echo "$out exists" >&2; exit 2; }
for wheel in "$@"; do [ -f "$wheel" ] || { echo "$wheel: no such wheel" >&2; exit 2; }; done
here=$(cd "$(dirname "$0")" && pwd) start=$SECONDS
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
tree=$work/tree; mkdir -p "$tree" "$work/whl" "$out"
. "$here/../wheels.sh"

# vLLM without what a text model never imports, and of its libraries the one that everything else needs, that of
# experts, and FlashAttention 3. They use the stable interface of libtorch, so those built beside torch 2.14 load with
# 2.11.
libraries=(vllm/_C_stable_libtorch vllm/_moe_C_stable_libtorch vllm/vllm_flash_attn/_vllm_fa3_C)
get "$work" vllm==0.33.0
unpack "$work"/vllm-0.33.0-*.whl "$tree" '*.py' '*.json' '*.jinja' '*.typed' 'vllm-0.33.0.dist-info/*' \
  "${libraries[@]/%/.abi3.so}"
rm "$work"/vllm-0.33.0-*.whl
rm -rf "$tree"/vllm/third_party/{deep_gemm,fmha_sm100,tml_fa4}
find "$tree" -name '*device_name=*' -delete
for library in "${libraries[@]}"; do
  strip --strip-unneeded "$tree/$library.abi3.so"
  "${PYTHON:-python3}" "$here/../fatbin.py" "$tree/$library.abi3.so" 90
done
cp -r "$here"/stubs/. "$tree"

# Libraries beside it, in the same archive: packed together they take half of what their wheels do.
get "$work/whl" -r "$here/requirements.txt"
for wheel in "$work"/whl/*.whl; do unpack "$wheel" "$tree" '*'; done
find "$tree" -name __pycache__ -prune -exec rm -rf {} +
XZ_OPT=-9 tar -C "$tree" --sort=name -cJf "$out/tree.tar.xz" .

cp "$here"/{models,engine,host,compare,check}.py "$here/../texts.py" "$here"/{run,site}.sh "$out"
pack_programs "$out" "$@"
weigh "$out" $((SECONDS - start))
