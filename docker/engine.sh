#!/usr/bin/env bash
# Provides a Docker engine with the images' base for the tests: the running one, or else a new one in DIR.
# Usage: eval "$(docker/engine.sh DIR)"   # prints: export DOCKER_HOST=…, or nothing if the running one is used
# Stop a new engine with: kill "$(cat DIR/docker.pid)"
set -euo pipefail
dir=${1:?usage: engine.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
base=$(sed -n 's/^ARG BASE=//p' "$here/../Dockerfile")
# Used without a registry: starts an engine and makes the base images from Debian's packages.
stand_ins=${STAND_INS:-$here/../../shared/tools/docker-here.sh}

has_base() { docker image inspect "$base" || docker pull "$base"; }
if { docker info && has_base; } >/dev/null 2>&1; then exit; fi
if [ -x "$stand_ins" ]; then exec "$stand_ins" "$dir"; fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "These tests need a Docker engine that has or can pull $base. Start one, and run again." >&2; exit 1
fi
if ! command -v dockerd >/dev/null; then
  { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io docker-compose iptables; } >&2
fi
mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
export DOCKER_HOST=unix://$dir/docker.sock
setsid dockerd --host "$DOCKER_HOST" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/docker.pid" >"$dir/dockerd.log" 2>&1 &
for _ in $(seq 60); do docker info >/dev/null 2>&1 && break; sleep 0.5; done
has_base >&2
printf 'export DOCKER_HOST=%q\n' "$DOCKER_HOST"
