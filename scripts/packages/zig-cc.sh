#!/bin/sh
# A linker for rustc that links against the symbols of the glibc in DIPACO_GLIBC, such as 2.28, whatever glibc this machine
# has: zig carries the lists of symbols. `cargo-zigbuild` translates the arguments (pip install ziglang cargo-zigbuild).
exec cargo-zigbuild zig cc -- -target "$(uname -m)-linux-gnu.$DIPACO_GLIBC" "$@"
