#!/bin/bash
# image.sh add ARCHIVE | remove NAME: an image on all nodes, and off them. Called by a test session for its own image,
# which the next session has no use for.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
verb=$1 what=$2

on() { local node=$1; shift; ctr -a "$BOX/$node/containerd.sock" -n k8s.io images "$@"; }

add() { on "$1" import "$what" >/dev/null; }

remove() {  # by all the names it has: the kubelet's interface gives it one more
  local hash
  hash=$(on "$1" ls "name==$what" | awk 'NR == 2 {print $3}')
  [ -z "$hash" ] || on "$1" rm $(on "$1" ls -q "target.digest==$hash") >/dev/null
}

case $verb in
  add | remove) for node in "${NODES[@]}"; do $verb "$node" & jobs+=($!); done ;;
  *) echo "image.sh: no verb $verb" >&2; exit 2 ;;
esac
for job in "${jobs[@]}"; do wait "$job"; done
