#!/usr/bin/env bash
# Builds crates/ops for aarch64 and runs its tests under user-mode emulation: on a processor with bf16 products, and on one
# that has neither these nor dot products of int8. Arguments go to the tests.
#
# With `--program` as the only argument it builds the whole program instead, and a small run goes through it under emulation:
# prepare, seed, route, a coordinator and a worker, evaluate, and an export that is compared with the run.
#
# It needs `rustup target add aarch64-unknown-linux-gnu`, a linker and an emulator (QEMU 6.1 or newer). On Debian:
#   apt-get install gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user
# LINKER, QEMU and QEMU_LD_PREFIX name others.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
linker=${LINKER:-aarch64-linux-gnu-gcc}
qemu=${QEMU:-qemu-aarch64}
for tool in "$linker" "$qemu"; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: see the head of $0" >&2; exit 1; }
done

export QEMU_LD_PREFIX=${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$qemu

check() { # a processor of the emulator, and the fastest set that it must have
  echo "check-aarch64: $1 with $2"
  # The library's tests have every kernel of the processor; those of tests/ops compare blocks and head with f64. The emulator
  # keeps advice about huge pages from the system, so no mapping is marked.
  QEMU_CPU=$1 DIPACO_SIMD=$2 cargo test -p dipaco-ops --locked --target "$target" --lib --test ops -- \
    --skip weights_are_marked_where_the_system_has_huge_pages "${@:3}"
}

program() {
  local dipaco run fixtures=tests/fixtures
  export CC_aarch64_unknown_linux_gnu=$linker CXX_aarch64_unknown_linux_gnu=${CXX_LINKER:-aarch64-linux-gnu-g++}
  cargo build -p dipaco-cli --locked --target "$target"
  dipaco="$qemu ${CARGO_TARGET_DIR:-target}/$target/debug/dipaco"
  folder=$(mktemp -d)
  trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
  run=$folder/run
  export DIPACO_SECRETS=$folder/secrets
  $dipaco -q prepare --config "$fixtures/tiny.toml" --run "$run" "$fixtures/corpus"
  $dipaco -q seed --run "$run"
  $dipaco -q route fit --run "$run"
  $dipaco -q route assign --run "$run"
  # The emulator can't start the workers of `train`: the system does not know programs of this processor.
  $dipaco -q coordinator --run "$run" --listen 127.0.0.1:0 &
  local coordinator=$!
  until [ -f "$run/secrets/join.token" ]; do kill -0 "$coordinator"; sleep 0.2; done
  $dipaco -q worker --join "$run/secrets/join.token" --cache "$folder/cache" &
  local worker=$!
  # If one of them fails, the other waits for ever: the failure ends the script, and the trap ends the other.
  wait -n
  wait "$coordinator"
  wait "$worker"
  $dipaco -q evaluate --run "$run"
  $dipaco -q export --run "$run" --path 0 --out "$folder/exported" --verify
}

if [ "$*" = --program ]; then
  program
  exit
fi

check max neon-bf16 "$@"
check cortex-a72 neon "$@"
