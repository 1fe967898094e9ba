#!/usr/bin/env bash
# Runs the tests of a run in Azure Blob Storage (tests/tests/azure.rs). They need Azurite, which only npm offers, so the
# test suite leaves them out. Azurite is installed into FOLDER, where it is not there.
#
#   scripts/check-azure.sh [FOLDER]        # .venv/azurite by default
set -euo pipefail
folder=$(realpath -m "${1:-$(dirname "$0")/../.venv/azurite}")
cd "$(dirname "$0")/.."

azurite=3.37.0
if [ ! -e "$folder/$azurite" ]; then
  command -v npm >/dev/null || { echo "check-azure: install npm first (apt install npm)" >&2; exit 1; }
  mkdir -p "$folder"
  npm install --silent --no-audit --no-fund --no-save --prefix "$folder" "azurite@$azurite"
  touch "$folder/$azurite"
fi
cargo build --locked --bin dipaco
AZURITE="$folder/node_modules/.bin/azurite-blob" cargo test --locked -p dipaco-tests --features azurite --test azure
