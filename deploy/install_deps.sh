#!/usr/bin/env bash
# Installs those of the Debian packages in packages.txt that are missing. Says nothing when all are there.
#   deploy/install_deps.sh [--check]     --check: only name what is missing, exit 1 if there is anything
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
  echo "install_deps: $*" >&2
  exit 1
}

missing_packages() {
  local package provided
  provided=$(dpkg-query -W -f '${db:Status-Abbrev} ${Provides}\n' | sed -nE 's/^.i *//p' | tr -d ' ' | tr ',' '\n' | sed 's/(.*//')
  while read -r package _; do
    [[ -z $package || $package == \#* ]] && continue
    # "ii": wanted and installed. A package known under an architecture suffix counts as well, and one that another provides
    # (npm comes with Node.js in packages that are not Debian's).
    dpkg-query -W -f '${db:Status-Abbrev}\n' "$package" 2>/dev/null | grep -q '^.i' && continue
    grep -qxF "$package" <<<"$provided" || echo "$package"
  done <"$here/packages.txt"
}

check_only=0
case "${1:-}" in
  '') ;;
  --check) check_only=1 ;;
  -h | --help)
    sed -n '2,3s/^# *//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  *)
    echo "install_deps: unknown option '$1'; --help says what there is" >&2
    exit 2
    ;;
esac

command -v dpkg-query >/dev/null || fail "this is not a Debian system: install what deploy/packages.txt lists by hand"
mapfile -t missing < <(missing_packages)
[[ ${#missing[@]} -eq 0 ]] && exit 0
if ((check_only)); then
  echo "missing: ${missing[*]}"
  exit 1
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
  command -v sudo >/dev/null ||
    fail "missing packages, and neither root nor sudo: ask for  apt-get install ${missing[*]}"
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "installing ${#missing[@]} packages: ${missing[*]}"
run_apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 "$@" </dev/null >>"$log" 2>&1
}

# Peers of the benchmarks and of tests come as services too. None of those is to start: neither now nor at the next boot.
services=()
for package in etcd-server memcached nginx-light prometheus redis-server; do
  service=${package%-light}
  if [[ " ${missing[*]} " == *" $package "* ]]; then services+=("${service/#etcd-server/etcd}"); fi
done
as_superuser() { "${as_root[@]}" "$@" >>"$log" 2>&1; }
policy=/usr/sbin/policy-rc.d  # what package scripts ask before they start a service
if [[ ${#services[@]} -gt 0 && ! -e $policy ]]; then
  no_start=$(mktemp)
  printf '#!/bin/sh\nexit 101\n' >"$no_start"
  trap 'as_superuser rm -f "$policy"; rm -f "$log" "$no_start"' EXIT
  as_superuser install -m 755 "$no_start" "$policy"
fi

# The package lists may be too old to find a package, or absent: fetch them only then.
if ! run_apt install -y --no-install-recommends "${missing[@]}"; then
  if ! { run_apt update && run_apt install -y --no-install-recommends "${missing[@]}"; }; then
    tail -n 20 "$log" >&2
    fail "apt-get failed; EMS needs Debian 12 (this is $(. /etc/os-release && echo "$PRETTY_NAME"))"
  fi
fi
for service in "${services[@]}"; do
  command -v systemctl >/dev/null || break
  as_superuser systemctl disable "$service" || echo "install_deps: $service may start at the next boot" >&2
done
