#!/bin/bash
# Compares in a folder that bundle.sh made, on the GPU machine:
#
#   OUT=DIR WORK=DIR SIZE=small run.sh [compare.py's options] [RUN ...]
#
# WORK (/tmp/specc-vllm) gets vLLM, models, results and traces, and what is there is used again. OUT (./out) gets a few files:
# tables, figures, logs. CHECK (60) is how many seconds the imports may take.
here=$(cd "$(dirname "$0")" && pwd) out=${OUT:-$here/out} work=${WORK:-/tmp/specc-vllm} start=$SECONDS
size=${SIZE:-small} site=$work/site models=$work/models.$size results=$work/results
export TRITON_CACHE_DIR=$work/triton VLLM_CACHE_ROOT=$work/cache
mkdir -p "$out" "$results" || exit 1
. "$here/site.sh"
rm -rf "$work/programs"
tar -xJf "$here/programs.tar.xz" -C "$work" || exit 1
echo "unpacked after $((SECONDS - start)) s"
[ -e "$models/common.json" ] || "$python" "$here/models.py" "$models" --size "$size" > "$results/models.log" 2>&1 &
timeout "${CHECK:-60}" "$python" "$here/check.py" 2>&1 | tee "$out/check.log" | grep -v '^$' | tail -40
code=${PIPESTATUS[0]}
wait
echo "checked after $((SECONDS - start)) s: status $code"
[ "$code" -eq 0 ] || exit 1
[ -e "$models/common.json" ] || { tail -20 "$results/models.log"; exit 1; }
"$python" "$here/compare.py" --size "$size" --models "$models" --programs "$work/programs" --out "$results" "$@"
code=$?
cp "$results"/comparison.* "$out"
tar -C "$results" -cJf "$out/runs.tar.xz" runs
(cd "$results/traces" && tar -cf "$out/traces.tar" $(ls -- *_b8.json.gz 2> /dev/null) 2> /dev/null)
[ "$(stat -c %s "$out/traces.tar" 2> /dev/null || echo 0)" -lt 15000000 ] || rm "$out/traces.tar"
echo "total: $((SECONDS - start)) s"
exit $code
