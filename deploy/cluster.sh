#!/usr/bin/env bash
# A small cluster on this machine: one controller and some servers on free loopback ports, everything in one folder.
#   deploy/cluster.sh start DIR [N]    one controller and N servers (3), DIR is made
#   deploy/cluster.sh restart DIR N    restarts server N; what it has in DRAM is kept
#   deploy/cluster.sh stop DIR         stops them and removes DIR
#   deploy/cluster.sh status DIR       one line a daemon: name, pid, address
# Programs come from EMS_BIN (build/release/bin). Sourced by quickstart.sh, which uses the functions below.
# Bounds: a daemon has 20 s to become ready and 15 s to stop; then it is killed and that is said.

CLUSTER_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLUSTER_BIN=${EMS_BIN:-$CLUSTER_ROOT/build/release/bin}
CLUSTER_READY_SECONDS=20
CLUSTER_STOP_SECONDS=15
# More flags for each server, e.g. (--set dram.bytes=2GiB); set before cluster_start.
CLUSTER_SERVER_FLAGS=()

# cluster_field FILE KEY: a text or number of a ready file, which is one flat JSON object.
cluster_field() {
  sed -nE "s/.*\"$2\": *\"?([^\",}]*)\"?.*/\1/p" "$1"
}

# True while PID is one of our daemons; a zombie or a stranger with a used-again number is not.
cluster_is_running() {
  [[ $(cat "/proc/$1/comm" 2>/dev/null) == mp-* && $(readlink "/proc/$1/exe" 2>/dev/null) ]]
}

# cluster_spawn DIR NAME PROGRAM FLAGS…: starts a daemon in a session of its own; log, pid and ready file are DIR/NAME.*.
cluster_spawn() {
  local dir=$1 name=$2 program=$3
  shift 3
  setsid "$CLUSTER_BIN/$program" --ready-file "$dir/$name.ready" "$@" \
    </dev/null >"$dir/$name.log" 2>&1 &
  echo $! >"$dir/$name.pid"
}

# Waits until the ready file of NAME is there. Fails with the end of its log when it died or took too long.
cluster_wait_ready() {
  local dir=$1 name=$2 pid until=$((SECONDS + CLUSTER_READY_SECONDS))
  pid=$(<"$dir/$name.pid")
  until [[ -s $dir/$name.ready ]]; do
    if ! kill -0 "$pid" 2>/dev/null; then
      echo "$name ended before it was ready; the end of its log:" >&2
    elif ((SECONDS >= until)); then
      echo "$name was not ready after $CLUSTER_READY_SECONDS s; the end of its log:" >&2
    else
      sleep 0.05
      continue
    fi
    tail -n 15 "$dir/$name.log" >&2
    return 1
  done
}

# cluster_spawn_holder DIR I: keeps the memory of server I while it restarts.
cluster_spawn_holder() {
  setsid "$CLUSTER_BIN/mp-server" --hold "$1/server-$2.hold" --ready-file "$1/holder-$2.ready" \
    </dev/null >"$1/holder-$2.log" 2>&1 &
  echo $! >"$1/holder-$2.pid"
  cluster_wait_ready "$1" "holder-$2"
}

cluster_spawn_server() {
  cluster_spawn "$1" "server-$2" mp-server --set "name=server-$2" \
    --set "controller=$(cluster_controller "$1")" --set "data_dir=$1/server-$2" \
    --set listen=127.0.0.1:0 --set http_listen=127.0.0.1:0 --set "restart.holder=$1/server-$2.hold" \
    --set "unix_path=$1/server-$2.sock" "${CLUSTER_SERVER_FLAGS[@]}"
}

# cluster_restart DIR I: with a new address, and everything in DRAM.
cluster_restart() {
  cluster_terminate "$(<"$1/server-$2.pid")" || return 1
  rm -f "$1/server-$2.ready"
  cluster_spawn_server "$1" "$2"
  cluster_wait_ready "$1" "server-$2"
}

# cluster_start DIR N: prints nothing; afterwards cluster_controller DIR is the address to give to tools.
cluster_start() {
  local dir=$1 count=$2 i
  [[ -x $CLUSTER_BIN/mp-controller && -x $CLUSTER_BIN/mp-server ]] || {
    echo "no mp-controller and mp-server in $CLUSTER_BIN: build them with" \
      "cmake --preset release && ninja -C build/release mp-controller mp-server" >&2
    return 1
  }
  mkdir -p "$dir" && chmod 700 "$dir" || return 1
  cluster_spawn "$dir" controller mp-controller --set "data_dir=$dir/controller" \
    --set listen=127.0.0.1:0 --set http_listen=127.0.0.1:0
  cluster_wait_ready "$dir" controller || return 1
  for ((i = 1; i <= count; i++)); do
    cluster_spawn_holder "$dir" "$i" || return 1
    cluster_spawn_server "$dir" "$i"
  done
  for ((i = 1; i <= count; i++)); do
    cluster_wait_ready "$dir" "server-$i" || return 1
  done
}

cluster_controller() { cluster_field "$1/controller.ready" address; }

cluster_status() {
  local file name pid
  for file in "$1"/{controller,server-*}.ready; do
    [[ -e $file ]] || continue
    name=$(basename "$file" .ready)
    pid=$(<"$1/$name.pid")
    printf '%-12s pid %-8s data %-22s http %s%s\n' "$name" "$pid" "$(cluster_field "$file" address)" \
      "$(cluster_field "$file" http)" "$(cluster_is_running "$pid" || echo '  (not running)')"
  done
}

# cluster_terminate PID…: SIGTERM, a bounded wait, then SIGKILL. False when a kill was needed.
cluster_terminate() {
  local pid until=$((SECONDS + CLUSTER_STOP_SECONDS)) clean=0
  for pid in "$@"; do
    if cluster_is_running "$pid"; then kill -TERM "$pid" 2>/dev/null; fi
  done
  for pid in "$@"; do
    while cluster_is_running "$pid" && ((SECONDS < until)); do sleep 0.05; done
    if cluster_is_running "$pid"; then
      echo "pid $pid did not stop within $CLUSTER_STOP_SECONDS s: killed" >&2
      kill -KILL "$pid" 2>/dev/null
      clean=1
    fi
  done
  return "$clean"
}

# cluster_stop DIR: servers first, so that they can tell the controller that they leave.
cluster_stop() {
  local dir=$1 file servers=() clean=0
  for file in "$dir"/server-*.pid; do
    if [[ -s $file ]]; then servers+=("$(<"$file")"); fi
  done
  cluster_terminate "${servers[@]}" || clean=1
  servers=()
  for file in "$dir"/holder-*.pid; do
    if [[ -s $file ]]; then servers+=("$(<"$file")"); fi
  done
  cluster_terminate "${servers[@]}" || clean=1
  if [[ -s $dir/controller.pid ]]; then cluster_terminate "$(<"$dir/controller.pid")" || clean=1; fi
  return "$clean"
}

cluster_main() {
  local usage
  usage=$(sed -n '2,7s/^# *//p' "${BASH_SOURCE[0]}")
  case "${1:-}" in
    -h | --help) echo "$usage" ;;
    start)
      [[ -n ${2:-} && ! -e $2 ]] || { echo "cluster: start needs a DIR that does not exist yet" >&2; return 2; }
      [[ ${3:-3} =~ ^[1-9][0-9]?$ && $# -le 3 ]] || {
        echo "cluster: start DIR N: N is a number of servers, 1 to 99, not '${*:3}'" >&2
        return 2
      }
      local dir
      dir=$(realpath -m "$2")
      if ! cluster_start "$dir" "${3:-3}"; then
        cluster_stop "$dir"
        return 1
      fi
      cluster_status "$dir"
      echo "to use it: export EMS_CONTROLLER=$(cluster_controller "$dir") PATH=$CLUSTER_BIN:\$PATH"
      ;;
    stop | status)
      [[ -s ${2:-}/controller.pid ]] || { echo "cluster: no cluster in '${2:-}'" >&2; return 2; }
      if [[ $1 == status ]]; then
        cluster_status "$2"
      else
        cluster_stop "$2"
        rm -rf "$2"
      fi
      ;;
    restart)
      [[ -s ${2:-}/server-${3:-}.pid ]] || { echo "cluster: no server '${3:-}' in '${2:-}'" >&2; return 2; }
      cluster_restart "$(realpath "$2")" "$3" && cluster_status "$2"
      ;;
    *)
      echo "$usage" >&2
      return 2
      ;;
  esac
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  cluster_main "$@"
fi
