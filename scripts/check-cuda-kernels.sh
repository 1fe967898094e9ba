#!/usr/bin/env bash
# Compiles the GPU kernels of crates/cuda with NVIDIA's run-time compiler, which needs no GPU and no toolkit:
#   scripts/check-cuda-kernels.sh [ARCHITECTURE ...]      (default sm_90; sm_NN also says registers and spills)
# The compiler comes from PyPI (about 90 MB) into .nvrtc at the root of the checkout; NVRTC=PATH takes another one.
set -euo pipefail
cd "$(dirname "$0")/.."
library="${NVRTC:-}"
if [ -z "$library" ]; then
    [ -x .nvrtc/bin/python ] || python3 -m venv .nvrtc
    .nvrtc/bin/python -m pip install --quiet nvidia-cuda-nvrtc==13.0.88
    library="$(find "$PWD/.nvrtc" -name 'libnvrtc.so.13' | head -n 1)"
fi
# The compiler looks for its builtins on the library path.
export LD_LIBRARY_PATH="$(dirname "$library")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec python3 scripts/check_cuda_kernels.py "$library" "$@"
