"""Builds an image with buildah and runs commands in it with runc, as a restricted pod does.

Called by the tests of this folder; it needs root, buildah, runc and, for a base image of its own, debootstrap. All that
it makes is under one folder, and the storage of the machine's own images is left alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
#: An id that no image knows, as OpenShift gives out.
USER = 12345
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_BASE_PACKAGES = "python3-minimal,python3,python3-venv,ca-certificates"


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
    """buildah with its storage under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._root, runroot = folder / "storage", folder / "run"
        # buildah's own variable: "vfs" is for a machine on which overlays don't stack.
        self._driver = os.environ.get("STORAGE_DRIVER", "overlay")
        settings = folder / "storage.conf"
        settings.write_text(
            f'[storage]\ndriver = "{self._driver}"\ngraphroot = "{self._root}"\nrunroot = "{runroot}"\n'
        )
        self._settings = {"CONTAINERS_STORAGE_CONF": str(settings), "BUILDAH_ISOLATION": "chroot"}

    def buildah(self, *arguments: str | Path) -> str:
        return run("buildah", *arguments, **self._settings).strip()

    def base(self, name: str) -> None:
        """Make the image `name`: Debian with Python, from the machine's own mirror."""
        tree = self.folder / "base"
        run("debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", "bookworm", tree, *_mirror())
        for left_over in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(tree / left_over)
        self.image_of(name, tree)
        shutil.rmtree(tree)

    def image_of(self, name: str, tree: Path, *, base: str = "scratch") -> None:
        """Make the image `name`: `base` with the files of `tree` over it."""
        archive = self.folder / "tree.tar"
        run("tar", "-C", tree, "--numeric-owner", "--exclude=./dev/*", "-cf", archive, ".")
        container = self.buildah("from", base)
        self.buildah("add", "--quiet", container, archive, "/")
        self.buildah("commit", "--quiet", "--rm", container, name)
        archive.unlink()

    def build(self, target: str, *, base: str, build_base: str | None = None) -> subprocess.CompletedProcess[str]:
        """`images/build.sh TARGET` on the image `base`."""
        arguments = [f"BASE_IMAGE={base}", f"BUILD_IMAGE={build_base or base}"]
        options = [option for argument in arguments for option in ("--build-arg", argument)]
        if _CERTIFICATES.exists():  # those of a proxy, where the machine is behind one; they don't get into the image
            options += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        command = [str(ROOT / "images/build.sh"), target, *options]
        return subprocess.run(command, env=os.environ | self._settings, capture_output=True, text=True)

    def built(self, target: str, *, base: str, build_base: str | None = None) -> Image:
        """The image that `build` makes."""
        done = self.build(target, base=base, build_base=build_base)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return self.open(f"shardline-{target}:{VERSION}")

    def open(self, name: str) -> Image:
        container = self.buildah("from", name)
        config = json.loads(self.buildah("inspect", "--type", "image", name))["OCIv1"]
        return Image(
            tree=Path(self.buildah("mount", container)),
            config=config["config"],
            layers=len(config["rootfs"]["diff_ids"]),
            work=self.folder,
        )

    def remove_all(self) -> None:
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        # buildah leaves its storage mounted on itself.
        storage = self._root / self._driver
        if storage.is_mount():
            run("umount", storage)


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


def _mirror() -> list[str]:
    """Where this machine's own packages come from."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            key, *rest = line.split() or [""]
            if key in ("URIs:", "deb"):
                return [part for part in rest if "://" in part][:1]
    return []
