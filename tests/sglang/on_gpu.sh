#!/bin/bash
# Runs these tests on a machine with an sm_90 GPU and without a package index, in a copy of the repository:
#
#   tests/sglang/on_gpu.sh BUNDLE [pytest's options]
#
# BUNDLE is a folder that bench/sglang/bundle.sh made; it needs no wheels, since the tests build their programs, and no models.
# SGLang is unpacked into WORK (/tmp/specc-sglang), and what is there is used again. Engines run with CUDA graphs, in DTYPE
# (bfloat16) under the attention backend that BACKEND (fa3) names: in float32 with triton, texts are compared token for token.
# OUT (./out) gets what pytest said and each engine's job, answer and log, which lie in JOBS (.sglang-jobs) before: several
# calls may run beside each other.
# LIMIT (540) is how many seconds pytest may take. TESTS are files of this folder, by default test_engine.py. Engines are dealt
# out to all GPUs of the machine, and those of several ranks run where there are as many.
[ -d "$1" ] || { echo "usage: $0 BUNDLE [pytest's options]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd) here=$(cd "$1" && pwd) start=$SECONDS work=${WORK:-/tmp/specc-sglang} keep=
out=${OUT:-$root/out} jobs=${JOBS:-.sglang-jobs} ready=$root/.sglang/versions.json
shift
cd "$root" && mkdir -p "$out" .sglang/bin || exit 1
. "$here/site.sh"
if [ ! -e "$ready" ]; then
  echo "unpacked after $((SECONDS - start)) s"
  echo '*' > .sglang/.gitignore
  mkdir -p .sglang/plugin && cp -r tests/sglang/stand_ins/specc_testing* .sglang/plugin # the plugin, and no stand-ins
  printf '#!/bin/sh\nPYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}%s exec %s "$@"\n' "$site:$root/.sglang/plugin" "$python" \
    > .sglang/bin/python
  chmod +x .sglang/bin/python
  timeout 120 "$python" "$here/check.py" 2>&1 | tee "$out/check.log" | grep -v '^$' | tail -40
  [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "SGLang does not run here" >&2; exit 1; }
  echo '{"device": "cuda"}' > "$ready"
  echo "checked after $((SECONDS - start)) s"
fi
[ -e .sglang/about ] || python3 tests/installed.py .sglang/about || exit 1 # where specc finds engines and commands
export PYTHONPATH=$root:$root/tests:$root/.sglang/about${PYTHONPATH:+:$PYTHONPATH} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export SPECC_CACHE_DIR=${SPECC_CACHE_DIR:-$root/.specc-cache} SPECC_TEST_BACKEND=${BACKEND:-fa3}
export SPECC_TEST_DTYPE=${DTYPE:-bfloat16}
files=() && for file in ${TESTS:-test_engine.py}; do files+=("tests/sglang/$file"); done
export SPECC_TEST_GPUS=$(nvidia-smi -L | wc -l)
timeout -k 10 "${LIMIT:-540}" python3 -m pytest "${files[@]}" -m sglang \
  --confcutdir=tests/sglang --basetemp=$jobs -p no:cacheprovider "$@" 2>&1 | tee "$out/pytest.log"
code=${PIPESTATUS[0]}
[ "$code" -eq 0 ] || for log in $jobs/*/*/log.txt; do # the ends of engines that left nothing
  [ -e "${log%log.txt}out.json" ] || { echo "== $log"; tail -n 12 "$log" | cut -c1-200; }
done | head -60
find $jobs -name out.json -o -name job.json -o -name log.txt | tar -cJf "$out/jobs.tar.xz" -T -
echo "total: $((SECONDS - start)) s"
exit "$code"
