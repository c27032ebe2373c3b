#!/usr/bin/env bash
# Unpacks the GPU bundle in this directory and runs parts of it: ./run.sh --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 > /dev/null || { echo "run.sh: needs python3" >&2; exit 1; }
# The unpacked bundle is kept between calls. Another bundle is unpacked anew.
stamp=$(sha256sum "$here/shoal-gpu.tar.xz" | cut -c1-16)
home=${SHOAL_GPU_HOME:-/tmp/shoal-gpu-$(id -u)}/$stamp
if [ ! -f "$home/unpacked" ]; then
  rm -rf "$home"
  mkdir -p "$home"
  python3 - "$here/shoal-gpu.tar.xz" "$home" <<'PY'
import sys, tarfile
with tarfile.open(sys.argv[1]) as tar:
    tar.extractall(sys.argv[2], filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(sys.argv[2])
PY
  touch "$home/unpacked"
fi
exec python3 "$home/tools/gpu/run.py" "$@"
