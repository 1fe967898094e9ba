#!/usr/bin/env bash
# Reads a run 200 times (or $1 times) while a training with very short rounds replaces its weights: in turn with `evaluate`,
# `route score`, `plot`, a request to `serve`, which takes up new weights, and `export`. Prints each failure, and at every
# tenth read the complete rounds, and the objects and bytes in the store. A run that is prepared and routed is in $2, with
# documents for routers (`routing.router_share`), which `route score` reads; $3 is the number of inner steps of a round.
#
#   scripts/readers-beside-training.sh 200 runs/mine
set -euo pipefail

reads=${1:-200}
run=${2:?give a routed run}
steps=${3:-1}
dipaco=${DIPACO:-target/release/dipaco}

copy=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$copy"' EXIT
cp -r "$run" "$copy/run"
run=$copy/run

"$dipaco" train --run "$run" --workers 2 --set train.rounds=1000000 --set train.inner_steps="$steps" >"$copy/train.log" 2>&1 &
until "$dipaco" status --run "$run" --json 2>/dev/null | grep -q '"training"'; do sleep 0.2; done
sleep 5
"$dipaco" serve --run "$run" --address 127.0.0.1:0 --set serve.reload_seconds=0.5 >"$copy/serve.log" 2>&1 &
until server=$(grep -om 1 'http://[0-9.:]*' "$copy/serve.log"); do sleep 0.2; done

began=$SECONDS
look() {
    # The training removes files while they are counted.
    printf 'read %3d, %4d s: %6d rounds, %4d objects, %d bytes\n' "$1" $((SECONDS - began)) \
        "$(grep -c '"round_completed"' "$run/metrics.jsonl")" "$(find "$run/store" -type f 2>/dev/null | wc -l)" "$(du -sb "$run/store" 2>/dev/null | cut -f1)"
}
look 0
# One of the readers, by the number of the read.
read_run() {
    case $(($1 % 5)) in
    0) "$dipaco" export --run "$run" --path 1 --out "$copy/path-$1" ;;
    1) "$dipaco" evaluate --run "$run" --json ;;
    2) "$dipaco" route score --run "$run" ;;
    3) "$dipaco" plot --run "$run" ;;
    4) curl -sSf "$server/v1/completions" -H 'content-type: application/json' -d '{"prompt": "The", "max_tokens": 4}' ;;
    esac
}
failures=0
for ((read = 1; read <= reads; read++)); do
    if ! read_run "$read" >"$copy/read.log" 2>&1; then
        failures=$((failures + 1))
        echo "read $read failed:"
        cat "$copy/read.log"
    fi
    rm -rf "$copy/path-$read"
    ((read % 10)) || look "$read"
done
"$dipaco" status --run "$run" | head -5
echo "$reads reads, $failures failures"
[ "$failures" = 0 ]
