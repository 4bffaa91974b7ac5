"""What the machines of a run keep in memory for each other: folders of files, served by HTTP.

Called by the agents, which serve and copy, and by workers, which read what their own machine does not have.

    {root}/own/{snapshot}/{file}       made on this machine
    {root}/copies/{snapshot}/{file}    of another machine's

`/own` names the files of each snapshot that were made on that machine, as JSON.

Whoever asks has to show the run's secret: it lies in the run folder, and who can read that can read its checkpoints.
What is sent is neither encrypted nor trusted: a copy is compared with the hash that it was made with.

Errors: `PeerLost` where another machine does not answer, or not with what was asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from shardline.components.common.errors import PeerLost
from shardline.components.common.storage import Storage

OWN, COPIES = "own", "copies"
#: Beside a file: the hash that it was made with.
HASH_SUFFIX = ".sha256"
_SECRET_FILE = "control/peers-secret"
_SECONDS = 10.0
_CHUNK = 1 << 20
_LISTING = f"/{OWN}"
_PATH = re.compile(r"/([0-9]{6}-[0-9]{12})/([A-Za-z0-9][-A-Za-z0-9_.]*)")
_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]+)")


def secret_of(run: Storage) -> str:
    """What the machines of `run` show each other; made by whichever asks first."""
    run.create(_SECRET_FILE, secrets.token_urlsafe(32).encode())
    return run.read(_SECRET_FILE).decode()


def snapshot_name(*, generation: int, step: int) -> str:
    return f"{generation:06d}-{step:012d}"


def place_of(snapshot: str) -> tuple[int, int]:
    """The generation and the optimizer step of a snapshot, by its name."""
    generation, _, step = snapshot.partition("-")
    return int(generation), int(step)


def find(root: Path, snapshot: str, file: str) -> Path | None:
    """Where this machine has a file, made here or copied."""
    paths = (root / place / snapshot / file for place in (OWN, COPIES))
    return next((path for path in paths if path.exists()), None)


def held(folder: Path) -> dict[str, tuple[str, ...]]:
    """The files of each snapshot in `folder`, those that are whole."""
    found = {}
    for snapshot in sorted(folder.iterdir()) if folder.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # it is just removed
            names = {entry.name for entry in os.scandir(snapshot)}
            found[snapshot.name] = tuple(sorted(name for name in names if f"{name}{HASH_SUFFIX}" in names))
    return found


def put(folder: Path, name: str, data: bytes) -> None:
    """Write a small file with its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    write_hash(folder, name, hashlib.sha256(data).hexdigest())


def write_hash(folder: Path, name: str, sha256: str) -> None:
    """Make the file `name` count, now that it is whole."""
    early = folder / f".{name}{HASH_SUFFIX}"
    early.write_text(sha256)
    early.rename(folder / f"{name}{HASH_SUFFIX}")


class Server:
    """Serves what is under `root` to whoever has the secret, for the length of a `with` block.

    Attributes:
        port: one that was free.
    """

    def __init__(self, root: Path, *, host: str, secret: str) -> None:
        class Handler(_Handler):
            def setup(self) -> None:
                self.root, self.secret = root, secret
                super().setup()

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="peers", daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS
    root: Path
    secret: str

    def do_GET(self) -> None:
        told = self.headers.get("Authorization", "")
        if not hmac.compare_digest(told.encode(), f"Bearer {self.secret}".encode()):
            return self._refuse(401)
        if self.path == _LISTING:
            return self._list()
        asked = _PATH.fullmatch(self.path)
        path = find(self.root, *asked.groups()) if asked else None
        try:
            if path is None:
                return self._refuse(404)
            sha256 = path.with_name(f"{path.name}{HASH_SUFFIX}").read_text()
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin, end = self._range(size)
                self.send_response(206 if (begin, end) != (0, size) else 200)
                self.send_header("Content-Length", str(end - begin))
                self.send_header("X-Sha256", sha256)
                self.end_headers()
                file.seek(begin)
                while begin < end and (data := file.read(min(_CHUNK, end - begin))):
                    self.wfile.write(data)
                    begin += len(data)
        except FileNotFoundError:
            return self._refuse(404)
        except OSError:
            self.close_connection = True

    def _list(self) -> None:
        data = json.dumps(held(self.root / OWN)).encode()
        try:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def _range(self, size: int) -> tuple[int, int]:
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        return (int(asked[1]), min(int(asked[2]) + 1, size)) if asked else (0, size)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Peers:
    """What other machines give to whoever has the `secret`, for the length of a `with` block. For one thread."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def listing(self, address: str) -> dict[str, tuple[str, ...]]:
        """The files of each snapshot that were made on the machine at `address`.

        Raises:
            PeerLost: it does not tell.
        """
        with self._asked(address, _LISTING) as answer:
            data = answer.read()
        try:
            found = {str(snapshot): tuple(map(str, files)) for snapshot, files in json.loads(data).items()}
        except (ValueError, TypeError, AttributeError):
            raise PeerLost("told something else than its files", where=f"{address}{_LISTING}") from None
        # They become paths here.
        if not all(_PATH.fullmatch(f"/{snapshot}/{file}") for snapshot, files in found.items() for file in files):
            raise PeerLost("told of files that no snapshot has", where=f"{address}{_LISTING}")
        return found

    def fetch(self, address: str, snapshot: str, file: str, *, begin: int, count: int) -> bytes:
        """`count` bytes of a file that the machine at `address` (host:port) has.

        Raises:
            PeerLost: it does not give them.
        """
        with self._asked(address, f"/{snapshot}/{file}", part=f"bytes={begin}-{begin + count - 1}") as answer:
            data = answer.read()
        if len(data) != count:
            raise PeerLost(f"gave {len(data)} bytes instead of {count}", where=f"{address}/{snapshot}/{file}")
        return data

    def read(self, address: str, snapshot: str, file: str) -> bytes:
        """As `fetch`, of a whole small file, which is as it was made."""
        with self._asked(address, f"/{snapshot}/{file}") as answer:
            data, expected = answer.read(), answer.headers["X-Sha256"]
        self._compare(hashlib.sha256(data).hexdigest(), expected, where=f"{address}/{snapshot}/{file}")
        return data

    def copy(self, address: str, snapshot: str, file: str, *, folder: Path) -> None:
        """Copy a file of the machine at `address` into `folder`; it counts once its hash is right.

        Raises:
            PeerLost: it does not give the file as it was made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with self._asked(address, f"/{snapshot}/{file}") as answer, open(folder / file, "wb") as target:
            while data := answer.read(_CHUNK):
                digest.update(data)
                target.write(data)
            expected = answer.headers["X-Sha256"]
        self._compare(digest.hexdigest(), expected, where=f"{address}/{snapshot}/{file}")
        write_hash(folder, file, digest.hexdigest())

    @staticmethod
    def _compare(sha256: str, expected: str | None, *, where: str) -> None:
        if sha256 != expected:
            raise PeerLost("did not arrive as it was made", where=where)

    @contextlib.contextmanager
    def _asked(self, address: str, path: str, *, part: str | None = None) -> Iterator[http.client.HTTPResponse]:
        """The answer, to be read to its end; a connection is used again."""
        headers = {"Authorization": f"Bearer {self._secret}", **({"Range": part} if part else {})}
        connection = self._connections.setdefault(address, http.client.HTTPConnection(address, timeout=_SECONDS))
        try:
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
            except ConnectionError:  # it was idle, and the other end has closed it
                connection.close()
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
            if answer.status not in (200, 206):
                answer.read()
                raise PeerLost(f"answered {answer.status}", where=f"{address}{path}")
            yield answer
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise PeerLost(f"does not answer: {error}", where=f"{address}{path}") from error


def remove(folder: Path) -> None:
    """Remove a snapshot's folder."""
    shutil.rmtree(folder, ignore_errors=True)
