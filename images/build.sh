#!/usr/bin/env bash
# images/build.sh light|training [options of the build tool, such as --build-arg BASE_IMAGE=...]
# Builds shardline-light or shardline-training from this tree, with buildah, podman or docker: whichever is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "shardline: $2" >&2; exit "$1"; }

target=${1:-}
case $target in light | training) shift ;; *) fail 2 "usage: images/build.sh light|training [options]" ;; esac

tool=
for each in buildah podman docker; do
    # docker's command alone builds nothing.
    if command -v "$each" >/dev/null && { [ "$each" != docker ] || docker info >/dev/null 2>&1; }; then tool=$each; break; fi
done
[ -n "$tool" ] || fail 3 "images need buildah, podman or a running docker: sudo apt-get install buildah"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || true)
[ -z "$(git status --porcelain 2>/dev/null)" ] || revision+=-modified

# The last stage is written here, not in the recipe with arguments: buildah looks for a layer by the text of its command, in
# which an argument is but a name, and would give sources with the same wheel the revision that was built before.
recipe=$(cat images/Dockerfile - <<EOF


FROM $target
LABEL org.opencontainers.image.version="$version" org.opencontainers.image.revision="$revision" \\
      org.opencontainers.image.source="${SOURCE:-}"
EOF
)

options=(--file - --tag "shardline-$target:$version")
# What pip and uv are told here holds in the build too, and stays out of the image.
for each in PIP_INDEX_URL UV_DEFAULT_INDEX; do [ -z "${!each:-}" ] || options+=(--build-arg "$each"); done
# buildah and podman call docker's default so.
[ "$tool" = docker ] || options+=(--layers)
exec "$tool" build "${options[@]}" "$@" . <<<"$recipe"
