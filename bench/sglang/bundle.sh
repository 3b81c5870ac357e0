#!/bin/bash
# Makes the folder that a GPU machine without a package index needs to run bench/sglang and tests/sglang/on_gpu.sh:
#
#   bench/sglang/bundle.sh OUT [WHEEL.whl ...]
#
# Needs any Python with pip and a package index, binutils, and about 3 GB in TMPDIR. Of an OUT that is a bundle, scripts and
# programs alone are made anew. The wheels are programs of configs/, which the tests do without. FA3 says which kernels of
# FlashAttention 3 are in it, see fa3.py ("64 128 256 mla"; none if empty). With FLASHINFER=no it lacks flashinfer, with MODELS=no
# the example models, which run.sh is then told. DSV4=yes adds what DeepSeek-V4's kind calls, 55 MiB. The machine itself brings Linux x86-64, Python 3.12, torch 2.11 for CUDA 13,
# triton, transformers, nvcc, ninja and an sm_90 GPU.
#
# OUT holds scripts, programs, and the rest as part.00, part.01, ... of at most PART (28) MiB each. Where they do not travel at
# once, each travels with run.sh and site.sh: `run.sh keep` puts it into WORK, where the last call finds it.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 OUT [WHEEL.whl ...]" >&2; exit 2; }
out=$1; shift
[ ! -e "$out" ] || [ -e "$out/parts.sha256" ] || { echo "$out exists and is no bundle" >&2; exit 2; }
for wheel in "$@"; do [ -f "$wheel" ] || { echo "$wheel: no such wheel" >&2; exit 2; }; done
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/../.." && pwd) start=$SECONDS python=${PYTHON:-python3}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
tree=$work/tree packs=$work/packs; mkdir -p "$tree" "$packs" "$work/whl" "$out"
. "$here/../wheels.sh"
finish() { # scripts, what they read, and programs
  cp "$here"/*.py "$here/../texts.py" "$here"/*.sh "$here"/*.json "$out"
  cp -r "$here/plugins" "$out"
  rm "$out"/{bundle.sh,fa3.py}
  pack_programs "$out" "$@"
  for file in "$out"/part.* "$out/programs.tar.xz"; do du -m "$file"; done
  weigh "$out" $((SECONDS - start)) || echo "it travels in several calls"
}
if [ -e "$out/parts.sha256" ]; then finish "$@"; exit; fi
pack() { # pack NAME FOLDER: an archive of what belongs into a folder of Python's path; holes of libraries stay holes
  find "$2" -name __pycache__ -prune -exec rm -rf {} +
  tar -S --hole-detection=raw --sort=name -C "$2" -cf - . | xz -6 -T2 > "$packs/$1.tar.xz"
  echo "$1: $(du -m "$packs/$1.tar.xz" | cut -f1) MiB"
}

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

# sglang-kernel: Python files and metadata of 0.4.10, whose version SGLang checks, and the sm_90 libraries of 0.4.6, the last
# that torch 2.11 loads. What was added in between fails when it is called.
get "$work" sglang-kernel==0.4.10
unpack "$work"/sglang_kernel-0.4.10-*.whl "$tree" 'sgl_kernel/*.py' 'sglang_kernel-0.4.10.dist-info/*'
rm "$work"/sglang_kernel-0.4.10-*.whl
get "$work" sglang-kernel==0.4.6
unpack "$work"/sglang_kernel-0.4.6-*.whl "$tree" sgl_kernel/sm90/common_ops.abi3.so
kinds=${FA3-64 128 256 mla}
echo "$kinds" > "$out/fa3.txt"
if [ -n "$kinds" ]; then
  unpack "$work"/sglang_kernel-0.4.6-*.whl "$work/fa3" sgl_kernel/flash_ops.abi3.so
  "$python" -m pip --disable-pip-version-check install -q --root-user-action=ignore --target "$work/zstandard" zstandard
  PYTHONPATH=$work/zstandard "$python" "$here/fa3.py" "$work/fa3/sgl_kernel/flash_ops.abi3.so" $kinds
  pack fa3 "$work/fa3"
  rm -r "$work/fa3"
fi
rm "$work"/sglang_kernel-0.4.6-*.whl
cp -r "$here"/stubs/. "$root"/tests/sglang/stand_ins/IPython "$tree"

# DeepSeek-V4's kind: FlashMLA, whose stub goes, and what scores indices and mixes residual streams. This DeepGEMM is the last
# that torch 2.11 loads; SGLang wants 0.2.3. Both it and TileLang compile kernels at first use, each with CUTLASS of its own.
if [ "${DSV4:-}" = yes ]; then
  rm -r "$tree/flash_mla"
  get "$work/dsv4" sgl-flash-mla==1.0.0 sgl-deep-gemm==0.1.5.post1 tilelang==0.1.12 z3-solver==4.15.4.0 \
    torch-c-dlpack-ext==0.1.5 cloudpickle==3.1.3 ml-dtypes==0.6.0
  for wheel in "$work"/dsv4/*.whl; do unpack "$wheel" "$tree" '*'; done
  rm -r "$tree"/z3_solver-*.data "$tree/z3/include" "$tree/tilelang/3rdparty/composable_kernel"
fi

# flashinfer: its Python files, and the sources of what models of this kind call, which are compiled at first use. Most folders
# below csrc, and files that name a later GPU, belong to other kernels; routing of experts needs a part of two of them.
if [ "${FLASHINFER:-}" != no ]; then
  get "$work" flashinfer-python==0.7.2
  unpack "$work"/flashinfer_python-0.7.2-*.whl "$work/flashinfer" '*'
  rm "$work"/flashinfer_python-0.7.2-*.whl
  library=$work/flashinfer/flashinfer
  kept='-name fused_moe -o -name nv_internal'
  find "$library/data/csrc" -mindepth 1 -maxdepth 1 \( -type d ! \( $kept \) -o -name 'cake_*' -o -name 'alphamoe_*' \
    -o -name '*sm1[02]*' \) -exec rm -rf {} +
  find "$library/data/csrc/fused_moe" -mindepth 1 -maxdepth 1 -type d ! -name cake_deepseek_fused_routing -exec rm -rf {} +
  rm -rf "$library"/data/cutlass/{python,examples,test,docs,media} "$library"/experimental/*/csrc \
    "$library"/fused_moe/backends/*/artifacts "$library"/moe_ep/*/*
  pack flashinfer "$work/flashinfer"
fi

# Libraries beside it, in the same archive: packed together they take half of what their wheels do.
get "$work/whl" -r "$here/requirements.txt"
for wheel in "$work"/whl/*.whl; do unpack "$wheel" "$tree" '*'; done
pack tree "$tree"

if [ "${MODELS:-}" != no ]; then
  mkdir "$work/models"
  for model in target standalone eagle; do cp -r "$root/examples/models/$model" "$work/models"; done
  pack models "$work/models"
fi
tar -C "$packs" -cf - . | split -d -b "${PART:-28}M" - "$out/part."
(cd "$out" && sha256sum part.* > parts.sha256)
finish "$@"
