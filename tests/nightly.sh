#!/usr/bin/env bash
# The long versions of tests with a random part, the packages in a Debian of their own and under systemd, the container image, all
# commands of the documents, the pages in a browser; two hours or three: with a build of preset release, on an idle machine.
#   tests/nightly.sh [NAME…]    those alone; without a name all of them
# One line each: ok or FAILED, how long it took, and what it says of itself. Seeds are new ones each night, and in the logs,
# build/logs/nightly/. Exit codes: 0 all passed, 1 something failed, 2 usage.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

BIN=$PWD/build/release/bin
TESTS=$PWD/build/release/tests/bin
LOGS=$PWD/build/logs/nightly
FAILING_LINES=20
NAMES=(frames ssd data-dir controller elastic kills kills-tight power power-tight power-joins chaos failover connectors packages systemd container docs page simulate)
failed=0

case ${1:-} in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;; esac
for name in "$@"; do
  [[ " ${NAMES[*]} " == *" $name "* ]] || { echo "nightly.sh: no '$name'; there are ${NAMES[*]}" >&2; exit 2; }
done
(($#)) && NAMES=("$@")

# long NAME SUMMARY COMMAND…: SUMMARY is a pattern; the lines that match it are what it says of itself.
long() {
  local name=$1 summary=$2 start=$SECONDS word=ok
  shift 2
  [[ " ${NAMES[*]} " == *" $name "* ]] || return
  "$@" >"$LOGS/$name.log" 2>&1 </dev/null || word=FAILED
  printf '%-12s %-6s %5d s  %s\n' "$name" "$word" $((SECONDS - start)) \
    "$(grep -E "$summary" "$LOGS/$name.log" | paste -sd ';')"
  [[ $word == ok ]] && return
  failed=1
  tail -n "$FAILING_LINES" "$LOGS/$name.log" | sed 's/^/    /'
}

mkdir -p "$LOGS"
long frames '^[0-9]+ runs' env EMS_FRAME_RUNS=1000 "$TESTS/tests_fault" --source=tests/fault/frame_mix_test.cc
long ssd 'flips' env EMS_DAMAGE_FLIPS=1000 "$TESTS/tests_mp_server_ssd_concurrent" --source=tests/mp_server/ssd/damage_test.cc
long data-dir 'PASSED' env EMS_DAMAGE_FLIPS=1000 "$TESTS/tests_mp_server" --source=tests/mp_server/lease/data_dir_test.cc
long controller 'flips' env EMS_DAMAGE_FLIPS=1000 "$TESTS/tests_mp_controller" --source=tests/mp_controller/store_damage_test.cc
long elastic 'times' env EMS_PRESSURE_CYCLES=100 "$TESTS/tests_fault" --source=tests/fault/elastic_memory_test.cc
long kills '^[0-9]+ kills' "$BIN/ems-crashtest" --kills 1000
long kills-tight '^[0-9]+ kills' "$BIN/ems-crashtest" --kills 200 --tight
long power 'BROKEN|^repeat|runs of' "$BIN/ems-crashtest" --power --kills 5 --runs 160
long power-tight 'BROKEN|^repeat|runs of' "$BIN/ems-crashtest" --power --kills 5 --runs 40 --tight
long power-joins 'BROKEN|^repeat|runs of' "$BIN/ems-crashtest" --power --joins --kills 10 --runs 20
long chaos '^seed|BROKEN|^repeat|rounds' "$BIN/ems-chaos" --minutes 60 --quiet
long failover 'PASSED|FAILED' env EMS_FAILOVER=1 "$TESTS/tests_fault" --source=tests/fault/controller_failover_test.cc
long connectors 'EMS_STORM_SEED' env EMS_STORM_BYTES=$((1 << 30)) PYTHONPATH="$PWD/build/release/python" /usr/bin/python3 -B \
  tests/integrations/engines/storm_test.py
EMS_SOURCE_DIR=$PWD EMS_BUILD_DIR=$PWD/build/release \
  long packages 'skipped|^(python|c|c\+\+|curl):' /usr/bin/python3 -B tests/deploy/chroot_test.py
EMS_SOURCE_DIR=$PWD EMS_BUILD_DIR=$PWD/build/release \
  long systemd 'skipped|^(kill -9|wrong configuration|upgrade|reboot|purge):' /usr/bin/python3 -B tests/deploy/systemd_test.py
EMS_SOURCE_DIR=$PWD EMS_BUILD_DIR=$PWD/build/release PYTHONPATH="$PWD/tests/integrations/python" \
  long container 'skipped|^containers:' /usr/bin/python3 -B tests/deploy/image_test.py
EMS_DOCS=all EMS_SOURCE_DIR=$PWD EMS_BUILD_DIR=$PWD/build/release EMS_BIN=$BIN \
  PYTHONPATH="$PWD/tests/integrations/python:$PWD/tests/deploy" \
  long docs '^Ran' /usr/bin/python3 -B tests/docs/walk_test.py
EMS_BROWSER=required EMS_BIN=$BIN long page '^Ran' /usr/bin/python3 -B tests/e2e/pages_in_browser_test.py
long simulate 'seeds from' "$BIN/ems-simulate" --seeds 10000
exit $failed
