#!/usr/bin/env bash
# Makes build/moto, a Python environment with what tests/sagemaker/moto/requirements.txt pins, once, and again when
# that changes. Where it cannot be made, says so in a line and succeeds: the tests that need it are skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source tools/dev-common.sh
wanted=tests/sagemaker/moto/requirements.txt
place=build/moto
log=build/moto.log

cmp -s "$wanted" "$place/requirements.txt" && exit 0
say "installing moto from PyPI, for tests: $place"
mkdir -p build
rm -rf "$place"
# Only wheels: nothing of theirs runs while they are installed. Not compiled: of most of it nothing is imported.
if { python3 -m venv "$place" &&
     "$place/bin/pip" install --disable-pip-version-check --no-input --no-compile --only-binary :all: \
       --require-hashes --retries 1 --timeout 20 --requirement "$wanted"; } > "$log" 2>&1; then
  cp "$wanted" "$place/requirements.txt"
else
  rm -rf "$place"
  say "moto could not be installed, so its test is skipped: $(grep -i error "$log" | tail -n 1) (whole log: $log)"
fi
