"""Reading from S3 beside bare ranged requests for the same bytes: `python -m benchmarks.data.s3 [--work FOLDER]`.

A real server (moto's) runs on this machine. By turns, each in a process of its own: obstore alone asks for every row
group's range with as many requests in flight as the loader has threads, and throws the bytes away; the loader gives
batches, checked, decoded and shuffled. Each goes through all of it once, so that what is read ahead is under way, and
is timed twice more. Prints MB/s of the bytes that cross the network, and the ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import S3Store

from benchmarks.data.run import folder_of
from shardline.components.common.storage import Storage
from shardline.components.sharding.dataset import Dataset, Split
from shardline.components.sharding.loader import THREADS_REMOTE, Loader
from shardline.components.sharding.manifest import shard_path
from shardline.components.sharding.order import DataPolicy, Stage

BUCKET = "bench"
BATCH = 8
EPOCHS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="bench-work", help="folder with the data sets of benchmarks.data.run")
    parser.add_argument("--codec", default="zstd:3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", choices=["bare", "ours"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps({"bare": bare, "ours": ours}[arguments.measure]()))
        return
    with server() as endpoint:
        environment = {**os.environ, **settings(endpoint), "OMP_NUM_THREADS": "1"}
        os.environ.update(settings(endpoint))
        upload(folder_of(Path(arguments.work), "ours", arguments.codec))
        rounds = [{name: measured(name, environment) for name in ("bare", "ours")} for _ in range(arguments.rounds)]
    for name in ("bare", "ours"):
        print(f"{name}: {statistics.median(each[name] for each in rounds):.0f} MB/s")
    print(f"ours / bare: {statistics.median(each['ours'] / each['bare'] for each in rounds):.2f}")


def settings(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def upload(folder: Path) -> None:
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.mkdir(BUCKET)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if not path.name.startswith("."):
            fs.put_file(str(path), f"{BUCKET}/data/{path.relative_to(folder)}")


def measured(name: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "benchmarks.data.s3", "--measure", name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return float(json.loads(done.stdout))


def opened() -> Split:
    storage = Storage(f"s3://{BUCKET}/data")
    (key,) = storage.names("datasets")
    return Dataset.open(storage, key).split("train")


def bare() -> float:
    """MB/s of ranged requests alone."""
    split = opened()
    store = S3Store(
        BUCKET, endpoint=os.environ["AWS_ENDPOINT_URL"], region="us-east-1", client_options={"allow_http": True}
    )
    ranges = [
        (f"data/{shard_path(shard.hash)}", int(group["offset"]), int(group["length"]))
        for shard, groups in zip(split.facts.shards, split.groups_by_shard(), strict=True)
        for group in groups
    ]

    def fetch(each: tuple[str, int, int]) -> int:
        path, offset, length = each
        return len(obstore.get_range(store, path, start=offset, length=length))

    with ThreadPoolExecutor(THREADS_REMOTE) as threads:
        sum(threads.map(fetch, ranges))
        began = time.perf_counter()
        size = sum(threads.map(fetch, ranges * EPOCHS))
        return size / 1e6 / (time.perf_counter() - began)


def ours() -> float:
    """MB/s while batches are given out."""
    split = opened()
    stage = Stage(step=0, global_batch=BATCH, sequence=split.sequence, mixture=(("corpus", "1"),))
    order = split.order(DataPolicy(seed=0, window=64, block=split.sequence, stages=(stage,)))
    size = sum(int(group["length"]) for groups in split.groups_by_shard() for group in groups)
    steps = split.blocks // BATCH
    with Loader(split, order=order, microbatch=BATCH, dp_rank=0, dp_size=1, position=0) as loader:
        for _ in range(steps):
            next(loader)
        began = time.perf_counter()
        for _ in range(steps * EPOCHS):
            next(loader)
        return size * EPOCHS / 1e6 / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
