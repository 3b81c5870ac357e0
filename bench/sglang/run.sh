#!/bin/bash
# Compares in a folder that bundle.sh made, on the GPU machine:
#
#   OUT=DIR WORK=DIR run.sh [compare.py's options] [VARIANT ...]
#
# WORK (/tmp/specc-sglang) gets SGLang and the models, once, and keeps what is compiled on the way; OUT (./out) the results.
here=$(cd "$(dirname "$0")" && pwd) out=${OUT:-$here/out} work=${WORK:-/tmp/specc-sglang} start=$SECONDS
site=$work/site models=$work/models
mkdir -p "$out" "$site" || exit 1
python=$(command -v python3)
export PATH=$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH # ninja lies there
[ -n "$CUDA_HOME" ] || export CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
export PATH=$PATH:$CUDA_HOME/bin PYTHONUNBUFFERED=1
if [ ! -e "$site/.complete" ]; then
  tar -xJf "$here/tree.tar.xz" -C "$site" \
    && "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$here"/whl/*.whl \
    && "$python" -m compileall -q -j 0 "$site" > "$out/setup.log" 2>&1
  [ -d "$site/sglang" ] && [ -d "$site/cuda" ] || { echo "SGLang could not be set up in $site" >&2; exit 1; }
  touch "$site/.complete"
fi
export PYTHONPATH=$site SGLANG_RUST_BUILD_MODE=never SGLANG_DISABLE_OUTLINES_DISK_CACHE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
"$python" "$here/models.py" "$models" "$here/models" > "$out/models.log" 2>&1 || { tail -20 "$out/models.log"; exit 1; }
echo "set up after $((SECONDS - start)) s"
"$python" "$here/compare.py" --models "$models" --programs "$here/programs" --out "$out" "$@"
code=$?
# Few and small files: everything but the traces, which stay in WORK's reach until the machine goes.
(cd "$out" && tar -cJf runs.tar.xz runs && ls -l)
echo "total: $((SECONDS - start)) s"
exit $code
