# Unpacks SGLang from a bundle into a folder, unless it is there, and says to Python where it is: source it, with the bundle's
# folder in `here` and the other in `work`. Parts of a bundle that travels in several calls are kept in `work` until all are
# there; with `keep` set, that is all that happens, and the script ends. Ends the script when something fails.
mkdir -p "$work/parts" || exit 1
for part in "$here"/part.*; do [ ! -e "$part" ] || cp "$part" "$work/parts" || exit 1; done
if [ -n "$keep" ]; then ls -s --block-size=M "$work/parts"; exit 0; fi
python=$(command -v python3) site=$work/site
export PATH=$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH # ninja lies there
[ -n "$CUDA_HOME" ] || export CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
export PATH=$PATH:$CUDA_HOME/bin PYTHONUNBUFFERED=1
if [ ! -e "$site/.complete" ]; then
  (cd "$work/parts" && sha256sum --quiet -c "$here/parts.sha256") || { echo "parts of the bundle lack or are damaged" >&2; exit 1; }
  mkdir -p "$site" "$work/packs" "$work/examples" && cat "$work"/parts/part.* | tar -C "$work/packs" -xf - || exit 1
  pids=()
  for pack in "$work"/packs/*.tar.xz; do
    to=$site; [ "${pack##*/}" != models.tar.xz ] || to=$work/examples
    tar -C "$to" -xJf "$pack" & pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || { echo "a pack of the bundle is damaged" >&2; exit 1; }; done
  "$python" -m compileall -q -j 0 "$site" > /dev/null 2>&1 # some files are templates
  touch "$site/.complete" && rm -rf "$work/parts" "$work/packs"
fi
export PYTHONPATH=$site SGLANG_RUST_BUILD_MODE=never SGLANG_DISABLE_OUTLINES_DISK_CACHE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export FLASHINFER_WORKSPACE_BASE=$work
export SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python # the other one is a library that torch 2.11 crashes in
