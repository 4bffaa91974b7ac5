"""The box's scripts as functions: a cluster of three nodes on this machine.

Called by conftest.py and by tests that cut off a node. `box/` builds the cluster from Go modules and Debian packages,
and keeps what it built in `folder()`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BOX = Path(__file__).parent / "box"
#: The Go that the modules ask for, and the one from which on Go fetches a newer one by itself, where it may.
GO, GO_THAT_FETCHES = (1, 26), (1, 21)


def folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SHARDLINE_BOX") or caches / "shardline-box").absolute()


def kubeconfig() -> Path:
    return folder() / "admin.kubeconfig"


def lacking() -> str | None:
    """What this machine lacks for the box, or None."""
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        return "Debian Linux"
    if os.geteuid() != 0:
        return "root"
    go = "Go {}.{} or newer".format(*GO)
    if shutil.which("go") is None:
        return go
    command = ["go", "env", "GOVERSION", "GOTOOLCHAIN"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.match(r"go(\d+)\.(\d+)", printed)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version >= GO or (version >= GO_THAT_FETCHES and "local" not in printed):
        return None
    return "{} ({}.{} is here; {}.{} will do if it may fetch: GOTOOLCHAIN=auto)".format(go, *version, *GO_THAT_FETCHES)


def answers() -> bool:
    """Whether the box's API server runs already."""
    kubectl = [str(folder() / "bin" / "kubectl"), "--kubeconfig", str(kubeconfig()), "--request-timeout=5s"]
    try:
        return subprocess.run([*kubectl, "get", "--raw=/readyz"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def up() -> None:
    """Builds what is missing and starts what does not run. What takes long is told on stderr."""
    _run("up.sh")


def down() -> None:
    _run("down.sh")


def base_image() -> Path:
    """The archive of the image that pods on the box run on, Debian with Python; made where it is not there."""
    _run("base.sh")
    return folder() / "images" / "base-1.tar"


@contextlib.contextmanager
def on_nodes(archive: Path, *, name: str) -> Iterator[None]:
    """Have the nodes hold the image in `archive`, which is called `name` there, for the length of the block."""
    try:
        _run("image.sh", "add", str(archive))
        yield
    finally:
        _run("image.sh", "remove", name)


def node(verb: str, name: str) -> None:
    """`up`, or `kill`, which is a power cut."""
    _run("node.sh", verb, name)


def _run(script: str, *arguments: str) -> None:
    subprocess.run([str(BOX / script), *arguments], stdin=subprocess.DEVNULL, check=True)
