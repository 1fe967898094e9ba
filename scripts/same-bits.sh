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
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT

cat >"$folder/tiny.toml" <<'TOML'
[prepare]
vocab_size = 512
[model]
hidden_size = 32
blocks = 2
heads = 2
head_dim = 16
ffn_size = 64
context = 64
[[topology.levels]]
modules = 2
blocks = "0..1"
embedding = true
[[topology.levels]]
modules = 2
blocks = "1..2"
head = true
[seed_model]
steps = 20
batch = 4
sequence_tokens = 64
[train]
rounds = 4
inner_steps = 6
batch = 4
sequence_tokens = 64
[routing]
router_share = 0.1
TOML

run() { # name, further lines of the configuration
  local name=$1 run="$folder/$1"
  { cat "$folder/tiny.toml"; printf '%s\n' "$2"; } >"$folder/$name.toml"
  quiet "$program" prepare --run "$run" --config "$folder/$name.toml" "${text[@]}"
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
run synchronous ""
run phase '[[routing.phases]]
round = 2'
run streaming '[outer]
compression = "e3m0"
broadcast = "e3m0"
[sync]
fragments = 2
overlap_steps = 2
[[routing.phases]]
round = 3'
