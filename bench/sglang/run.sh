#!/bin/bash
# Compares in a folder that bundle.sh made, on the GPU machine:
#
#   OUT=DIR WORK=DIR MODELS=DIR run.sh [compare.py's options] [VARIANT ...]
#   OUT=DIR WORK=DIR MODELS=DIR run.sh shapes [shapes.py's options] [PART ...]
#   OUT=DIR WORK=DIR MODELS=DIR run.sh budgets [budgets.py's options] [FAMILY ...]
#   WORK=DIR run.sh keep
#
# WORK (/tmp/specc-sglang) gets SGLang, models, results and traces, and what is there is used again. OUT (./out) gets a few
# files: tables, figures, logs. MODELS is examples/models, where the bundle was made without. CHECK (90) is how many seconds
# imports and first kernels may take. `keep` puts those parts of the bundle into WORK that are here, and does nothing else.
here=$(cd "$(dirname "$0")" && pwd) out=${OUT:-$here/out} work=${WORK:-/tmp/specc-sglang} start=$SECONDS
keep=; [ "$1" != keep ] || keep=yes
script=compare; case $1 in shapes | budgets) script=$1; shift ;; esac
. "$here/site.sh"
models=$work/models results=$work/results
mkdir -p "$out" "$results" || exit 1
rm -rf "$work/programs"
tar -xJf "$here/programs.tar.xz" -C "$work" || exit 1
echo "unpacked after $((SECONDS - start)) s"
"$python" "$here/models.py" "$models" "${MODELS:-$work/examples}" > "$results/models.log" 2>&1 &
making=$!
if [ ! -e "$work/checked" ]; then
  timeout "${CHECK:-90}" "$python" "$here/check.py" 2>&1 | tee "$out/check.log" | grep -v '^$' | tail -40
  [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "SGLang does not run here" >&2; exit 1; }
  touch "$work/checked"
fi
wait "$making" || { tail -20 "$results/models.log"; exit 1; }
echo "set up after $((SECONDS - start)) s"
"$python" "$here/$script.py" --models "$models" --programs "$work/programs" --out "$results" "$@"
code=$?
cp "$results"/*.json "$results"/*.md "$out"
tar -C "$results" -cJf "$out/runs.tar.xz" runs
echo "total: $((SECONDS - start)) s"
exit $code
