#!/usr/bin/env bash
# The most memory that preparing and routing hold, for one input file and for several of the same size.
#
#   scripts/measure-memory.sh BINARY FILE...      FILE are C4 files; the first one is "one file"
#
# Needs GNU time. Prints the maximum resident size of each step; it must not grow with the files.
set -euo pipefail

binary=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
config=$(cd "$(dirname "$0")/.." && pwd)/configs/tiny.toml

resident() { # NAME COMMAND...
    local name=$1
    shift
    /usr/bin/time -f %M -o "$folder/resident" "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
    printf '%-28s %7.1f MB\n' "$name" "$(awk '{ print $1 / 1024 }' "$folder/resident")"
}

measure() { # NAME FILE...
    local name=$1 run=$folder/$1
    shift
    # The sample and the seed are the same work for any amount of text.
    local set=(--run "$run" --set prepare.tokenizer_sample_bytes=2000000 --set routing.sample_documents=2000
        --set seed_model.steps=2)
    resident "$name prepare" "$binary" --quiet prepare --config "$config" "${set[@]}" "$@"
    "$binary" --quiet seed "${set[@]}" >/dev/null
    resident "$name route fit" "$binary" --quiet route fit "${set[@]}"
    resident "$name route assign" "$binary" --quiet route assign "${set[@]}"
}

measure 1-file "$1"
measure "$#-files" "$@"
