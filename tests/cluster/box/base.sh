#!/bin/bash
# base.sh: the archive of the image localhost/base:1, Debian with Python. Called by images.sh, which has the lock, and by
# the tests of the images, which build on it. No registry is asked: the packages come from the machine's own mirror.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
if [ "${1:-}" != --locked ]; then
  exec 9>"$BOX/lock"
  flock 9
fi
root=$BOX/rootfs
if [ ! -e "$root/.whole" ]; then
  rm -rf "$root"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -1)
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" $mirror \
    >"$LOG/debootstrap.log"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  chmod 755 "$root/root"             # a Python below /root, mounted there, has to be reachable for every user
  touch "$root/.whole"
fi
image base:1 "$root/.whole" --rootfs "$root"
