#!/usr/bin/env bash
# Runs what the unsafe code of crates/ops and of shards does under AddressSanitizer, the former with the fastest, AVX2 and
# portable kernels and the model of AMX; with `--miri`, also a part of it under Miri, which takes minutes and a nightly
# toolchain with the components miri and rust-src. The unsafe code of crates/cuda calls the driver: it runs on a GPU only.
#
# Only the workspace's own code is instrumented: dependencies are those of the ordinary tests, so nothing else is built.
set -euo pipefail

# Called by cargo in place of rustc for the workspace's packages: adds the sanitizer, which is an unstable option.
case "${1-}" in
  *rustc)
    # An answer to cargo that names the sanitizer would have the C code of dependencies instrumented, and ordinary programs with
    # the same dependencies could not be linked any more.
    case "$*" in *--print*) exec "$@" ;; esac
    RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address ;;
esac

cd "$(dirname "$0")/.."

if [ "$(uname -sm)" != "Linux x86_64" ]; then
  echo "the sanitizer is set up for Linux on x86-64 only; nothing was checked"
  exit 0
fi

address() { # package, DIPACO_SIMD (empty for the fastest kernels), and cargo's arguments for which tests
  printf '\n== AddressSanitizer, %s, DIPACO_SIMD=%s\n' "$1" "$2"
  DIPACO_SIMD=$2 RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/check-unsafe.sh \
    cargo test -p "$1" --locked --quiet --lib --tests -- "${@:3}"
}

address dipaco-ops ''
address dipaco-ops avx2
# The slow ones: some tests of each kind.
address dipaco-ops portable tests:: blocks::a head::a
address dipaco-ops amx-model tests:: blocks::a head::a
# The memory maps of token files, damaged ones too.
address dipaco-shards '' token

if [ "${1-}" = --miri ]; then
  # Miri knows AVX-512 F and AVX2 but detects nothing at run time. Trees of borrows, as rayon's queues need them;
  # rayon's threads outlive the tests.
  export MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-ignore-leaks -Zmiri-disable-isolation \
-Zmiri-permissive-provenance -Zmiri-deterministic-floats"
  export RUSTFLAGS="-Ctarget-feature=+avx2,+fma,+avx512f" RAYON_NUM_THREADS=2
  miri() { printf '\n== Miri: %s\n' "$*"; cargo +nightly miri test -p dipaco-ops --locked --quiet "$@"; }
  miri --lib product
  miri --test ops -- an_odd_width a_small_head a_second_backward_pass
fi
