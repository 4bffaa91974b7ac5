#!/bin/bash
# build.sh TARGET...: static binaries from pinned Go modules into $BIN. A target is a folder of gomod/, and is built
# again when its go.mod or go.sum changed.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export CGO_ENABLED=0

version() {  # the linker flags with which Kubernetes knows its version
  local package=k8s.io/component-base/version version major minor _
  version=$(sed -n 's/^require k8s.io.kubernetes //p' "$HERE/gomod/k8s/go.mod")
  IFS=. read -r major minor _ <<<"${version#v}"
  echo "-X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor" \
    "-X $package.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=$version"
}

build() {  # build TARGET LINKER-FLAGS OUTPUT PACKAGE...
  local target=$1 flags=$2 output=$3 sum began=$SECONDS; shift 3
  sum=$(cat "$HERE/gomod/$target"/* | sha256sum)
  [ "$(cat "$BIN/.$target" 2>/dev/null)" != "$sum" ] || return 0
  echo "building $target" >&2
  (cd "$HERE/gomod/$target" && nice go build -trimpath -buildvcs=false -ldflags "-s -w $flags" -o "$output" "$@") \
    >"$LOG/build-$target.log" 2>&1 || { tail -20 "$LOG/build-$target.log" >&2; return 1; }
  echo "$sum" >"$BIN/.$target"
  echo "built $target in $((SECONDS - began)) s" >&2
}

for target; do
  case $target in
    k8s) build k8s "$(version)" "$BIN/" \
      k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet,kube-proxy,kubectl} ;;
    etcd) build etcd "" "$BIN/etcd" go.etcd.io/etcd/server/v3 ;;
    coredns) build coredns "" "$BIN/coredns" . ;;
    operator-*) build "$target" "" "$BIN/training-$target" \
      github.com/kubeflow/training-operator/cmd/training-operator.v1 ;;
    *) echo "build.sh: no target $target" >&2; exit 2 ;;
  esac
done
