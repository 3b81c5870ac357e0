# Unpacks vLLM from a bundle into a folder, unless it is there, and says to Python where it is: source it, with the bundle's
# folder in `here` and the other in `site`. Ends the script when that fails.
python=$(command -v python3)
[ -n "$CUDA_HOME" ] || export CUDA_HOME=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
export PATH=$PATH:$CUDA_HOME/bin PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export VLLM_NO_USAGE_STATS=1
mkdir -p "$site" || exit 1
if [ ! -e "$site/.complete" ]; then
  tar -xJf "$here/tree.tar.xz" -C "$site" || exit 1
  "$python" -m compileall -q -j 0 "$site" > /dev/null 2>&1 # some files are templates
  touch "$site/.complete"
fi
export PYTHONPATH=$site
