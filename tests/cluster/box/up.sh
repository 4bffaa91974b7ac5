#!/bin/bash
# up.sh [VERSION]: builds what is missing and starts a cluster of three nodes with DNS and the training operator, 1.9.4
# or the version given (1.9.3). What runs already is left as it is; a cluster that starts is empty.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
operator=${1:-1.9.4}
exec 9>"$BOX/lock"
flock 9                                     # two at once would build and start everything twice
"$HERE/deps.sh"
"$HERE/build.sh" etcd coredns "operator-$operator" k8s
"$HERE/images.sh"
if ! alive etcd; then
  "$HERE/down.sh" --locked                  # what a cluster that was not ended has left
  rm -rf "$BOX/etcd" "$PKI" "$LOG"/* "$BOX"/n?/{kubelet,log-*}
fi
"$HERE/pki.sh"
"$HERE/net.sh" up

start etcd etcd --name box --data-dir "$BOX/etcd" --listen-client-urls $ETCD --advertise-client-urls $ETCD \
  --listen-peer-urls http://127.0.0.1:23800 --initial-advertise-peer-urls http://127.0.0.1:23800 \
  --initial-cluster box=http://127.0.0.1:23800 --unsafe-no-fsync --logger zap --log-level warn

# It is outside the nodes, where no service address leads anywhere: routing by aggregator takes it to webhooks' pods.
start kube-apiserver kube-apiserver --enable-aggregator-routing=true \
  --bind-address=$APISERVER --advertise-address=$APISERVER --secure-port=6443 --etcd-servers=$ETCD \
  --client-ca-file="$PKI/ca.crt" --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
  --kubelet-certificate-authority="$PKI/ca.crt" --kubelet-client-certificate="$PKI/kubelet-client.crt" \
  --kubelet-client-key="$PKI/kubelet-client.key" --kubelet-preferred-address-types=InternalIP \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-account-key-file="$PKI/sa.pub" --service-account-signing-key-file="$PKI/sa.key" \
  --service-cluster-ip-range=$SVCNET.0.0/16 \
  --requestheader-client-ca-file="$PKI/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
  --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
  --requestheader-username-headers=X-Remote-User \
  --proxy-client-cert-file="$PKI/front-proxy.crt" --proxy-client-key-file="$PKI/front-proxy.key" --profiling=false
wait_for 120 kubectl get --raw=/readyz

client() {  # client NAME: how a part of the control plane reaches the API server and lets itself be asked
  echo --kubeconfig="$BOX/$1.kubeconfig" --authentication-kubeconfig="$BOX/$1.kubeconfig" \
    --authorization-kubeconfig="$BOX/$1.kubeconfig" --bind-address=127.0.0.1 --leader-elect=false --profiling=false
}
# The grace period is short so that a test of a lost node takes seconds; the kubelets' half is in node.sh.
start kube-controller-manager kube-controller-manager $(client kcm) \
  --root-ca-file="$PKI/ca.crt" --service-account-private-key-file="$PKI/sa.key" --use-service-account-credentials \
  --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
  --node-monitor-grace-period=6s --node-monitor-period=1s
start kube-scheduler kube-scheduler $(client scheduler)

for node in "${NODES[@]}"; do "$HERE/node.sh" up "$node" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job"; done
sed "s/@DNSIP@/$DNSIP/" "$HERE/coredns.yaml" | kubectl apply -f - >/dev/null
"$HERE/operator.sh" "$operator"
kubectl -n kube-system rollout status deployment/coredns --timeout=120s >/dev/null
