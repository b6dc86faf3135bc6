"""LangGraph on annals: `AnnalsSaver`, a checkpoint saver, and `AnnalsStore`, a long-term store.

The saver replaces SqliteSaver and PostgresSaver, for sync and async graphs:

    from annals.langgraph import AnnalsSaver

    with AnnalsSaver("agent.annals") as saver:
        graph = builder.compile(checkpointer=saver)

A value is the `(type, bytes)` of the serializer, verbatim. A checkpoint names the values it has, so a channel that
did not change is not saved again. A long value names its whole chunks, so a list that grows is written from its last
chunk on, and the store keeps equal ranges of bytes once. `_langgraph_format` has the keys and records.

Each checkpoint is also a frame of the run `thread/THREAD`, which `annals runs` lists; a forked thread is a fork of that
run. The frame and the checkpoint are written together.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import hashlib
import json
import random
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    SerializerProtocol,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.base.id import uuid6

import annals
from annals._langgraph_format import (
    CHECKPOINTS,
    CHUNKS,
    INLINE_BYTES,
    THREADS,
    VALUES,
    WRITES,
    Record,
    SavedBy,
    ValueRef,
    checkpoint_key,
    checkpoint_of,
    chunk_key,
    decode_value,
    digests_of,
    encode_value,
    id_bytes,
    pack,
    prefix_end,
    space_key,
    text,
    texts_of,
    unpack,
    value_key,
    version_text,
    write_key,
    write_of,
)
from annals._langgraph_store import AnnalsStore

__all__ = ["AnnalsSaver", "AnnalsStore"]

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


def _unserialisable(value: Any, dumps: Any, path: str, above: tuple[int, ...] = ()) -> str:
    """Where in `value` the serializer fails: a path and what is there."""
    if id(value) in above:
        return f"{path}: a reference to a value that contains it"
    above = (*above, id(value))
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Mapping):
        inner = ((f"{path}.{key}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inner = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        inner = ((f"{path}.{name}", getattr(value, name, None)) for name in names)
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        inner = ((f"{path}.{name}", part) for name, part in vars(value).items())
    for place, part in inner:
        if id(part) in above:
            return f"{place}: a reference to a value that contains it"
        try:
            dumps(part)
        except Exception:  # noqa: BLE001 - any failure of a serializer means the same
            return _unserialisable(part, dumps, place, above)
    return f"{path}: {type(value).__module__}.{type(value).__qualname__}"


class AnnalsSaver(BaseCheckpointSaver[str]):
    """Saves checkpoints in an annals store. Sync and async; threads and processes may share a store.

    `store` is a path or an open `annals.Store`; without one, the store is found as the command line finds it.
    A store that was opened here is closed by `close()`, `with` or `async with`.

    A checkpoint is on disk when `put` returns. Values are what `serde` makes of them; nothing is pickled.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        namespace: str = "default",
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._owns = not isinstance(store, annals.Store)
        self.store: annals.Store = annals.open(store) if self._owns else store
        self._space = self.store.namespace(namespace)
        self._threads: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> AnnalsSaver:
        """A saver over the store at this path; `with` closes it."""
        return cls(conn_string, **options)

    def setup(self) -> None:
        """Nothing to do: for code that calls it on other savers."""

    def close(self) -> None:
        """Closes the store if this saver opened it."""
        if self._owns:
            self.store.close()

    def __enter__(self) -> AnnalsSaver:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> AnnalsSaver:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await asyncio.to_thread(self.close)

    def get_next_version(self, current: Any, channel: None = None) -> str:
        """Versions of two branches of a thread must differ, so a version ends in a random number."""
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.getrandbits(32):08x}"

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint of `config`, or the thread's newest one."""
        thread, ns = _thread_of(config), config["configurable"].get("checkpoint_ns", "")
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id:
            data = self._space.get(CHECKPOINTS, checkpoint_key(thread, ns, checkpoint_id))
            return None if data is None else self._tuple(thread, ns, checkpoint_id, Record.decode(data))
        for thread, ns, checkpoint_id, record in self._records(thread, ns, count=1):
            return self._tuple(thread, ns, checkpoint_id, record)
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first. Without `config`: of all threads; without `checkpoint_ns`: of all namespaces.

        The store may be changed while this runs. A value is read when its checkpoint is reached.
        """
        if limit is not None and limit <= 0:
            return
        until = get_checkpoint_id(before) if before else None
        given = 0
        for thread, ns, checkpoint_id, record in self._selected(config, until):
            metadata = self.serde.loads_typed(record.metadata)
            if filter and not all(metadata.get(key) == wanted for key, wanted in filter.items()):
                continue
            yield self._tuple(thread, ns, checkpoint_id, record, metadata)
            given += 1
            if limit is not None and given >= limit:
                return

    def _selected(
        self, config: RunnableConfig | None, before: str | None
    ) -> Iterator[tuple[str, str, str, Record]]:
        configurable = (config or {}).get("configurable", {})
        thread = None if configurable.get("thread_id") is None else str(configurable["thread_id"])
        ns, only = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
        if thread is not None and ns is not None and not only:
            yield from self._records(thread, ns, before=before)
            return
        prefix = b"" if thread is None else text(thread) if ns is None else space_key(thread, ns)
        for found in self._sorted_records(prefix, before):
            if not only or found[2] == only:
                yield found

    def _records(
        self, thread: str, ns: str, *, before: str | None = None, count: int = 64
    ) -> Iterator[tuple[str, str, str, Record]]:
        """Records of a thread's namespace, newest first."""
        start = space_key(thread, ns)
        # Ids that are no UUIDs are behind all UUIDs, whatever their texts are.
        others, _ = self._space.scan_page(CHECKPOINTS, start + b"\2", prefix_end(start), count=1, keys_only=True)
        end = start + (b"\2" if before is None else id_bytes(before))
        if others or (before is not None and end[len(start)] == 2):
            yield from self._sorted_records(start, before)
            return
        while True:
            page, more = self._space.scan_page(CHECKPOINTS, start, end, count=count, reverse=True)
            for key, data in page:
                yield thread, ns, checkpoint_of(key)[2], Record.decode(data)
            if not more or not page:
                return
            end = page[-1][0]

    def _sorted_records(self, prefix: bytes, before: str | None) -> Iterator[tuple[str, str, str, Record]]:
        """Records of keys with this prefix, newest first by the text of their ids."""
        found = [checkpoint_of(key) for key, _ in self._scan(CHECKPOINTS, prefix, keys_only=True)]
        for thread, ns, checkpoint_id in sorted(found, key=lambda parts: parts[2], reverse=True):
            data = self._space.get(CHECKPOINTS, checkpoint_key(thread, ns, checkpoint_id))
            if data is not None and (before is None or checkpoint_id < before):
                yield thread, ns, checkpoint_id, Record.decode(data)

    def _scan(
        self, keyspace: str, prefix: bytes, *, keys_only: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        start, end = prefix, prefix_end(prefix) or None
        while True:
            page, more = self._space.scan_page(keyspace, start, end, count=10_000, keys_only=keys_only)
            yield from page
            if not more or not page:
                return
            start = page[-1][0] + b"\0"

    def _tuple(
        self, thread: str, ns: str, checkpoint_id: str, record: Record, metadata: Any = None
    ) -> CheckpointTuple:
        checkpoint = self.serde.loads_typed(record.checkpoint)
        values = {}
        for channel, _, saved_by in record.refs:
            typed = self._value(thread, ns, channel, saved_by, checkpoint_id)
            if typed is not None:
                values[channel] = self.serde.loads_typed(typed)
        if metadata is None:
            metadata = self.serde.loads_typed(record.metadata)
        return CheckpointTuple(
            config=_config(thread, ns, checkpoint_id),
            checkpoint={**checkpoint, "id": checkpoint_id, "channel_values": values},
            metadata=metadata,
            parent_config=_config(thread, ns, record.parent) if record.parent else None,
            pending_writes=[
                (task, channel, self.serde.loads_typed(typed))
                for task, _, channel, _, typed in self._writes(thread, ns, checkpoint_id)
            ],
        )

    def _value(
        self, thread: str, ns: str, channel: str, saved_by: SavedBy, checkpoint_id: str
    ) -> tuple[str, bytes] | None:
        if saved_by is None:
            return None
        if not isinstance(saved_by, str):
            return saved_by
        data = self._space.get(VALUES, value_key(thread, ns, channel, saved_by or checkpoint_id))
        if data is None:
            raise annals.Damaged(
                f"channel {channel!r} of checkpoint {checkpoint_id} of thread {thread!r} has no value in the store"
            )

        def chunk_of(digest: bytes) -> bytes:
            chunk = self._space.get(CHUNKS, chunk_key(thread, ns, digest))
            if chunk is None:
                raise annals.Damaged(f"a chunk of channel {channel!r} of thread {thread!r} is not in the store")
            return chunk

        return decode_value(data, chunk_of)

    def _value_changes(
        self, thread: str, ns: str, channel: str, saved_by: str, before: str | None, typed: tuple[str, bytes]
    ) -> builtins.list[tuple[Any, ...]]:
        """Writes a value. Chunks that the value of checkpoint `before` names are in the store already."""
        known: set[bytes] = set()
        if before is not None:
            known.update(digests_of(self._space.get(VALUES, value_key(thread, ns, channel, before))))
        stored, chunks = encode_value(typed, known)
        changes: builtins.list[tuple[Any, ...]] = [
            ("put", CHUNKS, chunk_key(thread, ns, digest), chunk) for digest, chunk in chunks
        ]
        changes.append(("put", VALUES, value_key(thread, ns, channel, saved_by), stored))
        return changes

    def _writes(
        self, thread: str, ns: str, checkpoint_id: str
    ) -> builtins.list[tuple[str, int, str, str, tuple[str, bytes]]]:
        """Task, index, channel, path and value of each write, in the order in which a run applies them."""
        found = []
        for key, data in self._scan(WRITES, checkpoint_key(thread, ns, checkpoint_id)):
            task, index = write_of(key)
            channel, path, kind, value = unpack(data or b"")
            found.append((task, index, channel.decode(), path.decode(), (kind.decode(), value)))
        found.sort(key=lambda write: writes_sort_key(write[3], write[0], write[1]))
        return found

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Saves a checkpoint. It is on disk when this returns.

        Raises `annals.Invalid` with the path of the first value that cannot be serialised; nothing is saved then.
        """
        configurable = config["configurable"]
        thread, ns = _thread_of(config), configurable.get("checkpoint_ns", "")
        changes = self._checkpoint_changes(
            thread,
            ns,
            configurable.get("checkpoint_id"),
            checkpoint,
            get_checkpoint_metadata(config, metadata),
            new_versions,
        )
        self._space.write(changes)
        with self._lock:
            self._threads.add(thread)
        return _config(thread, ns, checkpoint["id"])

    def _checkpoint_changes(
        self,
        thread: str,
        ns: str,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: Any,
        new_versions: ChannelVersions,
    ) -> builtins.list[tuple[Any, ...]]:
        rest = dict(checkpoint)
        values: dict[str, Any] = rest.pop("channel_values")
        checkpoint_id = rest.pop("id")
        key = checkpoint_key(thread, ns, checkpoint_id)
        # A checkpoint may be saved twice with other contents. Later checkpoints may name the first one's values.
        exists = self._space.get(CHECKPOINTS, key) is not None
        saved_by = f"{checkpoint_id}+{random.getrandbits(64):016x}" if exists else ""
        inherited = self._refs(thread, ns, parent) if parent else []
        earlier = {(channel, version): saver for channel, version, saver in inherited}
        latest = {channel: saver or parent for channel, _, saver in inherited if isinstance(saver, str)}
        changes: list[tuple[Any, ...]] = []
        refs: list[ValueRef] = []
        for channel, version in checkpoint["channel_versions"].items():
            named = (channel, version_text(version))
            if channel not in new_versions and named in earlier:
                saver = earlier[named]
                refs.append((*named, parent if saver == "" else saver))
            elif channel in values:
                typed = self._dumps(values[channel], f"$.{channel}")
                if len(typed[1]) <= INLINE_BYTES:
                    refs.append((*named, typed))
                    continue
                before = latest.get(channel)
                changes += self._value_changes(thread, ns, channel, saved_by or checkpoint_id, before, typed)
                refs.append((*named, saved_by))
            else:
                refs.append((*named, None))
        record = Record(
            parent, self._dumps(rest, "the checkpoint"), self._dumps(metadata, "the metadata"), refs
        )
        if thread not in self._threads and self._space.get(THREADS, text(thread)) is None:
            changes.append(("put", THREADS, text(thread), checkpoint["ts"].encode()))
        changes.append(("put", CHECKPOINTS, key, record.encode()))
        # Short, because each checkpoint has it: the record has the rest.
        shown = {"step": metadata.get("step")}
        if metadata.get("source") != "loop":
            shown["source"] = metadata.get("source")
        if ns:
            shown["checkpoint_ns"] = ns
        changes.append(("note", run_name(thread), checkpoint_id, _json(shown), _json(sorted(new_versions))))
        return changes

    def _dumps(self, value: Any, path: str) -> tuple[str, bytes]:
        try:
            return self.serde.dumps_typed(value)
        except Exception as error:
            place = _unserialisable(value, self.serde.dumps_typed, path)
            raise annals.Invalid(f"the state cannot be saved: {place} cannot be serialised ({error})") from error

    def _refs(self, thread: str, ns: str, checkpoint_id: str) -> builtins.list[ValueRef]:
        data = self._space.get(CHECKPOINTS, checkpoint_key(thread, ns, checkpoint_id))
        return [] if data is None else Record.decode(data).refs

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Saves what a task has written. They may arrive before their checkpoint.

        A write that is there already stays, except errors, interrupts, resumes and schedules.
        """
        configurable = config["configurable"]
        at = (_thread_of(config), configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"])
        prefix = checkpoint_key(*at) + id_bytes(task_id)
        there = {key for key, _ in self._scan(WRITES, prefix, keys_only=True)}
        changes = []
        for position, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, position)
            key = write_key(*at, task_id, index)
            if index >= 0 and key in there:
                continue
            kind, data = self._dumps(value, f"$.{channel}")
            changes.append(("put", WRITES, key, pack(channel.encode(), task_path.encode(), kind.encode(), data)))
        if changes:
            self._space.write(changes)

    # Threads

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
            return _config(into, checkpoint_ns, chosen)
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
        return self.put(_config(into, checkpoint_ns, chosen), checkpoint, metadata, changed)

    def _version_after(self, latest: Any) -> Any:
        return latest + 1 if isinstance(latest, (int, float)) else self.get_next_version(latest)

    def _fork_run(self, source: str, checkpoint_id: str, into: str) -> None:
        """The run of a copied thread is a fork, if the source's run is there and the target's is not."""
        try:
            self._space.write([("fork", run_name(source), checkpoint_id, run_name(into))])
        except (annals.NotFound, annals.Conflict, annals.Gone):
            note = _json({"copied_from": source})
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
        """Copies all checkpoints of a SqliteSaver's database. Each copy is read back and compared with its source;
        the first difference raises `annals.Damaged`. Returns how many were copied. The database is not changed."""
        import sqlite3
        from contextlib import closing

        from langgraph.checkpoint.sqlite import SqliteSaver

        with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            source = SqliteSaver(connection, serde=self.serde)
            source.setup()

            def rows(query: str, *values: Any) -> builtins.list[Any]:
                return connection.execute(query, values).fetchall()

            return self._migrate(source, rows, "writes", "value", "?")

    def migrate_from_postgres(self, conn_string: str) -> int:
        """As `migrate_from_sqlite`, of a PostgresSaver's database. Needs langgraph-checkpoint-postgres."""
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(conn_string) as source:
            source.serde = self.serde

            def rows(query: str, *values: Any) -> builtins.list[Any]:
                with source.conn.cursor() as cursor:
                    found = cursor.execute(query, values).fetchall()
                return [tuple(row.values()) if isinstance(row, dict) else row for row in found]

            return self._migrate(source, rows, "checkpoint_writes", "blob", "%s")

    def _migrate(self, source: BaseCheckpointSaver[Any], rows: Any, writes: str, value: str, mark: str) -> int:
        order = "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints ORDER BY checkpoint_id"
        of_one = f"thread_id = {mark} AND checkpoint_ns = {mark} AND checkpoint_id = {mark}"
        select = f"SELECT task_id, idx, channel, type, {value}, task_path FROM {writes} WHERE {of_one}"
        copied = 0
        for thread, ns, checkpoint_id in rows(order):
            found = source.get_tuple(_config(thread, ns, checkpoint_id))
            if found is None:
                raise annals.Damaged(f"checkpoint {checkpoint_id} of thread {thread!r} cannot be read")
            parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
            checkpoint = dict(found.checkpoint)
            # Some savers keep values without a version. A value needs one to be found.
            versions = {**dict.fromkeys(checkpoint["channel_values"], 0), **checkpoint["channel_versions"]}
            checkpoint["channel_versions"] = versions
            same = {(channel, version) for channel, version, _ in self._refs(thread, ns, parent)} if parent else set()
            new = {name: version for name, version in versions.items() if (name, version_text(version)) not in same}
            changes = self._checkpoint_changes(thread, ns, parent, checkpoint, found.metadata, new)
            for task, index, channel, kind, data, path in rows(select, thread, ns, checkpoint_id):
                key = write_key(thread, ns, checkpoint_id, task, index)
                packed = pack(channel.encode(), (path or "").encode(), (kind or "").encode(), bytes(data))
                changes.append(("put", WRITES, key, packed))
            self._space.write(changes)
            self._compare(found, self.get_tuple(_config(thread, ns, checkpoint_id)), versions)
            copied += 1
        return copied

    def _compare(self, source: CheckpointTuple, copy: CheckpointTuple | None, versions: Any) -> None:
        where = source.config["configurable"]
        expected = {**source.checkpoint, "channel_versions": versions}
        pairs = [("metadata", source.metadata, copy and copy.metadata)]
        pairs += [(name, expected[name], copy and copy.checkpoint.get(name)) for name in expected]
        pairs.append(("pending_writes", source.pending_writes or [], copy and copy.pending_writes))
        for name, wanted, got in pairs:
            # Values without equality are compared as the serializer writes them.
            if wanted != got and self.serde.dumps_typed(wanted) != self.serde.dumps_typed(got):
                raise annals.Damaged(
                    f"{name} of checkpoint {where['checkpoint_id']} of thread {where['thread_id']!r} "
                    "is not in the copy what it is in the source"
                )

    # Async forms: each runs its sync form on a thread, where the interpreter's lock is released.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await asyncio.to_thread(next, found, None)) is not None:
            yield item

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep: int = 1) -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy, keep=keep))

    async def aat(self, thread_id: str, **wanted: Any) -> CheckpointTuple:
        return await asyncio.to_thread(lambda: self.at(thread_id, **wanted))

    async def afork(self, thread_id: str, **wanted: Any) -> RunnableConfig:
        return await asyncio.to_thread(lambda: self.fork(thread_id, **wanted))

    async def aretain(self, **wanted: Any) -> int:
        return await asyncio.to_thread(lambda: self.retain(**wanted))


def _order(version: Any) -> tuple[int, Any]:
    return (0, version) if isinstance(version, (int, float)) else (1, str(version))


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _config(thread: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _json(value: Any) -> bytes:
    return json.dumps(value, default=str, separators=(",", ":")).encode()
