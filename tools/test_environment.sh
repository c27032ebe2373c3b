#!/usr/bin/env bash
# test_environment.sh NAME REQUIREMENTS [PURPOSE]: makes build/NAME, a Python environment with the wheels that the file
# REQUIREMENTS pins, once, and again when that changes. Where it cannot be made, says so in a line and succeeds:
# the tests that need it, or what PURPOSE names, are skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
source tools/dev-common.sh
wanted=$2 purpose=${3:-its tests}
place=build/$1
log=build/$1.log

cmp -s "$wanted" "$place/requirements.txt" && exit 0
say "installing $1 from PyPI, for $purpose: $place$(sed -n 's/^# Size: /, /p' "$wanted")"
mkdir -p build
rm -rf "$place"
# Only wheels: nothing of theirs runs while they are installed. Not compiled: of most of it nothing is imported.
# The file names everything that is needed, and may leave out what a package asks for in vain.
if { python3 -m venv "$place" &&
     "$place/bin/pip" install --disable-pip-version-check --no-input --no-compile --no-deps \
       --only-binary :all: --require-hashes --retries 1 --timeout 20 --requirement "$wanted"; } > "$log" 2>&1; then
  cp "$wanted" "$place/requirements.txt"
else
  rm -rf "$place"
  say "$1 could not be installed, so $purpose are skipped: $(grep -i error "$log" | tail -n 1) (whole log: $log)"
fi
