#!/bin/bash
# images.sh: the image archives that every node imports: pause, CoreDNS, the training operator, and a Debian base with
# Python. Made again when what is in them is newer. No registry is asked.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

pause() {
  [ "$BIN/pause" -nt "$HERE/pause.c" ] || gcc -static -Os -s -o "$BIN/pause" "$HERE/pause.c"
  image pause:1 "$BIN/pause" --file "$BIN/pause:/pause" --entry /pause
}

pause
image coredns:1 "$BIN/coredns" --file "$BIN/coredns:/coredns" --entry /coredns
for operator in "$BIN"/training-operator-*; do
  mkdir -p "$BOX/empty"
  image "$(basename "$operator" | sed 's/-\([0-9.]*\)$/:\1/')" "$operator" \
    --file "$operator:/manager" --file "$BOX/empty:/tmp" --entry /manager
done
"$HERE/base.sh" --locked
