#!/bin/bash
# net.sh up|down: the bridge between the nodes, and what keeps every packet of the cluster on this machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
FORWARD=/proc/sys/net/ipv4/ip_forward

up() {
  local out
  [ -e "$RUN/ip_forward" ] || cat $FORWARD >"$RUN/ip_forward"
  ip link show boxbr >/dev/null 2>&1 || ip link add boxbr type bridge
  ip link set boxbr up
  ip addr replace $BOXNET.1/24 dev boxbr
  ip route replace unreachable $CLUSTER metric 9999    # pods and services that are not there
  echo 1 >$FORWARD
  out=$(ip -o route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -1)
  [ -z "$out" ] || nft -f - <<RULES
table inet box
delete table inet box
table inet box {
  chain forward { type filter hook forward priority -10; oifname "$out" drop; }
  chain output { type filter hook output priority 10; oifname "$out" ip daddr { $CLUSTER, $BOXNET.0/24 } drop; }
}
RULES
}

down() {
  nft delete table inet box 2>/dev/null || true
  ip link del boxbr 2>/dev/null || true
  ip route del unreachable $CLUSTER metric 9999 2>/dev/null || true
  if [ -s "$RUN/ip_forward" ]; then
    cat "$RUN/ip_forward" >$FORWARD
    rm "$RUN/ip_forward"
  fi
}

"$1"
