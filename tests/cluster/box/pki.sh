#!/bin/bash
# pki.sh: keys, certificates and kubeconfigs, valid for ten years. Keeps what is there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
mkdir -p "$PKI"
cd "$PKI"

ca() {  # ca NAME CN
  [ -s "$1.crt" ] && return
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$2" -days 3650 -out "$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
}
cert() {  # cert NAME CA SUBJECT [SANs]
  [ -s "$1.crt" ] && return
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -new -key "$1.key" -subj "$3" -out "$1.csr"
  { echo "basicConstraints=CA:FALSE"; echo "keyUsage=critical,digitalSignature,keyEncipherment"
    echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "${4:-}" ] || echo "subjectAltName=$4"; } >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 3650 \
    -extfile "$1.ext" -out "$1.crt" 2>/dev/null
  rm -f "$1.csr" "$1.ext"
}
kubeconfig() {  # kubeconfig FILE CERTNAME
  cat >"$1" <<Y
apiVersion: v1
kind: Config
clusters:
- name: box
  cluster: {server: "https://$APISERVER:6443", certificate-authority-data: $(base64 -w0 ca.crt)}
users:
- name: $2
  user: {client-certificate-data: $(base64 -w0 "$2.crt"), client-key-data: $(base64 -w0 "$2.key")}
contexts:
- name: box
  context: {cluster: box, user: $2}
current-context: box
Y
}

ca ca box-ca
ca front-proxy-ca box-front-proxy-ca
service=kubernetes.default.svc
cert apiserver ca /CN=kube-apiserver \
  "IP:$APISERVER,IP:$SVCNET.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:$service,DNS:$service.cluster.local"
cert kubelet-client ca /O=system:masters/CN=apiserver-kubelet-client
cert admin ca /O=system:masters/CN=box-admin
cert kcm ca /CN=system:kube-controller-manager
cert scheduler ca /CN=system:kube-scheduler
cert kube-proxy ca /CN=system:kube-proxy
cert front-proxy front-proxy-ca /CN=front-proxy-client
if [ ! -s sa.pub ]; then
  openssl ecparam -name prime256v1 -genkey -noout -out sa.key
  openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
fi
for c in admin kcm scheduler kube-proxy; do kubeconfig "$BOX/$c.kubeconfig" $c; done

for node in "${NODES[@]}"; do   # the node authorizer wants exactly this subject
  cert "node-$node" ca "/O=system:nodes/CN=system:node:$node" "IP:$(node_ip "$node"),DNS:$node"
  kubeconfig "$BOX/node-$node.kubeconfig" "node-$node"
done
