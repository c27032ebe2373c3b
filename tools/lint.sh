#!/usr/bin/env bash
# ./dev lint: layout, layers, house sizes, clang-tidy. Run from the root of the tree.
set -euo pipefail
source tools/dev-common.sh
all=false
[ "${1:-}" != --all ] || all=true

mapfile -t sources < <(git ls-files -- '*.cc' '*.h' '*.cu' '*.cuh')
say "layout (clang-format, ${#sources[@]} files)"
clang-format-19 --dry-run --Werror "${sources[@]}" \
  || die "layout differs; run: clang-format-19 -i \$(git ls-files '*.cc' '*.h')"

say "layers"
tools/check_layers

say "names"
tools/check_names

say "rules"
tools/check_rules

say "pages"
tools/check_docs

# Interface headers are short; sources are split at natural boundaries.
say "sizes"
long=$(git ls-files -- '*.cc' '*.h' '*.cu' '*.cuh' '*.py' '*.sh' | xargs wc -l | awk '$2 != "total" && $1 > 600')
[ -z "$long" ] || die "files past 600 lines: $long"

if $all; then
  changed=("${sources[@]}")
else
  base=${SHOAL_LINT_BASE:-$(git rev-list --max-count=1 --skip=10 HEAD)}
  mapfile -t changed < <(git diff --name-only --diff-filter=d "${base:-$(git rev-list --max-parents=0 HEAD | tail -1)}" -- '*.cc')
fi
# clang-tidy reads the sources one by one, with the options of the release build.
configure_preset release
mapfile -t options < <(sed -nE 's/^((SHOAL_|PyTorch_PYTHON|CMAKE_BUILD_TYPE)[A-Z]*):[^=]*=(.+)/-D\1=\3/p' build/release/CMakeCache.txt)
cmake -S . -B build/lint -G Ninja "${options[@]}" -DSHOAL_UNITY=OFF > build/configure-lint.log 2>&1 \
  || { tail -n 25 build/configure-lint.log >&2; die "configuring failed (whole log: build/configure-lint.log)"; }
# Without compile commands (CUDA, NCCL) clang-tidy would guess them, so these files are left out.
tidy=() foreign=()
for file in "${changed[@]}"; do
  [[ $file == *.cc ]] || continue
  if grep -qF "/$file\"" build/lint/compile_commands.json; then tidy+=("$file"); else foreign+=("$file"); fi
done
[ ${#foreign[@]} -eq 0 ] || say "not compiled here, so not read by clang-tidy: ${foreign[*]}"
# Tests and programs are checked without the headers that are precompiled for all of them (shoal_common_headers), so
# that they include what they use.
sed -i 's/ -Winvalid-pch -include [^ ]*cmake_pch\.hxx//' build/lint/compile_commands.json
arguments=(--quiet -p build/lint)
# The analyzer takes most of the time, so it runs only if everything is checked.
! $all || arguments+=("--checks=clang-analyzer-*,-clang-analyzer-optin.performance.Padding")
say "clang-tidy (${#tidy[@]} files)"
[ ${#tidy[@]} -eq 0 ] || printf '%s\n' "${tidy[@]}" \
  | xargs -P "$(build_jobs)" -n 2 clang-tidy-19 "${arguments[@]}" 2> >(grep -v 'warnings generated' >&2)
say "lint is clean"
