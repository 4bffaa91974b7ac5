# Shared by every script here: names, address ranges and a few helpers. To be sourced.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# All state: binaries, images, keys, etcd, nodes, logs, pid files. Each part is made once and kept.
BOX=$(realpath -m "${SHARDLINE_BOX:-${XDG_CACHE_HOME:-$HOME/.cache}/shardline-box}")
BIN=$BOX/bin
IMAGES=$BOX/images
PKI=$BOX/pki
LOG=$BOX/log
RUN=$BOX/run
NODES=(n0 n1 n2)
BOXNET=172.30.0                      # nodes, on a bridge of this machine; the API server is at its end of it
APISERVER=$BOXNET.1
PODNET=10.200                        # pods of node nI: $PODNET.I.0/24
SVCNET=10.201                        # services: $SVCNET.0.0/16
CLUSTER=10.200.0.0/15                # pods and services
DNSIP=$SVCNET.0.10
ETCD=http://127.0.0.1:23790
export KUBECONFIG=$BOX/admin.kubeconfig
export PATH=$BIN:$PATH:/usr/local/sbin:/usr/sbin:/sbin
mkdir -p "$BIN" "$IMAGES" "$LOG" "$RUN"

node_ip() { echo "$BOXNET.$((10 + ${1#n}))"; }

# A pid alone may be somebody else's by now: the time at which the process started is kept beside it.
started() { awk '$3 != "Z" {print $22}' "/proc/$1/stat" 2>/dev/null; }

alive() {
  local pid since
  read -r pid since 2>/dev/null <"$RUN/$1.pid" || return 1
  [ -n "$since" ] && [ "$(started "$pid")" = "$since" ]
}

# start NAME COMMAND...: a background process with a pid file and a log; nothing if it runs already.
start() {
  local name=$1 pid; shift
  alive "$name" && return 0
  setsid "$@" >>"$LOG/$name.log" 2>&1 </dev/null 9>&- &
  pid=$!
  echo "$pid $(started "$pid")" >"$RUN/$name.pid"
}

# stop NAME [SIGNAL]: ends exactly that process and waits until it is gone.
stop() {
  local pid _
  alive "$1" || { rm -f "$RUN/$1.pid"; return 0; }
  read -r pid _ <"$RUN/$1.pid"
  kill "-${2:-TERM}" "$pid" || true
  for _ in $(seq 100); do alive "$1" || break; sleep 0.1; done
  ! alive "$1" || kill -KILL "$pid" || true
  rm -f "$RUN/$1.pid"
}

# wait_for SECONDS COMMAND...: until COMMAND succeeds.
wait_for() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "timed out waiting for: $* (logs: $LOG)" >&2; return 1; }
    sleep 0.2
  done
}

# image NAME:TAG SOURCE MKIMAGE-ARGUMENTS...: the archive of an image; one that is newer than SOURCE stays.
image() {
  local name=$1 source=$2 out; shift 2
  out=$IMAGES/$(tr : - <<<"$name").tar
  if [ ! "$out" -nt "$source" ] || [ ! "$out" -nt "$HERE/mkimage.py" ]; then
    python3 "$HERE/mkimage.py" "$out" "localhost/$name" "$@"
  fi
}
