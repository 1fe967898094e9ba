#!/usr/bin/env bash
# Installs into .venv what the tests with clients written in Python need: PyTorch and transformers (an exported path
# gives the same logits there), xllamacpp (llama.cpp gives the same tokens), h5py (token files are ordinary HDF5) and openai
# (a client as users have it), moto (a server that speaks S3), kubernetes-validate (the schemas of its manifests),
# auditwheel (the judgement about the tag of a wheel) and tensorboard (reads its own event files; without the packages of
# its server), datatrove with what its writers need (runs deploy/datatrove), lm-evaluation-harness (300 MB with pyarrow and pandas, which its data come
# through) and LangChain (15 MB). The last two come without the requirements that their tests do not need.
# Does nothing where they are there.
#
# PyTorch comes with the libraries of its GPU build, which it can't be loaded without, but without Triton, which only
# compiles for GPUs: one gigabyte. Its requirements come one at a time, so that the disk holds one download at once.
set -euo pipefail
cd "$(dirname "$0")/.."
torch="torch==2.15.0"
others="transformers==5.23.0 safetensors==0.8.0 h5py==3.16.0 numpy==2.4.6 openai==3.52.0 xllamacpp==2026.10.11549 moto[server]==5.2.5 kubernetes-validate==1.37.0 auditwheel==6.8.2 protobuf==7.36.2 datatrove==0.10.1 orjson==3.13.0 zstandard==0.25.0 absl-py==2.5.1"
alone="tensorboard==2.21.0"
alone="$alone lm-eval==0.4.13 accelerate==1.15.0 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 colorama==0.4.6 datasets==5.2.0 evaluate==0.4.6 frozenlist==1.8.0 lxml==6.1.3 multidict==7.2.1 pandas==3.1.1 portalocker==4.4.2 propcache==0.5.4 pyarrow==26.0.1 sacrebleu==2.6.0 tabulate==0.10.0 tenacity==9.2.1 xxhash==4.1.0 yarl==1.25.1"
alone="$alone langchain-openai==1.7.3 langchain-core==1.7.2 langchain-protocol==0.0.20 langsmith==0.15.0 distro==1.9.0 requests-toolbelt==1.0.0 tiktoken==0.14.0 uuid-utils==1.2.0"
want="$torch without triton, $others, $alone alone"
get() { .venv/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile "$@"; }
if [ "$(cat .venv/installed 2>/dev/null)" != "$want" ]; then
  rm -rf .venv
  python3 -m venv .venv
  get $others
  .venv/bin/pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --dest .venv/wheels "$torch"
  needed=$(.venv/bin/python - .venv/wheels/torch-*.whl <<'PYTHON'
import email, sys, zipfile
from pip._vendor.packaging.requirements import Requirement
wheel = zipfile.ZipFile(sys.argv[1])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for text in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    one = Requirement(text)
    if one.name != "triton" and (one.marker is None or one.marker.evaluate({"extra": ""})):
        one.marker = None
        print(str(one).replace(" ", ""))
PYTHON
  )
  for one in $needed; do get "$one"; done
  # Last, because pip complains of what these lack whenever it looks at what is installed.
  get --no-deps .venv/wheels/torch-*.whl $alone
  rm -r .venv/wheels
  printf '%s' "$want" > .venv/installed
fi
