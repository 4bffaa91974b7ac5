#!/bin/bash
# deps.sh: the Debian packages that the cluster needs (root). Starts no service.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
commands=(containerd ctr runc iptables nft ip conntrack nsenter debootstrap gcc openssl)
lacks() {
  local each
  for each in "${commands[@]}"; do command -v "$each" >/dev/null || return 0; done
  [ ! -x /usr/lib/cni/bridge ] || [ ! -e /usr/include/stdlib.h ]
}
lacks || exit 0
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then                   # it keeps a package from starting its service
  trap 'rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
fi
apt-get update -qq
apt-get install -qq --yes --no-install-recommends containerd runc containernetworking-plugins iptables nftables \
  iproute2 conntrack util-linux debootstrap gcc libc6-dev openssl >/dev/null
