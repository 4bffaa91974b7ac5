"""Builds an image with buildah and runs commands in it with runc, as a restricted pod does.

Called by the tests of this folder and by those that run the image on a cluster. It needs root, buildah, runc and, for
the base image, debootstrap. Layers are kept in the user's cache folder: what did not change is not built again, neither
by the next session. The storage of the machine's own images is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import scripts

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
#: An id that no image knows, as OpenShift gives out.
USER = 12345
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_BASE = "localhost/base:1"
#: Of what the layers of dependencies are made: where it is another, none of the layers before would be used again.
_INGREDIENTS = (
    "pyproject.toml",
    "constraints.txt",
    "images/Dockerfile",
    "images/find_torch.py",
    "images/without-torch.txt",
)
_KEPT_SECONDS = 14 * 86400


def lacking() -> str | None:
    """What this machine has not that the tests need."""
    if os.geteuid() != 0:
        return "root"
    names = ("buildah", "runc", "debootstrap")
    return ", ".join(name for name in names if shutil.which(name) is None) or None


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    done = subprocess.run(command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-8000:]}"
    return done.stdout


class Builder:
    """buildah with its layers under `storage`, and what is gone at the end under `folder`."""

    def __init__(self, folder: Path, storage: Path) -> None:
        self.folder, self._storage = folder, storage
        self._containers: list[str] = []
        # buildah's own variable: "vfs" is for a machine on which overlays don't stack.
        self._driver = os.environ.get("STORAGE_DRIVER", "overlay")
        settings = folder / "storage.conf"
        # Which layers are mounted is forgotten when the machine starts again, as they are.
        runroot = f"/run/shardline-images/{storage.name}"
        settings.write_text(
            f'[storage]\ndriver = "{self._driver}"\ngraphroot = "{storage}/layers"\nrunroot = "{runroot}"\n'
        )
        self._settings = {"CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "chroot"}

    def buildah(self, *arguments: str | Path) -> str:
        return run("buildah", *arguments, **self._settings).strip()

    def has(self, name: str) -> bool:
        command = ["buildah", "inspect", "--type", "image", name]
        return subprocess.run(command, env=os.environ | self._settings, capture_output=True).returncode == 0

    def base(self) -> str:
        """The image to build on: SHARDLINE_TEST_BASE_IMAGE's, to be pulled, else the one of the cluster's nodes."""
        given = os.environ.get("SHARDLINE_TEST_BASE_IMAGE")
        if given:
            return given
        archive, taken = scripts.base_image(), self._storage / "base"
        if not taken.exists() or taken.stat().st_mtime < archive.stat().st_mtime or not self.has(_BASE):
            self.buildah("pull", "--quiet", f"oci-archive:{archive}")
            taken.touch()
        return _BASE

    def image_of(self, name: str, tree: Path, *, base: str) -> None:
        """Make the image `name`: `base` with the files of `tree` over it."""
        archive = self.folder / "tree.tar"
        run("tar", "-C", tree, "--numeric-owner", "-cf", archive, ".")
        container = self.buildah("from", base)
        self.buildah("add", "--quiet", container, archive, "/")
        self.buildah("commit", "--quiet", "--rm", container, name)
        archive.unlink()

    def build(
        self, target: str, *, base: str, build_base: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`images/build.sh TARGET` on the image `base`, with `variables` in its environment."""
        arguments = [f"BASE_IMAGE={base}", f"BUILD_IMAGE={build_base or base}"]
        options = [option for argument in arguments for option in ("--build-arg", argument)]
        if _CERTIFICATES.exists():  # those of a proxy, where the machine is behind one; they don't get into the image
            options += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        command = [str(ROOT / "images/build.sh"), target, *options]
        return subprocess.run(command, env=os.environ | self._settings | variables, capture_output=True, text=True)

    def built(self, target: str, *, base: str, build_base: str | None = None, **variables: str) -> Image:
        """The image that `build` makes."""
        done = self.build(target, base=base, build_base=build_base, **variables)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return self.open(f"shardline-{target}:{VERSION}")

    def open(self, name: str) -> Image:
        container = self.buildah("from", name)
        self._containers.append(container)
        config = json.loads(self.buildah("inspect", "--type", "image", name))["OCIv1"]
        return Image(
            tree=Path(self.buildah("mount", container)),
            config=config["config"],
            layers=len(config["rootfs"]["diff_ids"]),
            work=self.folder,
        )

    def identity(self, name: str) -> str:
        """The hash of an image's content, as hexadecimal digits."""
        return str(json.loads(self.buildah("inspect", "--type", "image", name))["FromImageID"])

    def save(self, name: str, archive: Path, *, called: str) -> None:
        """Write the image `name` as a file that `ctr images import` takes, in which it has the name `called`."""
        # Of its archives this one has its layers uncompressed: nothing waits for gzip, there or here.
        self.buildah("push", "--quiet", self.identity(name), f"docker-archive:{archive}:{called}")

    def close(self) -> None:
        for container in self._containers:
            self.buildah("rm", container)
        # buildah leaves its storage mounted on itself; where another session is at work in it, it stays.
        _unmount(self._storage, self._driver)


@contextlib.contextmanager
def builder() -> Iterator[Builder]:
    """A builder with the layers of earlier sessions; those that nobody used for two weeks are removed."""
    mixed = hashlib.sha256(b"\0".join((ROOT / each).read_bytes() for each in _INGREDIENTS)).hexdigest()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardline-images"
    storage = caches / mixed[:12]
    storage.mkdir(parents=True, exist_ok=True)
    storage.touch()
    for each in caches.iterdir():
        if each.stat().st_mtime < time.time() - _KEPT_SECONDS:
            _unmount(each, "overlay")
            shutil.rmtree(each)
    # Not pytest's own folders, of which it keeps some: volumes are large.
    with tempfile.TemporaryDirectory(prefix="shardline-images-") as folder:
        # Any user looks up what lies in it.
        Path(folder).chmod(0o755)
        made = Builder(Path(folder), storage)
        try:
            yield made
        finally:
            made.close()


def _unmount(storage: Path, driver: str) -> None:
    mounted = storage / "layers" / driver
    if mounted.is_mount():
        subprocess.run(["umount", str(mounted)], capture_output=True)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image whose files are to be seen under `tree`; `config` is what it says of itself."""

    tree: Path
    config: dict[str, Any]
    layers: int
    work: Path

    def run(
        self,
        *arguments: str,
        command: tuple[str, ...] | None = None,
        volumes: dict[str, Path] | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run it as restricted PodSecurity does: a user it does not know, no capability, a file system that is
        read-only, memory at /tmp, no network. `arguments` follow the entry point, which `command` replaces."""
        name = f"shardline-{uuid.uuid4().hex[:12]}"
        bundle = self.work / name
        bundle.mkdir()
        run("runc", "spec", cwd=bundle)
        spec = json.loads((bundle / "config.json").read_text())
        self._restrict(spec, volumes or {})
        spec["process"]["args"] = [*(command or self.config["Entrypoint"]), *arguments]
        spec["process"]["env"] = [*self.config["Env"], *(f"{key}={value}" for key, value in variables.items())]
        (bundle / "config.json").write_text(json.dumps(spec))
        try:
            return subprocess.run(
                ["runc", "run", "--bundle", str(bundle), name],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=200,
            )
        finally:
            subprocess.run(["runc", "delete", "--force", name], capture_output=True)
            shutil.rmtree(bundle)

    def _restrict(self, spec: dict[str, Any], volumes: dict[str, Path]) -> None:
        spec["root"] = {"path": str(self.tree), "readonly": True}
        process = spec["process"]
        process["terminal"] = False
        process["user"] = {"uid": USER, "gid": 0}
        process["capabilities"] = {}
        process["noNewPrivileges"] = True
        process["cwd"] = self.config.get("WorkingDir") or "/"
        memory = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777", "nosuid"]}
        spec["mounts"].append(memory)
        for inside, outside in volumes.items():
            spec["mounts"].append(
                {"destination": inside, "type": "bind", "source": str(outside), "options": ["rbind", "rw"]}
            )
