#!/usr/bin/env bash
# test_environment.sh NAME REQUIREMENTS [PURPOSE]: creates build/NAME, a Python environment with the wheels pinned in
# the file REQUIREMENTS. It is created once, and again if the file changes. If this fails, the script prints one line
# and succeeds: the tests that need the environment, or PURPOSE, are skipped.
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
# Only wheels, so that installing runs no code of theirs. Not compiled, because most modules are never imported. The
# file lists all required packages, and may leave out dependencies that are never used.
if { python3 -m venv "$place" &&
     "$place/bin/pip" install --disable-pip-version-check --no-input --no-compile --no-deps \
       --only-binary :all: --require-hashes --retries 1 --timeout 20 --requirement "$wanted"; } > "$log" 2>&1; then
  cp "$wanted" "$place/requirements.txt"
else
  rm -rf "$place"
  say "$1 could not be installed, so $purpose are skipped: $(grep -i error "$log" | tail -n 1) (whole log: $log)"
fi
