#!/bin/bash
# images.sh: the image archives that every node imports: pause, CoreDNS, the training operator, and a Debian base with
# Python. Made again when what is in them is newer. No registry is asked; the base comes from the machine's own mirror.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

image() {  # image NAME:TAG SOURCE MKIMAGE-ARGUMENTS...   an archive newer than SOURCE stays
  local name=$1 source=$2 out; shift 2
  out=$IMAGES/$(tr : - <<<"$name").tar
  if [ ! "$out" -nt "$source" ] || [ ! "$out" -nt "$HERE/mkimage.py" ]; then
    python3 "$HERE/mkimage.py" "$out" "localhost/$name" "$@"
  fi
}

pause() {
  [ "$BIN/pause" -nt "$HERE/pause.c" ] || gcc -static -Os -s -o "$BIN/pause" "$HERE/pause.c"
  image pause:1 "$BIN/pause" --file "$BIN/pause:/pause" --entry /pause
}

base() {
  local root=$BOX/rootfs mirror
  if [ ! -e "$root/.whole" ]; then
    rm -rf "$root"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -1)
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" $mirror \
      >"$LOG/debootstrap.log"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    chmod 755 "$root/root"           # a Python below /root, mounted there, has to be reachable for every user
    touch "$root/.whole"
  fi
  image base:1 "$root/.whole" --rootfs "$root"
}

pause
image coredns:1 "$BIN/coredns" --file "$BIN/coredns:/coredns" --entry /coredns
for operator in "$BIN"/training-operator-*; do
  mkdir -p "$BOX/empty"
  image "$(basename "$operator" | sed 's/-\([0-9.]*\)$/:\1/')" "$operator" \
    --file "$operator:/manager" --file "$BOX/empty:/tmp" --entry /manager
done
base
