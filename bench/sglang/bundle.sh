#!/bin/bash
# Makes the folder that a GPU machine without a package index needs to run bench/sglang (docs/benchmarks.md):
#
#   bench/sglang/bundle.sh OUT WHEEL.whl ...
#
# Needs any Python with pip and a package index, and about 0.5 GB in TMPDIR. OUT must be new. With MODELS=no it holds no example
# models, which run.sh is then told. The machine itself brings Linux x86-64, Python 3.12, torch 2.11 for CUDA 13, triton,
# transformers, nvcc, ninja and an sm_90 GPU.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 OUT WHEEL.whl ..." >&2; exit 2; }
out=$1; shift
[ ! -e "$out" ] || { echo "$out exists" >&2; exit 2; }
for wheel in "$@"; do [ -f "$wheel" ] || { echo "$wheel: no such wheel" >&2; exit 2; }; done
here=$(cd "$(dirname "$0")" && pwd) start=$SECONDS
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
tree=$work/tree; mkdir -p "$tree" "$work/whl" "$out/models"

. "$here/../wheels.sh"

# SGLang without what serving a text model never imports: image generation, tests, benchmarks, tuned configurations of
# kernels not used here, and Rust extensions.
get "$work" sglang==0.5.23
unpack "$work"/sglang-0.5.23-*.whl "$tree" '*'
rm -rf "$tree"/sglang/multimodal_gen "$tree"/sglang/test/* "$tree"/sglang/benchmark/*/ "$tree"/sglang/srt/rust_extensions/_*.so
touch "$tree/sglang/test/__init__.py" "$tree/sglang/benchmark/__init__.py"
find "$tree" -name '*device_name=*' -delete
# This module imports cutlass where CUDA is. Another version of SGLang, without this line, needs another look.
dual=$tree/sglang/srt/layers/dual_gemm.py
grep -q '^        if not is_cuda():' "$dual"
sed -i 's/^        if not is_cuda():/        if True:/' "$dual"

# sglang-kernel: Python files and metadata of 0.4.10, whose version SGLang checks, and the sm_90 library of 0.4.6, the last
# that torch 2.11 loads. What was added in between fails when it is called.
kernel() { # kernel VERSION PATTERN...
  get "$work" "sglang-kernel==$1"
  unpack "$work"/sglang_kernel-"$1"-*.whl "$tree" "${@:2}"
  rm "$work"/sglang_kernel-"$1"-*.whl
}
kernel 0.4.10 'sgl_kernel/*.py' 'sglang_kernel-0.4.10.dist-info/*'
kernel 0.4.6 sgl_kernel/sm90/common_ops.abi3.so
cp -r "$here"/stubs/. "$here"/../../tests/sglang/stand_ins/IPython "$tree"

# Libraries beside it, in the same archive: packed together they take half of what their wheels do.
get "$work/whl" -r "$here/requirements.txt"
for wheel in "$work"/whl/*.whl; do unpack "$wheel" "$tree" '*'; done
find "$tree" -name __pycache__ -prune -exec rm -rf {} +
XZ_OPT="-6 -T2" tar -C "$tree" -cJf "$out/tree.tar.xz" .

[ "${MODELS:-}" = no ] || for model in target standalone eagle; do cp -r "$here/../../examples/models/$model" "$out/models"; done
cp "$here"/*.py "$here/../texts.py" "$here/run.sh" "$out"
pack_programs "$out" "$@"
find "$out" -name __pycache__ -prune -exec rm -rf {} +
weigh "$out" $((SECONDS - start))
