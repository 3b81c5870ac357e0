#!/bin/bash
# Runs these tests on a machine with an sm_90 GPU and without a package index, in a copy of the repository:
#
#   tests/vllm/on_gpu.sh BUNDLE [pytest's options]
#
# BUNDLE is a folder that bench/vllm/bundle.sh made; it needs no wheels, since the tests build their programs. vLLM is unpacked
# into .vllm, and what is there is used again. OUT (./out) gets what pytest said and each engine's job, answer and log.
# LIMIT (540) is how many seconds pytest may take, SPECC_TEST_VLLM_S (240) how many an engine.
[ -d "$1" ] || { echo "usage: $0 BUNDLE [pytest's options]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd -P) here=$(cd "$1" && pwd) start=$SECONDS
out=${OUT:-$root/out} site=$root/.vllm/site ready=$root/.vllm/versions.json
shift
cd "$root" && mkdir -p "$out" .vllm/bin || exit 1
if [ ! -e "$ready" ] || [ -e "$site" ]; then . "$here/site.sh"; fi
if [ ! -e "$ready" ]; then
  echo "unpacked after $((SECONDS - start)) s"
  echo '*' > .vllm/.gitignore
  printf '#!/bin/sh\nPYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}%s exec %s "$@"\n' "$site" "$python" > .vllm/bin/python
  chmod +x .vllm/bin/python
  timeout 120 "$python" "$here/check.py" 2>&1 | tee "$out/check.log" | grep -v '^$' | tail -40
  [ "${PIPESTATUS[0]}" -eq 0 ] || { echo "vLLM does not run here" >&2; exit 1; }
  echo '{"device": "cuda"}' > "$ready"
  echo "checked after $((SECONDS - start)) s"
fi
[ -e .vllm/about ] || python3 tests/installed.py .vllm/about || exit 1 # where specc finds engines and commands
export PYTHONPATH=$root:$root/tests:$root/.vllm/about${PYTHONPATH:+:$PYTHONPATH} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export SPECC_CACHE_DIR=${SPECC_CACHE_DIR:-$root/.specc-cache}
timeout -k 10 "${LIMIT:-540}" python3 -m pytest tests/vllm -m vllm --confcutdir=tests/vllm --basetemp=.vllm-jobs \
  -p no:cacheprovider "$@" 2>&1 | tee "$out/pytest.log"
code=${PIPESTATUS[0]}
[ "$code" -lt 124 ] || pkill -KILL -f "$root/tests/vllm/serve.py" # engines that the limit has left
[ "$code" -eq 0 ] || for log in .vllm-jobs/jobs*/*/log.txt; do # the ends of engines that left nothing
  [ -e "${log%log.txt}out.json" ] || { echo "== $log"; tail -n 12 "$log" | cut -c1-200; }
done | head -60
find .vllm-jobs -name out.json -o -name job.json -o -name log.txt | tar -cJf "$out/jobs.tar.xz" -T -
echo "total: $((SECONDS - start)) s"
exit "$code"
