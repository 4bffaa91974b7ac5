"""Lets a virtual environment see the torch of the Python that runs this, where that has one.

    python3 find_torch.py VENV > excluded.txt

Called while the training image is built, by the base image's Python, with nothing but the standard library. It prints
the packages that are not to be installed into VENV: torch when the base brings it, else none. Exit code 3, with one
message, for a torch that the code isn't written for.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

EXIT_ENVIRONMENT = 3


def main(environment: str) -> int:
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return 0
    wanted = wanted_version(Path("pyproject.toml"))
    if not found.startswith(f"{wanted}."):
        print(f"the base image has torch {found}; shardline needs torch {wanted}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    (packages,) = Path(environment).glob("lib/python*/site-packages")
    # Lines of a .pth file come after the environment's own packages: the pinned versions stay in front.
    folders = [path for path in sys.path if path.endswith("-packages")]
    (packages / "torch-of-the-base.pth").write_text("".join(f"{folder}\n" for folder in folders), encoding="utf-8")
    print("torch")
    return 0


def wanted_version(project: Path) -> str:
    """The version of torch that the package asks for, without its last part: "2.13" of "torch==2.13.*"."""
    dependencies = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    (torch,) = (each for each in dependencies if each.startswith("torch=="))
    return str(torch).removeprefix("torch==").removesuffix(".*")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
