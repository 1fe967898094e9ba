#!/usr/bin/env bash
# Runs the tests of a run in Azure Blob Storage (tests/tests/azure.rs). They need Azurite, which only npm offers, so the
# test suite leaves them out.
#
#   scripts/check-azure.sh
set -euo pipefail
cd "$(dirname "$0")/.."

azurite=3.37.0
if [ ! -e ".venv/azurite/$azurite" ]; then
  command -v npm >/dev/null || { echo "check-azure: install npm first (apt install npm)" >&2; exit 1; }
  npm install --silent --no-audit --no-fund --no-save --prefix .venv/azurite "azurite@$azurite"
  touch ".venv/azurite/$azurite"
fi
cargo test -p dipaco-tests --features azurite --test azure
