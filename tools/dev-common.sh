# Sourced by ./dev: packages, configuring, building. Functions only.

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() { echo "./dev: $*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif command -v sudo > /dev/null; then sudo "$@"
  else die "'$*' needs root and there is no sudo; run it as root, then try again"
  fi
}

# need_packages LIST...: installs the listed packages that the machine lacks. Silent if none is missing.
need_packages() {
  local missing=() name
  if ! command -v dpkg-query > /dev/null; then
    say "this is not a Debian system: $* name what has to be installed by other means"
    return 0
  fi
  while read -r name; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2> /dev/null)" = installed ] || missing+=("$name")
  done < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' -e 's/[[:space:]]//g' "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing with apt: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive \
         apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "apt could not install: ${missing[*]} (whole log: $log)"
  fi
  rm -f "$log"
}

# The number of compilers to run at once: the cores, but no more than the memory allows (about 1.5 GiB each).
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/MemAvailable/ {print int($2 / 1572864)}' /proc/meminfo)
  [ "$memory" -ge 1 ] || memory=1
  echo "${SHOAL_JOBS:-$((cores < memory ? cores : memory))}"
}

# Tests spawn their own ranks, so only a few tests run side by side. Many wait, so on two cores three are faster than
# two (522 s for all).
test_jobs() { echo "${SHOAL_TEST_JOBS:-3}"; }

# configure_preset PRESET. A release build compiles in batches, which is faster from scratch, unless SHOAL_UNITY=OFF.
configure_preset() {
  local preset=$1 batches=()
  mkdir -p build
  [ "$preset" != release ] || batches=(-DSHOAL_UNITY="${SHOAL_UNITY:-ON}")
  # It is already configured: ninja itself notices changed CMake files.
  [ -f "build/$preset/build.ninja" ] && return 0
  say "configuring ($preset)"
  if ! cmake --preset "$preset" "${batches[@]}" > "build/configure-$preset.log" 2>&1; then
    tail -n 25 "build/configure-$preset.log" >&2
    die "configuring failed (whole log: build/configure-$preset.log)"
  fi
}

# build_preset PRESET [TARGET...]
build_preset() {
  local preset=$1
  shift
  case "$preset" in
    release | dev | debug | asan | tsan | fuzz | tarball | cuda | gpu) ;;
    *) die "there is no preset '$preset'; use release, dev, debug, asan, tsan, fuzz, tarball, cuda or gpu" ;;
  esac
  configure_preset "$preset"
  say "building ($preset)"
  cmake --build "build/$preset" --parallel "$(build_jobs)" ${1:+--target "$@"} >&2
}

# PyTorch's backend in the release build, for the PyTorch of SHOAL_PYTHON or of build/torch. Without either,
# its tests are skipped.
build_torch() {
  local python=${SHOAL_PYTHON:-$PWD/build/torch/bin/python}
  [ -x "$(command -v "$python")" ] || return 0
  if ! grep -qx "PyTorch_PYTHON:.*=$python" build/release/CMakeCache.txt ||
     ! grep -qx "SHOAL_TORCH:.*=ON" build/release/CMakeCache.txt; then
    say "configuring for the PyTorch of $python"
    cmake build/release -DSHOAL_TORCH=ON -DPyTorch_PYTHON="$python" > build/configure-torch.log 2>&1 ||
      { tail -n 25 build/configure-torch.log >&2; die "configuring failed (whole log: build/configure-torch.log)"; }
  fi
  build_preset release
}

# Ranks may outnumber cores, and containers run as root: mpirun must be allowed both.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1

sanitizer_environment() {
  env ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1}" \
    LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/tools/lsan.supp:print_suppressions=0}" \
    UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}" \
    TSAN_OPTIONS="${TSAN_OPTIONS:-suppressions=$PWD/tools/tsan.supp}" "$@"
}
