#!/usr/bin/env bash
# Trains three small runs with a program and prints a hash of the final weights of each: a synchronous run, a run with a
# phase of discriminative routing, and a streaming run (two fragments, overlap, four bits, states kept by workers).
# The same program on the same kind of processor always prints the same hashes. A change that must not change weights
# prints the hashes of the program before it.
#
#   scripts/same-bits.sh target/debug/dipaco TEXT...        TEXT: files or folders, a few hundred kB
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
program=$(realpath "$1"); shift
tiny=$(cd "$(dirname "$0")/.." && pwd)/tests/fixtures/tiny.toml
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT

# These values and the file decide the hashes. A change of either needs new hashes of the program before it.
settings=(
  prepare.vocab_size=512 prepare.text_document_bytes=16384 prepare.validation_fraction=0.02
  seed_model.steps=20 seed_model.validate_every=100 seed_model.validation_sequences=32
  seed_model.checkpoint_every=100 seed_model.adamw.learning_rate=0.0004 seed_model.schedule.warmup_steps=50
  routing.restarts=4 routing.router_share=0.1
  train.rounds=4 train.inner_steps=6 train.holdout_sequences=16 train.schedule.warmup_steps=50
)

run() { # name, further settings
  local name=$1 run="$folder/$1"; shift
  local overrides=("${settings[@]/#/--set=}" "${@/#/--set=}")
  quiet "$program" prepare --run "$run" --config "$tiny" "${overrides[@]}" "${text[@]}"
  quiet "$program" seed --run "$run"
  quiet "$program" route fit --run "$run"
  quiet "$program" route assign --run "$run"
  quiet "$program" train --run "$run" --workers 2
  local path
  for path in 0 1 2 3; do quiet "$program" export --run "$run" --path "$path" --out "$folder/$name-$path"; done
  printf '%s %s\n' "$(cat "$folder/$name"-?/model.safetensors | sha256sum | cut -c1-64)" "$name"
}

quiet() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }; }

text=("$@")
run synchronous
run phase 'routing.phases=[{ round = 2 }]'
run streaming outer.compression=e3m0 outer.broadcast=e3m0 sync.fragments=2 sync.overlap_steps=2 \
  'routing.phases=[{ round = 3 }]'
