"""LangGraph on annals: `AnnalsSaver`, a checkpoint saver, and `AnnalsStore`, a long-term store.

The saver replaces SqliteSaver and PostgresSaver, for sync and async graphs:

    from annals.langgraph import AnnalsSaver

    with AnnalsSaver("agent.annals") as saver:
        graph = builder.compile(checkpointer=saver)

A value is the `(type, bytes)` of the serializer, verbatim. A checkpoint names the values it has, so a channel that
did not change is not saved again. A long value names its whole chunks, so a list that grows is written from its last
chunk on, and the store keeps equal ranges of bytes once. It is serialised from its first new item on, too
(`_langgraph_lists`). `_langgraph_format` has the keys and records.

Each checkpoint is also a frame of the run `thread/THREAD`, which `annals runs` lists; a forked thread is a fork of that
run. The frame and the checkpoint are written together.
"""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import random
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
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

import annals
from annals._annals import SerialisedList
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
    config_of,
    decode_value,
    encode_value,
    id_bytes,
    joined_digests,
    pack,
    prefix_end,
    space_key,
    text,
    unpack,
    value_key,
    version_text,
    write_key,
    write_of,
)
from annals._langgraph_lists import LIST_BYTES_MIN, ChannelList, ChannelLists, may_grow
from annals._langgraph_store import AnnalsStore
from annals._langgraph_threads import ThreadOperations, json_bytes, run_name

__all__ = ["AnnalsSaver", "AnnalsStore"]

# Most namespaces of threads of which a saver keeps the newest record.
NEWEST_MAX = 1024


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


class AnnalsSaver(ThreadOperations, BaseCheckpointSaver[str]):
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
        self._lists = ChannelLists()
        # The record and the references of the checkpoint that was saved last in a thread's namespace: the next one's
        # parent, which need not be decoded.
        self._newest: dict[tuple[str, str], tuple[bytes, builtins.list[ValueRef]]] = {}
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
            config=config_of(thread, ns, checkpoint_id),
            checkpoint={**checkpoint, "id": checkpoint_id, "channel_values": values},
            metadata=metadata,
            parent_config=config_of(thread, ns, record.parent) if record.parent else None,
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
        self,
        thread: str,
        ns: str,
        channel: str,
        saved_by: str,
        before: str | None,
        typed: tuple[str, bytes | SerialisedList],
        kept: ChannelList | None,
    ) -> builtins.list[tuple[Any, ...]]:
        """Writes a value. Chunks that the value of checkpoint `before` names are in the store already."""
        known = b""
        if before is not None:
            key = value_key(thread, ns, channel, before)
            if kept and kept.saved_by == before and self._space.has_value(VALUES, key, kept.stored):
                known = joined_digests(kept.stored)
            else:
                known = joined_digests(self._space.get(VALUES, key))
        stored, chunks = encode_value(*typed, known)
        if kept:
            kept.saved_by, kept.stored = saved_by, stored
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
        return config_of(thread, ns, checkpoint["id"])

    def _checkpoint_changes(
        self,
        thread: str,
        ns: str,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: Any,
        new_versions: ChannelVersions,
        serialised: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> builtins.list[tuple[Any, ...]]:
        """The changes that save a checkpoint. `serialised` has type and bytes of channels that are stored as given."""
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
                kept = None
                if serialised and channel in serialised:
                    typed: tuple[str, bytes | SerialisedList] = serialised[channel]
                else:
                    typed, kept = self._dumps_channel((thread, ns, channel), values[channel])
                kind, data = typed
                if isinstance(data, bytes) and len(data) <= INLINE_BYTES:
                    refs.append((*named, (kind, data)))
                    continue
                name, before = saved_by or checkpoint_id, latest.get(channel)
                changes += self._value_changes(thread, ns, channel, name, before, typed, kept)
                if kept:
                    self._lists.give((thread, ns, channel), kept)
                refs.append((*named, saved_by))
            else:
                refs.append((*named, None))
        record = Record(
            parent, self._dumps(rest, "the checkpoint"), self._dumps(metadata, "the metadata"), refs
        )
        if thread not in self._threads and self._space.get(THREADS, text(thread)) is None:
            changes.append(("put", THREADS, text(thread), checkpoint["ts"].encode()))
        encoded = record.encode()
        changes.append(("put", CHECKPOINTS, key, encoded))
        if len(self._newest) >= NEWEST_MAX:
            self._newest.clear()
        self._newest[thread, ns] = encoded, refs
        # Short, because each checkpoint has it: the record has the rest.
        shown = {"step": metadata.get("step")}
        if metadata.get("source") != "loop":
            shown["source"] = metadata.get("source")
        if ns:
            shown["checkpoint_ns"] = ns
        changes.append(("note", run_name(thread), checkpoint_id, json_bytes(shown), json_bytes(sorted(new_versions))))
        return changes

    def _dumps_channel(
        self, channel: tuple[str, str, str], value: Any
    ) -> tuple[tuple[str, bytes | SerialisedList], ChannelList | None]:
        """Type and bytes of a channel's value; a long list comes with what it leaves for the next put."""
        path = f"$.{channel[-1]}"
        if not may_grow(value, self.serde):
            return self._dumps(value, path), None
        kept = self._lists.take(channel)
        if kept is None:
            typed = self._dumps(value, path)
            return typed, ChannelList() if len(typed[1]) >= LIST_BYTES_MIN else None
        try:
            is_packed = kept.dumps(value, self.serde.dumps_typed)
        except Exception:  # noqa: BLE001 - the whole value fails as well, and its error has the path
            is_packed = False
        if not is_packed or len(kept.serialised) < LIST_BYTES_MIN:
            return self._dumps(value, path), None
        return ("msgpack", kept.serialised), kept

    def _dumps(self, value: Any, path: str) -> tuple[str, bytes]:
        try:
            kind, data = self.serde.dumps_typed(value)
            # The serializer gives a bytearray as it is.
            return kind, bytes(data)
        except Exception as error:
            place = _unserialisable(value, self.serde.dumps_typed, path)
            raise annals.Invalid(f"the state cannot be saved: {place} cannot be serialised ({error})") from error

    def _refs(self, thread: str, ns: str, checkpoint_id: str) -> builtins.list[ValueRef]:
        data = self._space.get(CHECKPOINTS, checkpoint_key(thread, ns, checkpoint_id))
        if data is None:
            return []
        encoded, refs = self._newest.get((thread, ns), (b"", []))
        return refs if data == encoded else Record.decode(data).refs

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


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])
