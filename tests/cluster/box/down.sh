#!/bin/bash
# down.sh: ends everything that up.sh and node.sh started, and nothing else. Binaries, images and keys stay.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if [ "${1:-}" != --locked ]; then
  exec 9>"$BOX/lock"
  flock 9
fi
for node in "${NODES[@]}"; do "$HERE/node.sh" down "$node"; done
for process in kube-scheduler kube-controller-manager kube-apiserver etcd; do stop $process; done
"$HERE/net.sh" down
for folder in /sys/fs/cgroup/box /sys/fs/cgroup/*/box; do
  [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true
done
