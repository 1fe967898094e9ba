#!/usr/bin/env bash
# Builds crates/ops for aarch64 and runs its tests under user-mode emulation: on a processor with bf16 products, and on one
# that has neither these nor dot products of int8. Arguments go to the tests.
#
# It needs `rustup target add aarch64-unknown-linux-gnu`, a linker and an emulator (QEMU 6.1 or newer). On Debian:
#   apt-get install gcc-aarch64-linux-gnu qemu-user
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

check max neon-bf16 "$@"
check cortex-a72 neon "$@"
