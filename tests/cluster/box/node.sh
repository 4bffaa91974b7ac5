#!/bin/bash
# node.sh up|kill|down NODE: a node is one process tree in PID, mount and network namespaces of its own: containerd,
# kubelet, kube-proxy and all containers. `kill` is a power cut: SIGKILL to its first process takes everything along;
# `up` brings it back with what was on its disk. `down` removes its network too.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
verb=$1 node=$2
i=${node#n}
D=$BOX/$node
ip=$(node_ip "$node")

configure() {
  mkdir -p "$D"/{cni,kubelet,log-containers,log-pods,var-lib-cni,containerd,imported}
  rm -rf "$D/ipam"                       # no pod has an address after a power cut
  cat >"$D/containerd.toml" <<TOML
version = 2
root = "$D/containerd"
state = "/run/containerd"
[grpc]
  address = "$D/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true          # without CAP_SYS_RESOURCE runc fails where it has to lower the score
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$D/cni"
TOML
  cat >"$D/cni/10-box.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "box", "plugins": [
  {"type": "bridge", "bridge": "cni-$node", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
   "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$D/ipam", "ranges": [[{"subnet": "$PODNET.$i.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
  cat >"$D/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $ip
healthzBindAddress: 127.0.0.1
readOnlyPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $PKI/node-$node.crt
tlsPrivateKeyFile: $PKI/node-$node.key
clusterDNS: [$DNSIP]
clusterDomain: cluster.local
cgroupDriver: cgroupfs
cgroupRoot: /box/$node
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://$D/containerd.sock
imageGCHighThresholdPercent: 100          # nothing could pull a removed image again
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
podPidsLimit: 4096
serializeImagePulls: false
syncFrequency: 5s                         # a changed Secret reaches a pod in seconds: the operator waits for one
# A node that is gone is NotReady after some 6 s: the controller manager's half of this is in up.sh.
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 4
shutdownGracePeriod: 0s
YAML
  cat >"$D/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $BOX/kube-proxy.kubeconfig}
clusterCIDR: $PODNET.0.0/16
hostnameOverride: $node
bindAddress: $ip
nodePortAddresses: ["$BOXNET.0/24"]
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
}

# The kubelet wants its cgroupRoot to exist, in version 1 in every hierarchy, with every controller handed down to it.
cgroups() {
  local top=/sys/fs/cgroup folder each
  if [ -e $top/cgroup.controllers ]; then
    mkdir -p "$top/box/$node"
    for folder in $top $top/box; do
      for each in $(cat $folder/cgroup.controllers); do
        echo "+$each" 2>/dev/null >$folder/cgroup.subtree_control || true
      done
    done
    return
  fi
  for folder in $top/*/; do
    [ "$folder" = $top/unified/ ] || mkdir -p "$folder/box/$node"
  done
  for folder in $top/cpuset/box "$top/cpuset/box/$node"; do
    cat $top/cpuset/cpuset.cpus >"$folder/cpuset.cpus"
    cat $top/cpuset/cpuset.mems >"$folder/cpuset.mems"
  done
}

network() {  # a network namespace of its own, with one cable to the bridge between the nodes
  [ -e "/run/netns/box-$node" ] || ip netns add "box-$node"
  ip link show "v-$node" >/dev/null 2>&1 || ip link add "v-$node" type veth peer name eth0 netns "box-$node"
  ip link set "v-$node" master boxbr up
  ip -n "box-$node" link set lo up
  ip -n "box-$node" addr replace "$ip/24" dev eth0
  ip -n "box-$node" link set eth0 up
  ip -n "box-$node" route replace default via $BOXNET.1
  ip route replace "$PODNET.$i.0/24" via "$ip"
}

images() {  # what the node's containerd has not yet, or not in this version
  local each seen
  for each in "$IMAGES"/*.tar; do
    seen=$D/imported/$(basename "$each")
    [ "$seen" -nt "$each" ] && continue
    ctr -a "$D/containerd.sock" -n k8s.io images import "$each" >/dev/null
    touch "$seen"
  done
}

ready() {  # reported by this start, not left from before
  local condition
  condition=$(kubectl get node "$node" \
    -o jsonpath='{range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{end}')
  [ "${condition% *}" = True ] && [[ ! "${condition#* }" < "$began" ]]
}

up() {
  if alive "$node"; then
    images
    return
  fi
  began=$(date -u +%FT%TZ)
  configure
  cgroups
  network
  rm -f "$D/containerd.sock"
  # nsenter, as `ip netns exec` would mount a fresh /sys, without the cgroups.
  start "$node" nsenter "--net=/run/netns/box-$node" \
    unshare --pid --mount --uts --ipc --fork --kill-child "$0" init "$node"
  wait_for 30 ctr -a "$D/containerd.sock" version
  images
  wait_for 90 ready
}

init() {  # the first process of the node
  mount --make-rprivate /
  mount -t proc proc /proc
  mount -t tmpfs tmpfs /run              # as fresh as after a boot
  mkdir -p /run/netns /var/lib/kubelet /var/lib/cni /var/log/containers /var/log/pods
  mount --bind "$D/kubelet" /var/lib/kubelet
  mount --bind "$D/var-lib-cni" /var/lib/cni
  mount --bind "$D/log-containers" /var/log/containers
  mount --bind "$D/log-pods" /var/log/pods
  mount --make-rshared /
  hostname "$node"
  echo 1 >/proc/sys/net/ipv4/ip_forward
  # For a packet from a pod to a service whose pod is on the same bridge; where br_netfilter is a module, load it.
  echo 1 2>/dev/null >/proc/sys/net/bridge/bridge-nf-call-iptables || true
  containerd --config "$D/containerd.toml" >>"$LOG/$node-containerd.log" 2>&1 &
  wait_for 30 ctr -a "$D/containerd.sock" version
  kept_running kubelet --config="$D/kubelet.yaml" --kubeconfig="$BOX/node-$node.kubeconfig" \
    --hostname-override="$node" --node-ip="$ip" --node-labels="box/node=$node" --v=1 &
  kept_running kube-proxy --config="$D/kube-proxy.yaml" &
  wait
}

kept_running() {
  while :; do
    "$@" >>"$LOG/$node-$1.log" 2>&1 || true
    sleep 1
  done
}

down() {
  stop "$node" KILL
  ip link del "v-$node" 2>/dev/null || true
  ip netns del "box-$node" 2>/dev/null || true
  ip route del "$PODNET.$i.0/24" 2>/dev/null || true
}

case $verb in
  up | init | down) $verb ;;
  kill) stop "$node" KILL ;;
  *) echo "node.sh: no verb $verb" >&2; exit 2 ;;
esac
