#!/usr/bin/env bash
# From a fresh checkout to a measured hit rate: installs what is missing, builds, starts one controller and three servers
# on this machine, replays a real trace of 12,031 LLM requests through them with every byte verified, prints the hit rate
# beside an ideal LRU's, serves conversations with a small real model with and without the pool side by side, lets a trained
# one say something, and stops everything again.
#   deploy/quickstart.sh [--servers N] [--capacity-percent P] [--dram BYTES] [--keep] [FLAGS of `ems-bench trace` …]
#     --servers N            servers to start (3)
#     --capacity-percent P   cache capacity as a share of the trace's unique bytes (10)
#     --dram BYTES           memory of each server (enough for the capacity)
#     --keep                 leave the cluster running; says how to use and stop it
#     -h, --help             this text; further flags go to `ems-bench trace`, e.g. --requests 1000 --json out.json
# Leaves no process and no file behind, except the build in build/release and ccache's cache. Exit codes: 0 fine, 1 failed, 2 usage.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/cluster.sh"

servers=3
capacity_percent=10
dram=
keep=0
bench_flags=()

usage_error() {
  echo "quickstart: $*; --help says what there is" >&2
  exit 2
}

while [[ $# -gt 0 ]]; do
  case $1 in
    --servers | --capacity-percent | --dram)
      [[ -n ${2:-} ]] || usage_error "$1 needs a value"
      case $1 in
        --servers) servers=$2 ;;
        --capacity-percent) capacity_percent=$2 ;;
        --dram) dram=$2 ;;
      esac
      shift
      ;;
    --keep) keep=1 ;;
    -h | --help)
      sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) bench_flags+=("$1") ;;
  esac
  shift
done
[[ $servers =~ ^[1-9][0-9]?$ ]] || usage_error "--servers $servers: 1 to 99 are allowed"
[[ $capacity_percent =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage_error "--capacity-percent $capacity_percent is not a number"

folder=
step_started=0
step_log=
bench_pid=

# Whatever happens, nothing is left: runs at the end, on Ctrl-C and when the terminal goes away.
clean_up() {
  local code=$?
  trap - EXIT INT TERM HUP
  if [[ -n $bench_pid ]] && kill -0 "$bench_pid" 2>/dev/null; then
    kill -TERM "$bench_pid" 2>/dev/null
    wait "$bench_pid" 2>/dev/null || true
  fi
  if ((code != 0)) && [[ -n $step_log && -s $step_log ]]; then
    echo "failed; the end of the log:" >&2
    tail -n 25 "$step_log" >&2
  fi
  if [[ -n $folder ]] && ! ((keep && code == 0)); then
    cluster_stop "$folder" || ((code != 0)) || code=1
    rm -rf "$folder"
  fi
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

begin() {
  step_started=$SECONDS
  printf '%-46s' "$1 …"
}
done_after() { printf ' %4d s\n' $((SECONDS - step_started)); }

# Memory for each server: its share of the capacity in blocks of 16 KiB, half as much again for headers, rounding and an
# uneven spread, and two segments in preparation.
dram_for_capacity() {
  awk -v percent="$capacity_percent" -v servers="$servers" 'BEGIN {
    share = 183000 * 16384 * percent / 100 / servers
    bytes = share * 1.5 + 128 * 1048576
    if (bytes < 256 * 1048576) bytes = 256 * 1048576
    printf "%.0f", bytes }'
}

folder=$(mktemp -d /tmp/ems-quickstart-XXXXXX)
step_log=$folder/step.log

begin "installing what is missing"
"$here/install_deps.sh" >"$step_log" 2>&1
done_after

begin "building (release)"
cmake --preset release -S "$CLUSTER_ROOT" >"$step_log" 2>&1
ninja -C "$CLUSTER_ROOT/build/release" mp-controller mp-server emsctl ems-bench ems-pdc >"$step_log" 2>&1
done_after
: >"$step_log"

begin "starting 1 controller and $servers servers"
CLUSTER_SERVER_FLAGS=(--set "dram.bytes=${dram:-$(dram_for_capacity)}")
cluster_start "$folder" "$servers"
done_after

controller=$(cluster_controller "$folder")
echo "replaying the trace:"
step_started=$SECONDS
"$CLUSTER_BIN/ems-bench" trace --controller "$controller" --capacity-percent "$capacity_percent" --gate \
  "${bench_flags[@]}" &
bench_pid=$!
wait "$bench_pid"
bench_pid=
printf '%-46s' "replayed"
done_after

echo "serving conversations, each request with EMS and without:"
step_started=$SECONDS
"$CLUSTER_BIN/ems-bench" serve --controller "$controller" --prompts 6 --conversations 3 --rounds 3 --brief \
  --gate exact &
bench_pid=$!
wait "$bench_pid"
bench_pid=
printf '%-46s' "served"
done_after

# A model that was trained on manual pages; its KV goes to the same pool.
begin "asking a small model for a sentence"
"$CLUSTER_BIN/ems-pdc" --set model.preset=demo --set model.mtp=on --set http_listen=127.0.0.1:0 \
  --set "pool.controller=$controller" --ready-file "$folder/loop.json" >"$step_log" 2>&1 &
bench_pid=$!
for ((tries = 0; tries < 300; ++tries)); do
  [[ -s $folder/loop.json ]] && kill -0 "$bench_pid" 2>/dev/null && break
  sleep 0.1
done
loop=$(sed -n 's/.*"http":"\([^"]*\)".*/\1/p' "$folder/loop.json")
answer=$(curl -sSf --retry 20 --retry-all-errors --retry-delay 1 --max-time 60 "http://$loop/v1/completions" \
  -H 'Content-Type: application/json' \
  -d '{"model": "ems-demo", "prompt": "If the file does not exist, ", "max_tokens": 120, "temperature": 0.5, "seed": 1}')
kill -TERM "$bench_pid" && wait "$bench_pid"
bench_pid=
done_after
echo "  If the file does not exist, $(sed -e 's/.*"text":"\(\([^"\\]\|\\.\)*\)".*/\1/' -e 's/\\n/ /g' <<<"$answer")"

if ((keep)); then
  cat <<TEXT
The cluster runs on; its logs are in $folder. Try:
  export EMS_CONTROLLER=$controller PATH=$CLUSTER_BIN:\$PATH
  emsctl status
  echo hello | emsctl put greeting - && emsctl get greeting -
Stop it and remove its files:
  $here/cluster.sh stop $folder
TEXT
else
  begin "stopping everything"
  cluster_stop "$folder"
  done_after
fi
