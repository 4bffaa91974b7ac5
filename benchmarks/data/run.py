"""The data path beside its peers, on the same tokens, in one run: `python -m benchmarks.data.run [--work FOLDER] ...`.

Each measurement is a process of its own; contenders take turns, `--rounds` times, and medians count. Figures in MB/s
are this machine's; the ratios in the last columns are what to compare. Results go to `--out` as JSON and Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.picture import bars
from shardline.components.common.config import parse
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset
from shardline.components.sharding.making import shard

CONTENDERS = ["ours", "memmap", "memmap_gather", "mds", "lit", "hf", "wds"]
CONFIG = """\
version: 1
run: bench
storage: {root}
corpus: {corpus}
tokenizer: {{vocab: 16384}}
sharding: {{held_out: 0, codec: "{codec}", unit: 16MiB}}
training: {{steps: 1, global_batch: 8, microbatch: 8, sequence: 2048}}
model: {{max_positions: 2048}}
"""


def main() -> None:
    arguments = parse_arguments()
    work = Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    tokens = work / "tokens.npy"
    names = [name for name in arguments.only or CONTENDERS if available(name)]
    blocks = make_tokens(work, tokens, arguments.corpus)
    results: list[dict[str, Any]] = []
    for _ in range(arguments.rounds):
        for name in names:
            results += [write(work, name, codec, tokens) for codec in codecs_of(name)]
        for name in names:
            results += [read(work, name, codec, tokens) for codec in codecs_of(name)]
    report = {"machine": about_machine(blocks), "results": summary(results)}
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "results.md").write_text(tables(report))
    (out / "results.svg").write_text(picture(report))
    print(tables(report))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="bench-work", help="folder for the data sets; kept")
    parser.add_argument("--out", default="benchmarks/data/results", help="folder for the results")
    parser.add_argument("--corpus", nargs="+", default=["stdlib:"], help="text to tokenise")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, help="some of the contenders")
    return parser.parse_args()


def available(name: str) -> bool:
    try:
        importlib.import_module(f"benchmarks.data.contenders.{name}")
    except ImportError as error:
        print(f"left out: {name}: {error}", file=sys.stderr)
        return False
    return True


def codecs_of(name: str) -> list[str]:
    return list(importlib.import_module(f"benchmarks.data.contenders.{name}").CODECS)


def folder_of(work: Path, name: str, codec: str) -> Path:
    return work / f"{name}-{codec.replace(':', '')}"


def make_tokens(work: Path, tokens: Path, corpus: list[str]) -> np.ndarray:
    """Our data set in each codec, and the very same blocks as one array for all others."""
    for codec in codecs_of("ours"):
        root = folder_of(work, "ours", codec)
        config = parse(CONFIG.format(root=root, corpus=json.dumps(corpus), codec=codec), source="benchmark").config
        manifest = shard(config)
    if not tokens.exists():
        split = Dataset.open(Storage(str(root)), manifest.key).split("train")
        np.save(tokens, np.concatenate([split.read_group(group).tokens for group in range(split.groups)]))
    return np.load(tokens, mmap_mode="r")


def measured(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.data.measure", *arguments], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write(work: Path, name: str, codec: str, tokens: Path) -> dict[str, Any]:
    folder = work / "written" if name == "ours" else folder_of(work, name, codec)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return {"what": "write", **measured("write", name, str(folder), str(tokens), codec)}


def read(work: Path, name: str, codec: str, tokens: Path) -> dict[str, Any]:
    return {"what": "read", **measured("read", name, str(folder_of(work, name, codec)), str(tokens), codec)}


def summary(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median of each figure."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for each in results:
        grouped.setdefault((each["what"], each["contender"], each["codec"]), []).append(each)
    return [
        {
            **parts[0],
            **{
                key: round(statistics.median(part[key] for part in parts), 3)
                for key, value in parts[0].items()
                if isinstance(value, float)
            },
        }
        for parts in grouped.values()
    ]


#: What contenders are called in the picture.
TITLES = {
    "ours": "shardline",
    "memmap": "nanoGPT's reader",
    "memmap_gather": "memmap, one index",
    "mds": "MosaicML MDS",
    "lit": "LitData",
    "hf": "HF datasets",
    "wds": "WebDataset",
}


def picture(report: dict[str, Any]) -> str:
    """Bars of writing and reading, the fastest first."""

    def values(what: str, key: str) -> list[tuple[str, float]]:
        found = [
            (f"{TITLES[each['contender']]} {'' if each['codec'] == 'none' else each['codec']}".strip(), each[key])
            for each in report["results"]
            if each["what"] == what
        ]
        return sorted(found, key=lambda each: -each[1])

    panels = [
        ("writing, MB of tokens a second", values("write", "mb_s")),
        ("reading, shuffled, million tokens a second", values("read", "mtokens_s")),
    ]
    about = report["machine"]
    note = f"{about['raw_mb']} MB of tokens, blocks of {about['tokens_in_a_block']}, {about['cores']} cores; medians."
    return bars(panels, note=note)


def about_machine(blocks: np.ndarray) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "blocks": len(blocks),
        "tokens_in_a_block": blocks.shape[1],
        "raw_mb": round(blocks.nbytes / 1e6, 1),
    }


def tables(report: dict[str, Any]) -> str:
    results = report["results"]

    def of(what: str, name: str, codec: str, key: str) -> float:
        found = [e[key] for e in results if (e["what"], e["contender"], e["codec"]) == (what, name, codec)]
        return float(found[0]) if found else float("nan")

    about = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    lines = [f"Machine and data: {about}.", ""]
    reference = of("write", "mds", "zstd:3", "mb_s")
    lines += ["| writing | codec | MB/s | size | memory MB | x MDS zstd:3 |", "|---|---|---|---|---|---|"]
    for each in (each for each in results if each["what"] == "write"):
        lines.append(
            f"| {each['contender']} | {each['codec']} | {each['mb_s']:.0f} | {each['ratio']:.3f} "
            f"| {each['memory_mb']:.0f} | {each['mb_s'] / reference:.2f} |"
        )
    reference = of("read", "memmap", "none", "mtokens_s")
    lines += [
        "",
        "| reading | codec | M tokens/s | first batch ms | memory MB | x memmap |",
        "|---|---|---|---|---|---|",
    ]
    for each in (each for each in results if each["what"] == "read"):
        lines.append(
            f"| {each['contender']} | {each['codec']} | {each['mtokens_s']:.1f} | {each['first_ms']:.0f} "
            f"| {each['memory_mb']:.0f} | {each['mtokens_s'] / reference:.2f} |"
        )
    versions = {name: number for each in results for name, number in each["versions"].items()}
    return "\n".join([*lines, "", ", ".join(f"{name} {number}" for name, number in sorted(versions.items())), ""])


if __name__ == "__main__":
    main()
