"""Whole threads of an `AnnalsSaver`: listed, forked, copied, deleted, pruned, and copied from other savers."""

from __future__ import annotations

import builtins
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, SerializerProtocol
from langgraph.checkpoint.base.id import uuid6

import annals
from annals._langgraph_format import (
    CHECKPOINTS,
    CHUNKS,
    THREADS,
    VALUES,
    WRITES,
    Record,
    checkpoint_key,
    checkpoint_of,
    chunk_key,
    config_of,
    digests_of,
    prefix_end,
    space_key,
    text,
    texts_of,
    value_key,
)
from annals._langgraph_migration import PostgresSource, SqliteSource, migrate

# Most changes in one write while threads are copied or deleted.
BATCH = 150
RUN_NAME_BYTES = 400


def run_name(thread_id: str) -> str:
    """The name of the run that shows a thread's checkpoints."""
    name = "thread/" + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in thread_id)
    if len(name.encode("utf-8", "replace")) > RUN_NAME_BYTES:
        digest = hashlib.sha256(thread_id.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"thread/sha256-{digest}"
    return name.encode("utf-8", "replace").decode()


_JSON = json.JSONEncoder(default=str, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    return _JSON.encode(value).encode()


def _order(version: Any) -> tuple[int, Any]:
    return (0, version) if isinstance(version, (int, float)) else (1, str(version))


class ThreadOperations:
    """What `AnnalsSaver` does with whole threads. The saver has the rest."""

    serde: SerializerProtocol
    _space: Any
    _threads: set[str]
    _lock: threading.Lock

    def threads(self) -> Iterator[str]:
        """The ids of all threads, in order. No checkpoint and no value is read."""
        for key, _ in self._scan(THREADS, b"", keys_only=True):
            yield texts_of(key, 1)[0]

    def at(
        self, thread_id: str, *, step: int | None = None, checkpoint_id: str | None = None, checkpoint_ns: str = ""
    ) -> CheckpointTuple:
        """The checkpoint of a thread after step `step` (the newest one, if branches share the number), or the one
        with this id, or the newest. Raises `annals.NotFound`."""
        for found in self._at(str(thread_id), checkpoint_ns, step, checkpoint_id):
            return self._tuple(*found)
        wanted = f"checkpoint {checkpoint_id!r}" if checkpoint_id else f"step {step}"
        raise annals.NotFound(f"thread {thread_id!r} has no {wanted}: `saver.list` shows its checkpoints")

    def _at(
        self, thread: str, ns: str, step: int | None, checkpoint_id: str | None
    ) -> Iterator[tuple[str, str, str, Record]]:
        for found in self._records(thread, ns):
            if checkpoint_id is not None and found[2] != checkpoint_id:
                continue
            if step is not None and self.serde.loads_typed(found[3].metadata).get("step") != step:
                continue
            yield found

    def fork(
        self,
        thread_id: str,
        *,
        into: str,
        step: int | None = None,
        checkpoint_id: str | None = None,
        checkpoint_ns: str = "",
        update: Mapping[str, Any] | None = None,
    ) -> RunnableConfig:
        """Begins thread `into` at a checkpoint of another thread; returns the config to go on with.

        `update` sets channels to new values, without reducers. The other thread is not changed. The new thread's run
        is a fork of the other one's run. Raises `annals.NotFound`, and `annals.Conflict` if `into` exists.
        """
        source = str(thread_id)
        if self._space.scan_page(CHECKPOINTS, text(into), prefix_end(text(into)), count=1, keys_only=True)[0]:
            raise annals.Conflict(f"thread {into!r} has checkpoints already: choose another name")
        at = self.at(source, step=step, checkpoint_id=checkpoint_id, checkpoint_ns=checkpoint_ns)
        chosen = at.config["configurable"]["checkpoint_id"]
        newest = next(self._records(source, checkpoint_ns, count=1))[2]
        kept = self._ancestry(source, checkpoint_ns, [chosen])
        # What the chosen checkpoint's tasks wrote belongs to the step after it, which the fork runs again.
        without_writes = set() if chosen == newest else {chosen}
        self._copy(source, into, {checkpoint_ns: kept}, without_writes)
        self._fork_run(source, chosen, into)
        if not update:
            return config_of(into, checkpoint_ns, chosen)
        checkpoint = dict(at.checkpoint)
        versions = dict(checkpoint["channel_versions"])
        latest = max(versions.values(), default=None, key=_order)
        changed = {}
        for channel in update:
            changed[channel] = versions[channel] = self._version_after(latest)
        checkpoint.update(
            id=str(uuid6(clock_seq=-2)),
            ts=datetime.now(timezone.utc).isoformat(),
            channel_values={**checkpoint["channel_values"], **update},
            channel_versions=versions,
            # LangGraph looks for tasks of these channels only. The tasks of the step are others: it must look at all.
            updated_channels=None,
        )
        metadata = {
            **at.metadata,
            "source": "fork",
            "step": at.metadata.get("step", 0) + 1,
            "forked_from": {"thread_id": source, "checkpoint_id": chosen},
        }
        return self.put(config_of(into, checkpoint_ns, chosen), checkpoint, metadata, changed)

    def _version_after(self, latest: Any) -> Any:
        return latest + 1 if isinstance(latest, (int, float)) else self.get_next_version(latest)

    def _fork_run(self, source: str, checkpoint_id: str, into: str) -> None:
        """The run of a copied thread is a fork, if the source's run is there and the target's is not."""
        try:
            self._space.write([("fork", run_name(source), checkpoint_id, run_name(into))])
        except (annals.NotFound, annals.Conflict, annals.Gone):
            note = json_bytes({"copied_from": source})
            self._space.write([("note", run_name(into), checkpoint_id, note, b"[]")])

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread: checkpoints, values, writes, and its run. Threads that were forked from it stay."""
        thread = str(thread_id)
        prefix = text(thread)
        # The checkpoints first: one that is found has all its values.
        for keyspace in (CHECKPOINTS, WRITES, VALUES, CHUNKS):
            self._delete_keys(keyspace, (key for key, _ in self._scan(keyspace, prefix, keys_only=True)))
        with self._lock:
            self._threads.discard(thread)
        self._space.write([("delete", THREADS, text(thread)), ("drop", run_name(thread))])

    def _delete_keys(self, keyspace: str, keys: Iterable[bytes]) -> None:
        changes: list[tuple[Any, ...]] = []
        for key in list(keys):
            changes.append(("delete", keyspace, key))
            if len(changes) == BATCH:
                self._space.write(changes)
                changes = []
        if changes:
            self._space.write(changes)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Deletes the checkpoints, with values and writes, whose metadata has one of these `run_id`s.

        Checkpoints from which a delta channel of a remaining checkpoint is rebuilt are kept.
        """
        wanted = set(map(str, run_ids))
        doomed: dict[str, dict[str, set[str]]] = {}
        for key, data in self._scan(CHECKPOINTS, b""):
            metadata = self.serde.loads_typed(Record.decode(data or b"").metadata)
            if str(metadata.get("run_id")) in wanted:
                thread, ns, checkpoint_id = checkpoint_of(key)
                doomed.setdefault(thread, {}).setdefault(ns, set()).add(checkpoint_id)
        for thread, namespaces in doomed.items():
            for ns, ids in namespaces.items():
                there = {found[2] for found in self._records(thread, ns)}
                self._keep_only(thread, ns, self._ancestry(thread, ns, there - ids))
            self._drop_if_empty(thread)

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1
    ) -> None:
        """Deletes old checkpoints of threads. "keep_latest": keeps the newest `keep` of each namespace, and those from
        which their delta channels are rebuilt; "delete": deletes the threads."""
        if strategy not in ("keep_latest", "delete", "delete_all"):
            raise annals.Invalid(f"there is no strategy {strategy!r}: use keep_latest or delete")
        for thread in map(str, thread_ids):
            if strategy != "keep_latest":
                self.delete_thread(thread)
                continue
            for ns in self._namespaces(thread):
                kept = [found[2] for _, found in zip(range(max(keep, 1)), self._records(thread, ns), strict=False)]
                self._keep_only(thread, ns, self._ancestry(thread, ns, kept))

    def retain(self, *, older_than: timedelta, keep: int = 1, threads: Iterable[str] | None = None) -> int:
        """Deletes checkpoints that are older than this, except the newest `keep` of each namespace of each thread and
        those from which delta channels are rebuilt: every thread can still be resumed. Returns how many were deleted.
        """
        limit = datetime.now(timezone.utc) - older_than
        deleted = 0
        for thread in list(self.threads() if threads is None else threads):
            for ns in self._namespaces(thread):
                kept = []
                for count, (_, _, checkpoint_id, record) in enumerate(self._records(thread, ns)):
                    saved = self.serde.loads_typed(record.checkpoint).get("ts")
                    if count < max(keep, 1) or not saved or datetime.fromisoformat(saved) >= limit:
                        kept.append(checkpoint_id)
                deleted += self._keep_only(thread, ns, self._ancestry(thread, ns, kept))
        return deleted

    def _namespaces(self, thread: str) -> builtins.list[str]:
        prefix = text(thread)
        found, start = [], prefix
        while True:
            page, _ = self._space.scan_page(CHECKPOINTS, start, prefix_end(prefix), count=1, keys_only=True)
            if not page:
                return found
            found.append(texts_of(page[0][0], 2)[1])
            start = prefix_end(space_key(thread, found[-1]))

    def _ancestry(self, thread: str, ns: str, kept: Iterable[str]) -> set[str]:
        """These checkpoints and the ancestors from which their delta channels are rebuilt: for each channel, those
        back to the nearest one that has a value of it."""
        records: dict[str, Record] = {}

        def record_of(checkpoint_id: str) -> Record | None:
            if checkpoint_id not in records:
                data = self._space.get(CHECKPOINTS, checkpoint_key(thread, ns, checkpoint_id))
                if data is None:
                    return None
                records[checkpoint_id] = Record.decode(data)
            return records[checkpoint_id]

        needed: set[str] = set()
        for checkpoint_id in kept:
            record = record_of(checkpoint_id)
            if record is None:
                continue
            needed.add(checkpoint_id)
            counters = self.serde.loads_typed(record.metadata).get("counters_since_delta_snapshot") or {}
            valued = {channel for channel, _, saver in record.refs if saver is not None}
            remaining = set(counters) - valued
            visited = {checkpoint_id}
            while remaining and record and record.parent and record.parent not in visited:
                ancestor = record.parent
                record = record_of(ancestor)
                if record is None:
                    break
                visited.add(ancestor)
                needed.add(ancestor)
                remaining -= {channel for channel, _, saver in record.refs if saver is not None}
        return needed

    def _keep_only(self, thread: str, ns: str, kept: set[str]) -> int:
        """Deletes the other checkpoints of a thread's namespace, and the values that no kept one names."""
        # The candidates first: what a put adds meanwhile is none of them.
        candidates = {
            keyspace: [key for key, _ in self._scan(keyspace, space_key(thread, ns), keys_only=True)]
            for keyspace in (VALUES, CHUNKS)
        }
        named: set[bytes] = set()
        doomed = []
        for _, _, checkpoint_id, record in self._records(thread, ns):
            if checkpoint_id not in kept:
                doomed.append(checkpoint_id)
                continue
            for channel, _, saver in record.refs:
                if isinstance(saver, str):
                    named.add(value_key(thread, ns, channel, saver or checkpoint_id))
        if not doomed:
            return 0
        self._delete_keys(CHECKPOINTS, (checkpoint_key(thread, ns, checkpoint_id) for checkpoint_id in doomed))
        for checkpoint_id in doomed:
            prefix = checkpoint_key(thread, ns, checkpoint_id)
            self._delete_keys(WRITES, (key for key, _ in self._scan(WRITES, prefix, keys_only=True)))
        self._delete_keys(VALUES, (key for key in candidates[VALUES] if key not in named))
        if candidates[CHUNKS]:
            chunks = {chunk_key(thread, ns, digest) for key in named for digest in self._digests_at(key)}
            self._delete_keys(CHUNKS, (key for key in candidates[CHUNKS] if key not in chunks))
        return len(doomed)

    def _digests_at(self, key: bytes) -> builtins.list[bytes]:
        return digests_of(self._space.get(VALUES, key))

    def _drop_if_empty(self, thread: str) -> None:
        prefix = text(thread)
        if not self._space.scan_page(CHECKPOINTS, prefix, prefix_end(prefix), count=1, keys_only=True)[0]:
            self.delete_thread(thread)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints, values and writes of a thread. The copies share the bytes on disk."""
        source, target = str(source_thread_id), str(target_thread_id)
        namespaces = {ns: {found[2] for found in self._records(source, ns)} for ns in self._namespaces(source)}
        if not namespaces:
            return
        self._copy(source, target, namespaces, set())
        newest = max(checkpoint_id for ids in namespaces.values() for checkpoint_id in ids)
        self._fork_run(source, newest, target)

    def _copy(self, source: str, target: str, kept: dict[str, set[str]], without_writes: set[str]) -> None:
        """Copies checkpoints with what belongs to them: values first, so that a checkpoint that is found is whole."""
        before, after = text(source), text(target)
        for ns, ids in kept.items():
            changes: list[tuple[Any, ...]] = []

            def add(keyspace: str, key: bytes, value: bytes | None) -> None:
                changes.append(("put", keyspace, after + key[len(before) :], value))
                if len(changes) >= BATCH:
                    self._space.write(changes)
                    changes.clear()

            copied: set[bytes] = set()
            records = sorted(ids)
            found = {checkpoint_id: self._space.get(CHECKPOINTS, checkpoint_key(source, ns, checkpoint_id)) for checkpoint_id in records}
            for checkpoint_id in records:
                for channel, _, saver in Record.decode(found[checkpoint_id]).refs:
                    if not isinstance(saver, str):
                        continue
                    key = value_key(source, ns, channel, saver or checkpoint_id)
                    if key not in copied:
                        copied.add(key)
                        for digest in self._digests_at(key):
                            chunk = chunk_key(source, ns, digest)
                            if chunk not in copied:
                                copied.add(chunk)
                                add(CHUNKS, chunk, self._space.get(CHUNKS, chunk))
                        add(VALUES, key, self._space.get(VALUES, key))
                if checkpoint_id not in without_writes:
                    for key, value in self._scan(WRITES, checkpoint_key(source, ns, checkpoint_id)):
                        add(WRITES, key, value)
            for checkpoint_id in records:
                add(CHECKPOINTS, checkpoint_key(source, ns, checkpoint_id), found[checkpoint_id])
            changes.append(("put", THREADS, after, datetime.now(timezone.utc).isoformat()))
            self._space.write(changes)

    # Migration

    def migrate_from_sqlite(self, path: Any) -> int:
        """Copies the checkpoints of a SqliteSaver's database, with their writes; returns how many were copied.

        Values and writes are copied verbatim, so the classes in them need not be installed here. Each copy is read back
        and compared with its source; a difference, or a checkpoint that cannot be read, raises `annals.Damaged`.
        Checkpoints that are here already are compared and not copied again: `annals.Conflict` names one that differs.
        The database is not changed.
        """
        return migrate(self, SqliteSource(path, self.serde))

    def migrate_from_postgres(self, conn_string: str) -> int:
        """As `migrate_from_sqlite`, of a PostgresSaver's database. Needs langgraph-checkpoint-postgres.

        All is read in one read-only transaction, so other programs may use the database meanwhile. Raises
        `annals.Unavailable` if the server refuses, and `annals.NotFound` if the database has no checkpoints' tables.
        """
        return migrate(self, PostgresSource(conn_string, self.serde))
