#!/usr/bin/env bash
# From a fresh clone to a served model: sets the machine up, builds the release binary and runs `dipaco quickstart`.
# Arguments go to it: scripts/quickstart.sh --data some/folder
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
cargo build --release --locked --bin dipaco
exec "${CARGO_TARGET_DIR:-target}/release/dipaco" quickstart "$@"
