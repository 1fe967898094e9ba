#!/usr/bin/env bash
# Sets the machine up and passes every test and check. Ends with the line "N passed, N failed" over all suites.
set -uo pipefail
cd "$(dirname "$0")/.."
# It ends this script when it fails. Before `||` bash would ignore its `set -e`.
source scripts/setup.sh
set +e
# Nothing is built twice here, and what would make the second time faster takes gigabytes.
export CARGO_INCREMENTAL=0
log=$(mktemp); trap 'rm -f "$log"' EXIT
passed=0; failed=0

check() { # a check that counts as one test: name, command
  local name=$1 begun=$SECONDS; shift
  printf '\n== %s\n' "$name"
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); printf 'FAILED: %s\n' "$name"; fi
  printf '%s: %d s\n' "$name" $((SECONDS - begun))
}

suite() { # a suite whose "test result" lines are counted: name, command
  local name=$1 begun=$SECONDS; shift
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log"
  local status=${PIPESTATUS[0]} p f
  p=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | awk '{s+=$1} END {print s+0}')
  f=$(sed -n 's/^test result: .* \([0-9]*\) failed; .*/\1/p' "$log" | awk '{s+=$1} END {print s+0}')
  passed=$((passed + p)); failed=$((failed + f))
  if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then failed=$((failed + 1)); printf 'FAILED: %s\n' "$name"; fi
  printf '%s: %d s\n' "$name" $((SECONDS - begun))
}

# The Python clients come over the network while the compiler works.
python_log=$(mktemp); fuzz_log=$(mktemp); trap 'rm -f "$log" "$python_log" "$fuzz_log"' EXIT
scripts/python.sh >"$python_log" 2>&1 &
python=$!
python_clients() { wait "$python" || { cat "$python_log"; false; }; }

check "format" cargo fmt --all --check
check "structure" scripts/measure-code.py --check
check "plain language" scripts/measure-prose.py --check
check "links of the pages" scripts/check-links.py
check "licences and sources" scripts/deny.sh
check "clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
check "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
check "python for the clients' tests" python_clients
# The program and the Python module under test. Alone, their dependencies would be compiled once more, with other features.
check "programs under test" cargo build --workspace --lib --bins --tests --locked --quiet
suite "tests" cargo test --workspace --locked --no-fail-fast --quiet
# A turn takes longer than the processor time that it must have, so that each campaign plays one.
check "damaged inputs, half a minute of each campaign" scripts/fuzz.py --seconds 30 --until 10 --jobs 2 --first commit --log "$fuzz_log"
check "unsafe code under AddressSanitizer" scripts/check-unsafe.sh

printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
