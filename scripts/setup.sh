#!/usr/bin/env bash
# Installs what a fresh machine lacks to build dipaco: a C compiler, Python 3 with venv, and cmake 3.26 or newer (the
# build of HDF5 from source needs it; Debian 12 ships an older one). Does nothing where everything is there.
#
#   source scripts/setup.sh        also puts the cmake it installed first in PATH
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# A shell that somebody types in keeps its options, and outlives a failure.
case $- in *i*)
  bash "$root/scripts/setup.sh" && if [ -x "$root/.cmake/bin/cmake" ]; then PATH="$root/.cmake/bin:$PATH"; fi
  return ;;
esac
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }

install_packages() { # names for apt, dnf, pacman, apk, brew in this order, quoted lists
  local sudo=""
  if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null; then sudo=sudo; fi
  if command -v apt-get >/dev/null; then
    say "installing $1"
    $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq $1 >/dev/null
  elif command -v dnf >/dev/null; then
    say "installing $2"; $sudo dnf install -y -q $2
  elif command -v pacman >/dev/null; then
    say "installing $3"; $sudo pacman -Sy --noconfirm --needed $3
  elif command -v apk >/dev/null; then
    say "installing $4"; $sudo apk add --quiet $4
  elif command -v brew >/dev/null; then
    say "installing $5"; brew install --quiet $5
  else
    say "no package manager that this script knows: install a C compiler, make, Python 3 with venv and git yourself"
    return 1
  fi
}

if ! command -v cargo >/dev/null; then
  say "no Rust toolchain: install one from https://rustup.rs and run this again"
  return 1 2>/dev/null || exit 1
fi
if ! command -v cc >/dev/null || ! command -v c++ >/dev/null || ! command -v make >/dev/null; then
  install_packages "build-essential" "gcc gcc-c++ make" "base-devel" "build-base" "make"
fi

cmake_is_new() { # true when the cmake given is 3.26 or newer, and older than 4 (HDF5's own scripts)
  local version
  version=$("$1" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  [ -n "$version" ] || return 1
  set -- $version
  [ "$1" -eq 3 ] && [ "$2" -ge 26 ]
}

if ! cmake_is_new cmake; then
  if ! cmake_is_new "$root/.cmake/bin/cmake"; then
    say "installing cmake 3.31.10 into .cmake"
    rm -rf "$root/.cmake"
    if ! python3 -m venv "$root/.cmake" 2>/dev/null; then
      rm -rf "$root/.cmake"
      install_packages "python3 python3-venv" "python3" "python" "python3 py3-pip" "python3"
      python3 -m venv "$root/.cmake"
    fi
    "$root/.cmake/bin/pip" install --quiet --disable-pip-version-check cmake==3.31.10
  fi
  export PATH="$root/.cmake/bin:$PATH"
fi
