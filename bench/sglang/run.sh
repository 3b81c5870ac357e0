#!/bin/bash
# Compares in a folder that bundle.sh made, on the GPU machine:
#
#   OUT=DIR WORK=DIR MODELS=DIR run.sh [compare.py's options] [VARIANT ...]
#
# WORK (/tmp/specc-sglang) gets SGLang, models, results and traces, and what is there is used again. OUT (./out) gets a few
# files: tables, figures, logs. MODELS is examples/models, where the bundle was made without.
here=$(cd "$(dirname "$0")" && pwd) out=${OUT:-$here/out} work=${WORK:-/tmp/specc-sglang} start=$SECONDS
site=$work/site models=$work/models results=$work/results
mkdir -p "$out" "$site" "$results" || exit 1
python=$(command -v python3)
export PATH=$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH # ninja lies there
[ -n "$CUDA_HOME" ] || export CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
export PATH=$PATH:$CUDA_HOME/bin PYTHONUNBUFFERED=1
if [ ! -e "$site/.complete" ]; then
  tar -xJf "$here/tree.tar.xz" -C "$site" || exit 1
  "$python" -m compileall -q -j 0 "$site" > /dev/null 2>&1 # some files are templates
  touch "$site/.complete"
fi
rm -rf "$work/programs"
tar -xJf "$here/programs.tar.xz" -C "$work" || exit 1
export PYTHONPATH=$site SGLANG_RUST_BUILD_MODE=never SGLANG_DISABLE_OUTLINES_DISK_CACHE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
"$python" "$here/models.py" "$models" "${MODELS:-$here/models}" > "$results/models.log" 2>&1 \
  || { tail -20 "$results/models.log"; exit 1; }
echo "set up after $((SECONDS - start)) s"
"$python" "$here/compare.py" --models "$models" --programs "$work/programs" --out "$results" "$@"
code=$?
cp "$results"/comparison.* "$out"
tar -C "$results" -cJf "$out/runs.tar.xz" runs
echo "total: $((SECONDS - start)) s"
exit $code
