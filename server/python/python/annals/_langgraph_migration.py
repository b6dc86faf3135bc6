"""Checkpoints of SqliteSaver and PostgresSaver, copied into an `AnnalsSaver`.

Type and bytes of values and writes are copied verbatim: loaded and dumped again, an object whose class is not installed
here would become plain data. Each copy is read back and compared. A checkpoint that is in the store already is only
compared, so a migration that stopped goes on, and one that is repeated adds what the source has got since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, SerializerProtocol

import annals
from annals._langgraph_format import (
    CHECKPOINTS,
    WRITES,
    checkpoint_key,
    config_of,
    pack,
    version_text,
    write_key,
    write_of,
)

CHECKPOINTS_IN_ORDER = "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints ORDER BY checkpoint_id"
# The values that a checkpoint of PostgresSaver names. The others are in its JSON.
POSTGRES_VALUES = """
SELECT blobs.channel, blobs.type, blobs.blob FROM checkpoints
CROSS JOIN jsonb_each_text(checkpoints.checkpoint -> 'channel_versions') AS versions
JOIN checkpoint_blobs AS blobs
  ON blobs.thread_id = checkpoints.thread_id AND blobs.checkpoint_ns = checkpoints.checkpoint_ns
  AND blobs.channel = versions.key AND blobs.version = versions.value
WHERE blobs.type <> 'empty'
  AND checkpoints.thread_id = %s AND checkpoints.checkpoint_ns = %s AND checkpoints.checkpoint_id = %s
"""

# Thread, checkpoint namespace, checkpoint id.
At = tuple[str, str, str]


class Write(NamedTuple):
    """A row of a saver's table of writes."""

    task: str
    place: int
    channel: str
    kind: str | None
    data: bytes
    path: str | None


class Reader(Protocol):
    """Reads one state of another saver's database."""

    saver: BaseCheckpointSaver[Any]

    def checkpoints(self) -> Iterator[At]: ...

    def values(self, at: At) -> dict[str, tuple[str, bytes]]:
        """Type and bytes of channels, as far as they can be had without loading them."""

    def writes(self, at: At) -> list[Write]: ...


class Source(Protocol):
    def open(self) -> AbstractContextManager[Reader]:
        """Errors of the database are errors of annals."""


def migrate(target: Any, source: Source) -> int:
    """Copies all checkpoints of `source` into the saver `target`; returns how many were not there."""
    copied = 0
    with source.open() as reader:
        for at in reader.checkpoints():
            copied += _copy(target, reader, at)
    return copied


def _copy(target: Any, reader: Reader, at: At) -> bool:
    where = f"checkpoint {at[2]} of thread {at[0]!r}" + (f" (checkpoint_ns {at[1]!r})" if at[1] else "")
    found = _load(reader, at, where)
    checkpoint: Any = dict(found.checkpoint)
    # Some savers keep values without a version. A value needs one to be found.
    versions = {**dict.fromkeys(checkpoint["channel_values"], 0), **checkpoint["channel_versions"]}
    checkpoint["channel_versions"] = versions
    wanted = _Wanted(
        found._replace(checkpoint=checkpoint),
        reader.values(at),
        {
            write_key(*at, row.task, row.place): pack(
                row.channel.encode(), (row.path or "").encode(), (row.kind or "").encode(), bytes(row.data)
            )
            for row in reader.writes(at)
        },
    )
    stored = {key: target._space.get(WRITES, key) for key in wanted.writes}
    changes = [("put", WRITES, key, wanted.writes[key]) for key, data in stored.items() if data is None]
    exists = target._space.get(CHECKPOINTS, checkpoint_key(*at)) is not None
    if exists:
        there = {key: wanted.writes[key] for key, data in stored.items() if data is not None}
        message = f"{where} is in the store already, with other contents"
        _compare(target, at, wanted._replace(writes=there), annals.Conflict, message)
    else:
        parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        same = {named[:2] for named in target._refs(at[0], at[1], parent)} if parent else set()
        new = {name: version for name, version in versions.items() if (name, version_text(version)) not in same}
        changes += target._checkpoint_changes(at[0], at[1], parent, checkpoint, found.metadata, new, wanted.values)
    if changes:
        target._space.write(changes)
        _compare(target, at, wanted, annals.Damaged, f"the copy of {where} is not like its source")
    return not exists


class _Wanted(NamedTuple):
    """A checkpoint of the source: loaded, and what of it is stored verbatim."""

    loaded: CheckpointTuple
    values: Mapping[str, tuple[str, bytes]]
    writes: Mapping[bytes, bytes]


def _load(reader: Reader, at: At, where: str) -> CheckpointTuple:
    try:
        found = reader.saver.get_tuple(config_of(*at))
    except NotImplementedError as error:
        raise annals.Invalid(f"{where} needs another serializer ({error}): pass the old saver's `serde`") from error
    except (ValueError, TypeError, KeyError, AttributeError, EOFError) as error:
        raise annals.Damaged(f"{where} cannot be read: {error}") from error
    if found is None:
        raise annals.Damaged(f"{where} cannot be read")
    return found


def _compare(target: Any, at: At, wanted: _Wanted, kind: type[annals.Error], message: str) -> None:
    """Compares a checkpoint in the store with its source: bytes where these are copied verbatim."""
    copy = target.get_tuple(config_of(*at))
    if copy is None:
        raise kind(f"{message}: it is not there")
    source, got = wanted.loaded, copy.checkpoint
    pairs: list[tuple[str, Any, Any]] = [
        ("parent", source.parent_config, copy.parent_config),
        ("metadata", source.metadata, copy.metadata),
    ]
    pairs += [(name, value, got.get(name)) for name, value in source.checkpoint.items() if name != "channel_values"]
    channels = source.checkpoint["channel_values"]
    pairs.append(("the list of channels", sorted(channels), sorted(got["channel_values"])))
    refs = {channel: saved_by for channel, _, saved_by in target._refs(*at)}
    for channel, value in channels.items():
        if channel in wanted.values:
            stored = target._value(at[0], at[1], channel, refs.get(channel), at[2])
            pairs.append((f"channel {channel!r}", wanted.values[channel], stored))
        else:
            pairs.append((f"channel {channel!r}", value, got["channel_values"].get(channel)))
    for key, packed in wanted.writes.items():
        pairs.append((f"write {write_of(key)}", packed, target._space.get(WRITES, key)))
    for name, expected, found in pairs:
        if not _equal(target.serde, expected, found):
            raise kind(f"{message}: {name} differs")


def _equal(serde: SerializerProtocol, wanted: Any, got: Any) -> bool:
    """Values without equality are compared as the serializer writes them."""
    try:
        if wanted == got:
            return True
    except ValueError:
        # Arrays compare to arrays.
        pass
    return serde.dumps_typed(wanted) == serde.dumps_typed(got)


class SqliteSource:
    """A SqliteSaver's database."""

    def __init__(self, path: Any, serde: SerializerProtocol) -> None:
        self._path, self._serde = path, serde

    @contextmanager
    def open(self) -> Iterator[Reader]:
        import sqlite3

        from langgraph.checkpoint.sqlite import SqliteSaver

        path = Path(self._path)
        if not path.is_file():
            raise annals.NotFound(f"{path} is no file: name the database of a SqliteSaver")
        try:
            # Not `mode=ro`: readers of a database in WAL mode may have to write its index.
            uri = f"{path.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
                connection.execute("PRAGMA query_only = 1")
                columns = {row[1] for row in connection.execute("PRAGMA table_info(writes)")}
                if "thread_id" not in columns:
                    raise annals.NotFound(f"{path} has no tables of a SqliteSaver")
                saver = SqliteSaver(connection, serde=self._serde)
                # It would create and change tables.
                saver.is_setup = True
                saver._has_task_path = "task_path" in columns
                yield _SqliteReader(connection, saver, "task_path" if "task_path" in columns else "''")
        except sqlite3.DatabaseError as error:
            raise annals.Damaged(f"{path} cannot be read: {error}") from error


class _SqliteReader:
    def __init__(self, connection: Any, saver: BaseCheckpointSaver[Any], task_path: str) -> None:
        self.saver = saver
        self._connection, self._task_path = connection, task_path

    def checkpoints(self) -> Iterator[At]:
        yield from self._connection.execute(CHECKPOINTS_IN_ORDER)

    def values(self, at: At) -> dict[str, tuple[str, bytes]]:
        """The values are inside of the checkpoint's MessagePack, from which they are taken without loading them."""
        import ormsgpack

        select = (
            "SELECT type, checkpoint FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        kind, data = self._connection.execute(select, at).fetchone()
        if kind != "msgpack":
            return {}
        keys = ormsgpack.OPT_NON_STR_KEYS
        whole = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext, option=keys)
        # None and bytes have types of their own: the serializer finds them without loading anything.
        return {
            channel: ("msgpack", ormsgpack.packb(value, option=keys))
            for channel, value in whole.get("channel_values", {}).items()
            if value is not None and not isinstance(value, bytes)
        }

    def writes(self, at: At) -> list[Write]:
        select = (
            f"SELECT task_id, idx, channel, type, value, {self._task_path} FROM writes "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        return [Write(*row) for row in self._connection.execute(select, at)]


class PostgresSource:
    """A PostgresSaver's database."""

    def __init__(self, conn_string: str, serde: SerializerProtocol) -> None:
        self._conn_string, self._serde = conn_string, serde

    @contextmanager
    def open(self) -> Iterator[Reader]:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver

        try:
            with PostgresSaver.from_conn_string(self._conn_string) as saver:
                saver.serde = self._serde
                connection: Any = saver.conn
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                with connection.transaction():
                    yield _PostgresReader(connection, saver)
        except psycopg.errors.UndefinedTable as error:
            raise annals.NotFound(f"the database has no tables of a PostgresSaver: {_line(error)}") from error
        except psycopg.errors.UndefinedColumn as error:
            raise annals.Unsupported(
                f"the database has other tables than this PostgresSaver ({_line(error)}): call its `setup()` once. "
                "Databases of ShallowPostgresSaver cannot be copied"
            ) from error
        except psycopg.errors.DataError as error:
            raise annals.Damaged(f"the database has data that cannot be read: {_line(error)}") from error
        except psycopg.OperationalError as error:
            raise annals.Unavailable(f"the PostgreSQL server refused: {_line(error)}") from error
        except psycopg.ProgrammingError as error:
            if error.sqlstate is None:
                raise annals.Invalid(f"the connection string cannot be read: {_line(error)}") from error
            raise annals.Unavailable(f"the PostgreSQL server refused: {_line(error)}") from error


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class _PostgresReader:
    def __init__(self, connection: Any, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver
        self._connection = connection

    def _rows(self, query: str, at: At) -> list[Any]:
        from psycopg.rows import tuple_row

        with self._connection.cursor(row_factory=tuple_row) as cursor:
            found: list[Any] = cursor.execute(query, at).fetchall()
        return found

    def checkpoints(self) -> Iterator[At]:
        from psycopg.rows import tuple_row

        # A cursor of the server: the list may be longer than the memory.
        with self._connection.cursor(name="annals_checkpoints", row_factory=tuple_row) as cursor:
            yield from cursor.execute(CHECKPOINTS_IN_ORDER)

    def values(self, at: At) -> dict[str, tuple[str, bytes]]:
        return {channel: (kind, bytes(blob or b"")) for channel, kind, blob in self._rows(POSTGRES_VALUES, at)}

    def writes(self, at: At) -> list[Write]:
        select = (
            "SELECT task_id, idx, channel, type, blob, task_path FROM checkpoint_writes "
            "WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
        )
        return [Write(*row) for row in self._rows(select, at)]
