"""One way to read and write, whatever fsspec URL the storage root is.

Called by every step: `Storage` is a folder, `split_url` the file system and path behind a URL, `explained` gives a
block's errors the form that the user reads. What the rest relies on, on every store:

* `write` and `writer` show the old or the new content and never half of it (Alluxio: or, for a moment, neither).
* `create` never replaces what is there (see the table).
* What comes short is asked for again or is an error: `read` and `read_ranges` never give less than there is.
* Every failure leaves as a `ShardlineError` that names the URL. `FileNotFoundError` and `FileExistsError` pass through,
  as callers decide on them. What fails for a moment is repeated first, as `patience` says.

    store               a file appears whole by    create                         swap
    local folder        rename                     link: atomic                   a fenced lock: atomic among swaps
    s3://               the store                  If-None-Match: atomic          If-Match on the ETag: atomic
    hdfs://             rename                     rename, no overwrite: atomic   a fenced lock: atomic among swaps
    gs://, az://        the store                  conditional: atomic            reads back first: not atomic
    alluxio://          after a moment of errors   looks first: not atomic        reads back first: not atomic
    http(s)://          only read
    memory://           one step                   atomic among threads           atomic among threads

`swap` from nothing is `create`. docs/storage.md tells more, and which test runs where.
"""

from shardline.components.common.storage.backend import Changed, RangedFile
from shardline.components.common.storage.explaining import explained
from shardline.components.common.storage.folder import Storage, backend_of
from shardline.components.common.storage.urls import join, split_url

__all__ = ["Changed", "RangedFile", "Storage", "backend_of", "explained", "join", "split_url"]
