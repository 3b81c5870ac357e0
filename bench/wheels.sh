# Functions for scripts that pack wheels for Linux x86-64, Python 3.12: source it. PYTHON (python3) needs pip.
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 35 34 31 28 27 26 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
get() { # get FOLDER REQUIREMENT...
  "${PYTHON:-python3}" -m pip --disable-pip-version-check download -q --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp --abi cp312 --abi abi3 --abi none "${platforms[@]}" -d "$@"
}
unpack() { # unpack WHEEL FOLDER PATTERN...
  "${PYTHON:-python3}" -c '
import fnmatch, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if any(fnmatch.fnmatch(n, p) for p in sys.argv[3:])])
' "$@"
}
pack_programs() { # pack_programs OUT WHEEL...: a folder per program, its package and the metadata by which an engine finds it
  local folder; folder=$(mktemp -d)
  mkdir "$folder/programs"
  for wheel in "${@:2}"; do local name; name=$(basename "$wheel"); unpack "$wheel" "$folder/programs/${name%%-*}" '*'; done
  tar -C "$folder" -cJf "$1/programs.tar.xz" programs
  rm -r "$folder"
}
weigh() { # weigh OUT SECONDS: says how large the bundle is; fails above 62 MiB
  local size; size=$(du -sm "$1" | cut -f1)
  echo "$1: $size MiB in $2 s"
  [ "$size" -le 62 ] || { echo "more than 62 MiB" >&2; return 1; }
}
