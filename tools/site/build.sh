#!/usr/bin/env bash
# Builds the pages of docs/ as a site in build/site, with build/docs/html, if it is there, as its C++ reference. Any
# warning fails it. Status 77, which ctest shows as skipped: there is no MkDocs in build/mkdocs (./dev docs).
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
mkdocs=build/mkdocs/bin/mkdocs
[ -x "$mkdocs" ] || { echo "there is no MkDocs in build/mkdocs; ./dev docs installs it"; exit 77; }
# Not --quiet, which hides warnings from --strict too. Material's notice about the next version of MkDocs is no warning about these pages.
NO_MKDOCS_2_WARNING=1 "$mkdocs" build --strict --clean --config-file tools/site/mkdocs.yml "$@"
echo "build/site/index.html"
