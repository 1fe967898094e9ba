#!/usr/bin/env bash
# Installs into .venv what the tests with clients written in Python need: PyTorch and transformers (an exported path
# gives the same logits there), xllamacpp (llama.cpp gives the same tokens), h5py (token files are ordinary HDF5) and openai
# (a client as users have it), moto (a server that speaks S3)
# and kubernetes-validate (the schemas of its manifests).
# Does nothing where they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
want="torch==2.15.0 transformers==5.23.0 safetensors==0.8.0 h5py==3.16.0 numpy==2.4.6 openai==3.52.0 xllamacpp==2026.10.11549 moto[server]==5.2.5 kubernetes-validate==1.37.0"
if [ "$(cat .venv/installed 2>/dev/null)" != "$want" ]; then
  rm -rf .venv
  python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile $want
  printf '%s' "$want" > .venv/installed
fi
