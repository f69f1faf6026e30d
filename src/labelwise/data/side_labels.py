"""Labels in a Parquet file of their own, found by the key of a sample: in a database on disk, not in memory."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.core.errors import LabelwiseError
from labelwise.core.files import atomic_write, cache_folder, sha256
from labelwise.data.parquet import KEY_COLUMNS, open_parquet, readable
from labelwise.data.readers.manifest import IMAGE_COLUMNS, find_column
from labelwise.data.shard_kinds import label_columns, packed_labels
from labelwise.data.shards import file_version
from labelwise.data.streams import SampleLabels, parse_labels

if TYPE_CHECKING:
    import sqlite3

FORMAT = 1  # raise it whenever the database is written in another way


class SideLabels:
    """The labels of a Parquet file with a key and one or more label columns, by key.

    The file is read once, into a database in the cache: a million labels take no memory, and a run starts at once when
    it starts again.
    """

    def __init__(self, file: str, key_column: str | None = None, label_column: str | None = None) -> None:
        self.file = file
        with open_parquet(file) as opened:
            names = opened.schema_arrow.names
        self._key = key_column or find_column(names, (*KEY_COLUMNS, "image_id", "imageid", *IMAGE_COLUMNS))
        if self._key not in names:
            raise LabelwiseError(
                f"{file} has no key column among {', '.join(names)}; name it", options={"key_column": ...}
            )
        self._labels = label_columns(names, label_column, file)
        if not self._labels:
            raise LabelwiseError(
                f"{file} has no label column among {', '.join(names)}; name it", options={"label_column": ...}
            )
        self.version = sha256(f"{FORMAT} {file} {self._key} {self._labels} ", file_version(file)).hexdigest()[:32]
        self._path = cache_folder() / "streams" / self.version / "labels.sqlite"
        if not self._path.exists():
            atomic_write(self._path, self._write)
        self._local = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return SideLabels, (self.file, self._key, dict(self._labels)["labels"])

    def _write(self, draft: Path) -> None:
        import sqlite3

        database = sqlite3.connect(draft)
        try:
            database.execute("PRAGMA journal_mode=OFF")
            database.execute("PRAGMA synchronous=OFF")
            database.execute("CREATE TABLE labels (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
            with open_parquet(self.file) as opened, readable(self.file):
                wanted = dict.fromkeys([self._key, *(column for _, column in self._labels)])
                for batch in opened.iter_batches(columns=list(wanted)):
                    rows = ((str(row[self._key]), packed_labels(row, self._labels)[0]) for row in batch.to_pylist())
                    database.executemany("INSERT INTO labels VALUES (?, ?)", rows)
            database.commit()
        except sqlite3.IntegrityError:
            raise LabelwiseError(
                f"{self.file}: a key in column {self._key!r} is there twice; keep one row each"
            ) from None
        finally:
            database.close()

    def labels(self, key: str) -> SampleLabels:
        """By the key of a sample; if that is a path, also by its file name with and without its ending."""
        name = os.path.basename(key)
        for wanted in dict.fromkeys((key, name, os.path.splitext(name)[0])):
            found = self._database.execute("SELECT value FROM labels WHERE key = ?", (wanted,)).fetchone()
            if found:
                return parse_labels(found[0], "json", f"{self.file}: the row of {wanted!r}")
        raise LabelwiseError(f"{self.file} has no row for the sample {key!r}; add it, or name another key_column=")

    @property
    def _database(self) -> sqlite3.Connection:
        """Of this thread in this process: a connection must not be carried over a fork."""
        import sqlite3

        if getattr(self._local, "process", None) != os.getpid():
            self._local.process = os.getpid()
            self._local.database = sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        database: sqlite3.Connection = self._local.database
        return database
