#!/bin/sh
# A C compiler and linker for the glibc in DIPACO_GLIBC, such as 2.28, whatever glibc this machine has: zig carries headers and
# lists of symbols. `cargo-zigbuild` translates the arguments (pip install ziglang cargo-zigbuild).
exec cargo-zigbuild zig cc -- -target "$(uname -m)-linux-gnu.$DIPACO_GLIBC" "$@"
