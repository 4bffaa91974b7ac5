"""Writes an OCI image archive that `ctr images import` takes, out of files and a root file system.

    python3 mkimage.py OUT.tar NAME:TAG [--entry COMMAND ...] [--file SOURCE:TARGET ...] [--rootfs FOLDER]

Called by images.sh. It needs no registry and no builder. Layers stay uncompressed: a layer's digest is then its diff id
too, and nothing waits for gzip. The archive appears whole or not at all.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TYPE = "application/vnd.oci.image"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--entry", nargs="+")
    parser.add_argument("--file", action="append", default=[])
    parser.add_argument("--rootfs", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.out.parent) as folder:
        layers = []
        if arguments.rootfs:
            layers.append(layer_of_rootfs(arguments.rootfs, Path(folder, "rootfs.tar")))
        if arguments.file:
            layers.append(layer_of_files(arguments.file, Path(folder, "files.tar")))
        part = Path(folder, "image.tar")
        write(part, name=arguments.name, entry=arguments.entry, layers=layers)
        os.replace(part, arguments.out)


def layer_of_rootfs(folder: Path, out: Path) -> Path:
    options = ["--sort=name", "--numeric-owner", "--exclude=./dev/*"]
    subprocess.run(["tar", "-C", str(folder), *options, "-cf", str(out), "."], check=True)
    return out


def layer_of_files(files: list[str], out: Path) -> Path:
    with tarfile.open(out, "w") as archive:
        for each in files:
            source, target = each.split(":")
            entry = archive.gettarinfo(source, target.lstrip("/"))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                entry.mode = 0o755
                with open(source, "rb") as content:
                    archive.addfile(entry, content)
            else:
                entry.mode = 0o1777  # a folder for everybody, like /tmp
                archive.addfile(entry)
    return out


def write(out: Path, *, name: str, entry: list[str] | None, layers: list[Path]) -> None:
    digests = {layer: file_digest(layer) for layer in layers}
    machine = {"architecture": ARCHITECTURES[platform.machine()], "os": "linux"}
    config = as_json(
        {
            **machine,
            "config": {"Env": [PATH], "Entrypoint": entry},
            "rootfs": {"type": "layers", "diff_ids": list(digests.values())},
            "history": [{"created_by": "mkimage"} for _ in layers],  # builders on top of it want one a layer
        }
    )
    manifest = as_json(
        {
            "schemaVersion": 2,
            "mediaType": f"{TYPE}.manifest.v1+json",
            "config": described(f"{TYPE}.config.v1+json", digest(config), len(config)),
            "layers": [described(f"{TYPE}.layer.v1.tar", digests[each], each.stat().st_size) for each in layers],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    top = described(f"{TYPE}.manifest.v1+json", digest(manifest), len(manifest))
    index = as_json({"schemaVersion": 2, "manifests": [{**top, "platform": machine, "annotations": names}]})
    with tarfile.open(out, "w") as archive:
        put(archive, "oci-layout", as_json({"imageLayoutVersion": "1.0.0"}))
        put(archive, "index.json", index)
        put(archive, blob(digest(manifest)), manifest)
        put(archive, blob(digest(config)), config)
        for layer, hashed in digests.items():
            archive.add(layer, blob(hashed))


def put(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def described(media_type: str, hashed: str, size: int) -> dict[str, object]:
    return {"mediaType": media_type, "digest": hashed, "size": size}


def as_json(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"


def blob(hashed: str) -> str:
    return f"blobs/{hashed.replace(':', '/')}"


if __name__ == "__main__":
    main()
