#!/usr/bin/env bash
# Builds the image of deploy/container/Containerfile with docker, podman or buildah: the first of them that works here.
#   deploy/container/build.sh [--packages DIR] [--base IMAGE] [--tag TAG] [--with TOOL]
#     --packages DIR  Debian packages that deploy/make_debs.py has made; without it the sources are compiled in the container
#     --base IMAGE    Debian 12 (docker.io/library/debian:12-slim)
#     --tag TAG       name of the image (ems:VERSION)
# Exit codes: 0 built, 1 failed, 2 usage.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
packages='' base='' tool='' tag=ems:$(sed -nE 's/^project\(.* VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")

fail() { echo "build.sh: $2" >&2; exit "$1"; }

while (($#)); do
  case $1 in
    -h | --help) sed -n '2,7s/^# *//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --packages) packages=${2:-} ;;
    --base) base=${2:-} ;;
    --tag) tag=${2:-} ;;
    --with) tool=${2:-} ;;
    *) fail 2 "unknown option '$1'; --help says what there is" ;;
  esac
  [[ -n ${2:-} ]] || fail 2 "$1 needs a value"
  shift 2
done

# A client without its daemon, or without the rights to make containers, is not one that works.
works() { command -v "$1" >/dev/null && "$1" info >/dev/null 2>&1; }
if [[ -z $tool ]]; then
  for tool in docker podman buildah none; do works "$tool" && break; done
  [[ $tool != none ]] || fail 1 'neither docker, podman nor buildah works here'
fi

# HEALTHCHECK is no part of OCI's own format.
case $tool in
  docker) build=(docker build) ;;
  podman) build=(podman build --format docker) ;;
  buildah) build=(buildah build --format docker) ;;
  *) fail 2 "no tool '$tool'; there are docker, podman, buildah" ;;
esac
[[ -z $base ]] || build+=(--build-arg "BASE=$base")
context=$root
if [[ -n $packages ]]; then
  context=$(mktemp -d)
  trap 'rm -rf "$context"' EXIT
  mkdir -p "$context/packages" "$context/deploy/container"
  cp "$here/ems-healthy" "$context/deploy/container/"
  cp "$packages"/ems-{controller,server,tools}_*.deb "$context/packages/" || fail 1 "not all packages are in $packages"
  build+=(--build-arg PACKAGES=given)
fi
"${build[@]}" -f "$here/Containerfile" -t "$tag" "$context"
