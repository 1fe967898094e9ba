#!/usr/bin/env bash
# Reads a run 200 times (or $1 times) while a training with very short rounds replaces its weights. Prints each failure,
# and the number of objects in the store before and after. A run that is prepared and routed is in $2.
#
#   scripts/readers-beside-training.sh 200 runs/mine
set -euo pipefail

reads=${1:-200}
run=${2:?give a routed run}
dipaco=${DIPACO:-target/release/dipaco}

copy=$(mktemp -d)
trap 'kill "$training" 2>/dev/null || true; rm -rf "$copy"' EXIT
cp -r "$run" "$copy/run"
run=$copy/run

"$dipaco" train --run "$run" --workers 2 --set train.rounds=1000000 --set train.inner_steps=1 >"$copy/train.log" 2>&1 &
training=$!
until "$dipaco" status --run "$run" --json 2>/dev/null | grep -q '"training"'; do sleep 0.2; done
sleep 5

objects() { find "$run/store" -type f | wc -l; }
echo "objects in the store before: $(objects)"
failures=0
for ((read = 1; read <= reads; read++)); do
    case $((read % 3)) in
    0) command=(export --path 1 --out "$copy/path-$read") ;;
    *) command=(evaluate --json) ;;
    esac
    if ! "$dipaco" "${command[@]}" --run "$run" >"$copy/read.log" 2>&1; then
        failures=$((failures + 1))
        echo "read $read (${command[0]}) failed:"
        cat "$copy/read.log"
    fi
    rm -rf "$copy/path-$read"
done
echo "objects in the store after: $(objects)"
"$dipaco" status --run "$run" | head -5
echo "$reads reads, $failures failures"
[ "$failures" = 0 ]
