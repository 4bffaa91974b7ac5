#!/bin/bash
# operator.sh VERSION: called by up.sh. Installs the training operator, or puts this version in another's place, and
# waits until it answers.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
version=$1
objects=$BOX/operator-$version.yaml
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

render() {
  local module=github.com/kubeflow/training-operator source
  source=$(cd "$HERE/gomod/operator-$version" && go mod download $module && go list -m -f '{{.Dir}}' $module)
  cp -r "$HERE/operator" "$work"
  cp -r "$source/manifests" "$work/operator/manifests"
  chmod -R u+w "$work"
  sed -i "s/@VERSION@/$version/" "$work/operator/deployment.yaml"
  kubectl kustomize "$work/operator" >"$work/objects.yaml"
  mv "$work/objects.yaml" "$objects"
}

[ -s "$objects" ] && [ -z "$(find "$HERE/operator" -newer "$objects")" ] || render
kubectl apply --server-side --force-conflicts -f "$objects" >/dev/null
kubectl -n kubeflow rollout status deployment/training-operator --timeout=180s >/dev/null
# For a moment the API server may still call the pod before this one: wait for the webhook's own answer.
cat >"$work/probe.yaml" <<'YAML'
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: probe, namespace: default}
spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{name: pytorch, image: none}]}}}}}
YAML
wait_for 90 kubectl create --dry-run=server -f "$work/probe.yaml"
