"""What sharding makes of S3 that fails: no corpus is taken for a damaged one."""

from __future__ import annotations

import gzip
import io
import json
import re
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.components.common.config.data_schema import Source
from shardline.components.common.errors import StorageLost, UserError
from shardline.components.common.storage import Storage
from shardline.components.common.storage.s3client import PatientS3FileSystem
from shardline.components.sharding.corpus import CorpusFile, Fields, list_files
from shardline.components.sharding.documents import read_piece
from shardline.components.sharding.records import Document
from shardline.components.sharding.units import Piece
from tests.contract.conftest import BUCKET
from tests.contract.faults import Proxy, Rule

pytestmark = pytest.mark.parametrize("by", ["obstore", "s3fs"], indirect=True)


@pytest.fixture
def storage(server: Proxy) -> Storage:
    return Storage(f"s3://{BUCKET}/{uuid.uuid4().hex}")


def corpus_files() -> dict[str, bytes]:
    """The same document in each format."""
    record = json.dumps({"text": "one document"}).encode()
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["one document"]}), table)
    packed = gzip.compress(record, mtime=0)
    return {"a.txt": b"one document", "b.jsonl": record, "c.jsonl.gz": packed, "d.parquet": table.getvalue()}


def texts(file: CorpusFile) -> list[str]:
    records = list(read_piece([file], Piece(0, 0, file.size), fields=Fields("text")))
    return [record.text if isinstance(record, Document) else record.reason for record in records]


@pytest.mark.parametrize("kind", ["answer", "reset", "cut"])
def test_a_corpus_that_cannot_be_read_is_not_a_damaged_one(
    storage: Storage, server: Proxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name, data in corpus_files().items():
        storage.write(name, data)
    files = list_files(Source(urls=[storage.url]))
    for file in files:
        server.rules[:] = [Rule(kind, method="GET", holding=file.url.rpartition("/")[2], times=2)]
        assert texts(file) == ["one document"]
    monkeypatch.setenv("SHARDLINE_STORAGE_SECONDS", "0.5")
    for file in files:
        server.rules[:] = [Rule(kind, method="GET", holding=file.url.rpartition("/")[2])]
        with pytest.raises(StorageLost, match=re.escape(file.url)):
            texts(file)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_corpus_file_that_changes_after_it_was_listed(storage: Storage, elsewhere: bool) -> None:
    for name, data in corpus_files().items():
        storage.write(name, data)
    files = list_files(Source(urls=[storage.url]))
    for file, (name, data) in zip(files, corpus_files().items(), strict=True):
        assert texts(file) == ["one document"]
        storage.write(name, data[:-1] + b"!")
        if elsewhere:
            PatientS3FileSystem.clear_instance_cache()  # as in another process: with no memory of the listing
        with pytest.raises(UserError, match=f"{re.escape(file.url)}: changed while it was being read"):
            texts(file)
