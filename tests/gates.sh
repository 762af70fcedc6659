#!/usr/bin/env bash
# Checks the gates of ems-bench, on clusters of its own.
#   tests/gates.sh exact    counts, bytes and hit rates: the same on every machine, busy or not; minutes
#   tests/gates.sh timed    times and rates as well, at full size; the machine has to be idle, half an hour or more
# Needs mp-controller, mp-server, ems-pdc and ems-bench (and, for `engines`, ems_python) in EMS_BIN (build/release/bin).
# One line a command: ok, or FAILED and the gates that failed. The last line counts commands.
# Exit codes: 0 all passed, 1 something failed, 2 usage. Output of the commands stays in build/logs/gates/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

MODE=${1:-}
case $MODE in
  exact | timed) ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac
(($# == 1)) || { usage >&2 && exit 2; }

# shellcheck source=deploy/cluster.sh disable=SC1091
. deploy/cluster.sh
BENCH=$CLUSTER_BIN/ems-bench
LOGS=$PWD/build/logs/gates
SCRATCH=$(mktemp -d /tmp/ems-gates-XXXXXX) # short: socket paths have 107 characters
CLUSTER=$SCRATCH/cluster
FAILING_LINES=10
passed=0
failed=0

clean_up() {
  if [[ -d $CLUSTER ]]; then cluster_stop "$CLUSTER" || true; fi
  rm -rf "$SCRATCH"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# open_cluster SERVERS [FLAG…]: a cluster of servers with these flags, instead of the one before.
open_cluster() {
  local servers=$1
  shift
  close_cluster
  # shellcheck disable=SC2034 # read by cluster_start
  CLUSTER_SERVER_FLAGS=("$@")
  cluster_start "$CLUSTER" "$servers"
  EMS_CONTROLLER=$(cluster_controller "$CLUSTER")
  export EMS_CONTROLLER
}

close_cluster() {
  unset EMS_CONTROLLER
  [[ -d $CLUSTER ]] || return 0
  cluster_stop "$CLUSTER" || true
  rm -rf "$CLUSTER"
}

# gate NAME COMMAND [FLAG…]: runs a command of ems-bench and says whether its gates hold.
gate() {
  local name=$1 log=$LOGS/$MODE-${1//[^a-z0-9]/_}.log start=$SECONDS
  shift
  if "$BENCH" "$@" >"$log" 2>&1 </dev/null; then
    passed=$((passed + 1))
    printf '%-28s ok      %4d s\n' "$name" $((SECONDS - start))
    return
  fi
  failed=$((failed + 1))
  printf '%-28s FAILED  %4d s\n' "$name" $((SECONDS - start))
  # What failed: gates, and what has no gate. Nothing of either: the end of the output.
  { grep -E '^gate .* fail$|^ems-bench ' "$log" || tail -n "$FAILING_LINES" "$log"; } |
    grep -v '^ems-bench [a-z]*: .* servers' | head -n "$FAILING_LINES" | sed 's/^/    /' || true
}

exact() {
  gate paper paper --gate exact
  gate memory memory --gate exact
  gate control control --quick --gate exact
  gate fairness fairness --quick --gate exact
  gate ssd ssd --folder "$SCRATCH" --quick --only server --gate exact
  gate serve serve --model tiny --quick --brief --gate exact

  open_cluster 3 --set dram.bytes=384MiB
  local percent
  for percent in 5 10 25; do
    gate "trace at $percent %" trace --block-bytes 4KiB --capacity-percent "$percent" --timeout 10 --gate exact
  done
  gate context context --no-paged --gate exact
  gate model model --bytes 16MB --source-rate 64MB --instances 4 --switch-bytes 4MB --switches 16 --gate exact
  gate store store --quick --gate exact
  gate local local --quick --peers none --gate exact

  # A twentieth of the blocks fits DRAM, all of them the SSDs.
  open_cluster 3 --set dram.bytes=384MiB --set ssd.capacity_bytes=2GiB
  gate 'trace with SSDs' trace --block-bytes 4KiB --capacity-percent 5 --timeout 10 --expect-hit-rate 36
}

timed() {
  echo "load is $(cut -d ' ' -f 1 /proc/loadavg); timed gates are for an idle machine"
  gate fabric fabric --gate
  gate memory memory --gate
  gate control control --gate
  gate fairness fairness --gate
  gate hot hot --gate
  gate elastic elastic --rate 80 --window 60 --lease-ms 5000 --gate # 8 minutes
  gate engine engine --gate
  gate engines engines --gate
  gate ssd ssd --gate
  gate serve serve --brief --gate

  open_cluster 3 --set dram.bytes=1GiB
  gate store store --transport tcp --gate
  gate trace trace --gate
  gate context context --pause-servers --gate
  gate model model --gate

  open_cluster 1 --set dram.bytes=2GiB
  gate local local --gate
  gate 'store beside peers' store --peers --threads 1,2,8 --gate # 3 minutes at most
}

[[ -x $BENCH ]] || { echo "gates.sh: no $BENCH: build it with ninja -C build/release ems-bench" >&2; exit 1; }
mkdir -p "$LOGS"
"$MODE"
close_cluster
echo "took $((SECONDS / 60)) min $((SECONDS % 60)) s"
echo "$passed passed, $failed failed"
((failed == 0))
