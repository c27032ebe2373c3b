#!/usr/bin/env bash
# pytorch_versions.sh VERSION...: tests the backend with other versions of PyTorch than ./dev test's, such as 2.9.1.
# For each it installs PyPI's PyTorch in a temporary environment (4 GB to download, 7 GB on disk), builds the backend
# against it in build/pytorch, and runs the tests that docs/internals/pytorch.md names. It stops at the first failure.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source tools/dev-common.sh
[ $# -gt 0 ] || { echo "usage: tools/pytorch_versions.sh VERSION..., such as 2.9.1 2.14.1" >&2; exit 2; }
need_packages tools/packages.txt

tests='operations|faults|wrappers|smddp|parallel_(mesh|pipeline|optimizer|checkpoint|tensor)'
build=build/pytorch
mkdir -p build
# The other packages that the tests import, in the versions that ./dev test pins.
mapfile -t packages < <(
  grep -oE '^(accelerate|expecttest|numpy|pybind11|transformers)==[^ ]+' tests/torch/requirements.txt)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

for version; do
  python=$place/$version/bin/python
  say "PyTorch $version: installing it in $place"
  python3 -m venv "$place/$version"
  "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile --only-binary :all: \
    "torch==$version" "${packages[@]}"
  say "PyTorch $version: building"
  cmake --preset release -B "$build" -U pybind11_DIR -DSHOAL_TORCH=ON -DPyTorch_PYTHON="$python" > "$build.log"
  cmake --build "$build" --parallel "$(build_jobs)" --target shoal_torch shoal_native shoal >&2
  say "PyTorch $version: testing"
  ctest --test-dir "$build" --output-on-failure --no-tests=error --tests-regex "^torch\.($tests)$"
  rm -rf "${place:?}/$version"
done
say "passed with PyTorch $*"
