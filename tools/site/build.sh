#!/usr/bin/env bash
# Builds the pages of docs/ as a site in build/site. build/docs/html becomes its C++ reference, if it exists. Any
# warning is an error. Status 77, which ctest shows as skipped: build/mkdocs has no MkDocs (./dev docs).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
mkdocs=build/mkdocs/bin/mkdocs
[ -x "$mkdocs" ] || { echo "there is no MkDocs in build/mkdocs; ./dev docs installs it"; exit 77; }
# --quiet would also hide warnings from --strict. Material's notice about the next version of MkDocs does not
# concern these pages.
NO_MKDOCS_2_WARNING=1 "$mkdocs" build --strict --clean --config-file tools/site/mkdocs.yml "$@"
echo "build/site/index.html"
