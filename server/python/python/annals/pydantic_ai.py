"""pydantic-ai on annals: `AnnalsWorkspace`, the files of an agent, and `AnnalsConversationStore`, conversations.

    from annals.pydantic_ai import AnnalsWorkspace

    agent = Agent(model, workspace=AnnalsWorkspace("agent.annals"))

| keyspace | key | value |
|---|---|---|
| pydantic_ai.workspaces | workspace | nothing |
| pydantic_ai.files | workspace, folder, name | `d`, or `f` and the bytes of the file |
| pydantic_ai.conversations | conversation | its `ConversationRecord`, JSON |
| pydantic_ai.entries | entry | the id of the entry before it, a newline, a list of its message, JSON |

A text in a key is written as in `annals.sessions`.
"""

from __future__ import annotations

import asyncio
import posixpath
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.workspaces import FileEntry, WorkspaceRef, WorkspaceUnavailableError

import annals
from annals.sessions import _delete, _prefix, _scan, _texts

WORKSPACES = "pydantic_ai.workspaces"
FILES = "pydantic_ai.files"
CONVERSATIONS = "pydantic_ai.conversations"
ENTRIES = "pydantic_ai.entries"

PROVIDER = "annals"
WORKING_DIR = "/workspace"
FOLDER, FILE = b"d", b"f"

T = TypeVar("T")


class _Opened:
    """A store that was opened here, or the caller's."""

    def __init__(self, store: Any, namespace: str) -> None:
        self._owns = not isinstance(store, annals.Store)
        self.store: annals.Store = annals.open(store) if self._owns else store
        self._space = self.store.namespace(namespace)

    def close(self) -> None:
        """Closes the store if it was opened here."""
        if self._owns:
            self.store.close()


class AnnalsWorkspace(_Opened):
    """A `WorkspaceBackend` whose files are keys: it has files and folders, no commands and no symbolic links.

    Without `ref`, the first operation makes a workspace. `ref.id` names it, for another process or a later time.
    A file is on disk, whole, when `write_bytes` returns. Changes of several processes to one file follow each other;
    a file may be left over if another process removes its folder at the same moment.
    """

    def __init__(self, store: Any = None, *, ref: WorkspaceRef | str | None = None, namespace: str = "default") -> None:
        super().__init__(store, namespace)
        if isinstance(ref, str):
            ref = WorkspaceRef(provider=PROVIDER, id=ref)
        if ref is not None and ref.provider != PROVIDER:
            raise annals.Invalid(f"the workspace {ref.id!r} is kept by {ref.provider!r}, not by {PROVIDER!r}")
        self._ref: WorkspaceRef | None = ref
        self._lock = threading.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The name of the workspace; None before the first operation of a new one."""
        return self._ref

    async def working_dir(self) -> str:
        """The folder in which relative paths begin."""
        return await self._do(lambda: WORKING_DIR)

    async def read_bytes(self, path: str) -> bytes:
        return await self._do(self._read, path)

    async def write_bytes(self, path: str, data: bytes) -> None:
        await self._do(self._write, path, data)

    async def stat(self, path: str) -> FileEntry:
        return await self._do(lambda: _entry(_normal(path), self._found(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        return await self._do(lambda: list(self._children(path)))

    async def make_dir(self, path: str) -> None:
        await self._do(self._make, path)

    async def remove(self, path: str) -> None:
        await self._do(self._remove, path)

    async def exists(self, path: str) -> bool:
        return await self._do(lambda: self._get(_normal(path)) is not None)

    async def delete(self) -> None:
        """Deletes the workspace. Other backends of it raise `WorkspaceUnavailableError` from then on."""

        def delete() -> None:
            name = self._name()
            self._space.delete(WORKSPACES, _prefix(name))
            _delete(self._space, FILES, _prefix(name))

        await self._do(delete)

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        def locked() -> T:
            with self._lock:
                self._attach()
                return work(*arguments)

        return await asyncio.to_thread(locked)

    def _attach(self) -> None:
        if self._ref is None:
            name = uuid.uuid4().hex
            self._space.write([
                ("put", WORKSPACES, _prefix(name), b""),
                *(("put", FILES, _key(name, folder), FOLDER) for folder in ("/", WORKING_DIR)),
            ])
            self._ref = WorkspaceRef(provider=PROVIDER, id=name)
        elif self._space.get(WORKSPACES, _prefix(self._ref.id)) is None:
            raise WorkspaceUnavailableError(f"the store has no workspace {self._ref.id!r}")

    def _name(self) -> str:
        assert self._ref is not None
        return self._ref.id

    def _get(self, path: str) -> bytes | None:
        return self._space.get(FILES, _key(self._name(), path))

    def _found(self, path: str) -> bytes:
        data = self._get(_normal(path))
        if data is None:
            raise FileNotFoundError(path)
        return data

    def _read(self, path: str) -> bytes:
        data = self._found(path)
        if data == FOLDER:
            raise IsADirectoryError(path)
        return data[1:]

    def _write(self, path: str, data: bytes) -> None:
        at = _normal(path)
        if self._get(at) == FOLDER:
            raise IsADirectoryError(path)
        changes = self._folders(posixpath.dirname(at))
        self._space.write([*changes, ("put", FILES, _key(self._name(), at), FILE + data)])

    def _make(self, path: str) -> None:
        at = _normal(path)
        if (self._get(at) or FOLDER) != FOLDER:
            raise FileExistsError(path)
        if changes := self._folders(at):
            self._space.write(changes)

    def _folders(self, path: str) -> list[tuple[Any, ...]]:
        """The changes that make this folder and those above it."""
        changes: list[tuple[Any, ...]] = []
        while (data := self._get(path)) != FOLDER:
            if data is not None:
                raise NotADirectoryError(path)
            changes.append(("put", FILES, _key(self._name(), path), FOLDER))
            path = posixpath.dirname(path)
        return changes

    def _children(self, path: str) -> Iterator[FileEntry]:
        at = _normal(path)
        if self._found(path) != FOLDER:
            raise NotADirectoryError(path)
        for key, data in _scan(self._space, FILES, _prefix(self._name(), at)):
            if name := _texts(key)[2]:
                yield _entry(posixpath.join(at, name), data)

    def _remove(self, path: str) -> None:
        at = _normal(path)
        if at == WORKING_DIR or WORKING_DIR.startswith(at.rstrip("/") + "/"):
            raise ValueError(f"{path} cannot be removed: it is the working directory, or has it inside")
        folder = self._found(path) == FOLDER
        # The name first: what cannot be found is not read.
        self._space.delete(FILES, _key(self._name(), at))
        folders = [at] if folder else []
        while folders:
            parent = folders.pop()
            prefix = _prefix(self._name(), parent)
            found = [_texts(key)[2] for key, data in _scan(self._space, FILES, prefix) if data == FOLDER]
            folders += [posixpath.join(parent, name) for name in found]
            _delete(self._space, FILES, prefix)


def _normal(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"the path must be absolute: {path!r}")
    # POSIX gives two slashes at the beginning a meaning of their own.
    return "/" + posixpath.normpath(path).lstrip("/")


def _key(workspace: str, path: str) -> bytes:
    return _prefix(workspace, posixpath.dirname(path), posixpath.basename(path))


def _entry(path: str, data: bytes) -> FileEntry:
    folder = data == FOLDER
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=folder, size=None if folder else len(data) - 1)


# One for all objects of the process: a revision is compared and written under it.
_REVISIONS = threading.Lock()
_RECORD: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class AnnalsConversationStore(_Opened, ConversationStore):
    """A `ConversationStore`: a save is on disk, whole, when it returns, and stores new messages only.

    Revisions are compared for all threads of one process: only one process should save a conversation at a time.
    Deleting a conversation deletes the messages that no other conversation's history or branch has.
    """

    def __init__(self, store: Any = None, *, namespace: str = "default") -> None:
        super().__init__(store, namespace)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return await asyncio.to_thread(self._record, conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> list[ConversationRecord]:
        def read() -> list[ConversationRecord]:
            found = [record for record in self._records() if scope is None or record.scope == scope]
            found.sort(key=lambda record: record.updated_at, reverse=True)
            return found[:limit]

        return await asyncio.to_thread(read)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        def write() -> None:
            self._expect(record.conversation_id, expected_revision)
            head, new = record.head_id, {entry.id for entry in new_entries}
            if head is not None and head not in new and self._space.get(ENTRIES, _prefix(head)) is None:
                raise ConversationConflict(record.conversation_id)
            changes = [("put", ENTRIES, _prefix(entry.id), _entry_bytes(entry)) for entry in new_entries]
            changes.append(("put", CONVERSATIONS, _prefix(record.conversation_id), _RECORD.dump_json(record)))
            self._space.write(changes)

        await self._locked(write)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        def delete() -> None:
            record = self._expect(conversation_id, expected_revision)
            assert record is not None
            entries = self._reached([record]) - self._reached(self._relatives(record))
            changes = [("delete", CONVERSATIONS, _prefix(conversation_id))]
            self._space.write(changes + [("delete", ENTRIES, _prefix(entry)) for entry in entries])

        await self._locked(delete)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return await asyncio.to_thread(self._entry, entry_id)

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        def read() -> list[ConversationEntry]:
            entries: list[ConversationEntry] = []
            at = head_id
            while at is not None and (limit is None or len(entries) < limit):
                entries.append(self._entry(at))
                at = entries[-1].parent_id
            return entries[::-1]

        return await asyncio.to_thread(read)

    async def _locked(self, work: Callable[[], None]) -> None:
        def locked() -> None:
            with _REVISIONS:
                work()

        await asyncio.to_thread(locked)

    def _record(self, conversation_id: str) -> ConversationRecord | None:
        data = self._space.get(CONVERSATIONS, _prefix(conversation_id))
        return None if data is None else _RECORD.validate_json(data)

    def _records(self) -> Iterator[ConversationRecord]:
        for _, data in _scan(self._space, CONVERSATIONS, b""):
            yield _RECORD.validate_json(data)

    def _expect(self, conversation_id: str, revision: str | None) -> ConversationRecord | None:
        record = self._record(conversation_id)
        if (None if record is None else record.revision) != revision:
            raise ConversationConflict(conversation_id)
        return record

    def _entry(self, entry_id: str) -> ConversationEntry:
        data = self._space.get(ENTRIES, _prefix(entry_id))
        if data is None:
            raise KeyError(entry_id)
        parent, _, message = data.partition(b"\n")
        (loaded,) = ModelMessagesTypeAdapter.validate_json(message)
        return ConversationEntry(id=entry_id, parent_id=parent.decode() or None, message=loaded)

    def _relatives(self, record: ConversationRecord) -> list[ConversationRecord]:
        """The other conversations that may have entries of this one: forks share entries, and nothing else does."""
        others = [other for other in self._records() if other.conversation_id != record.conversation_id]
        origins = {other.forked_from for other in (record, *others)}
        return [other for other in others if other.forked_from is not None or other.conversation_id in origins]

    def _reached(self, records: list[ConversationRecord]) -> set[str]:
        """The entries of their histories and branches."""
        reached: set[str] = set()
        for record in records:
            for tip in (record.head_id, *record.branches):
                while tip and tip not in reached:
                    reached.add(tip)
                    data = self._space.get(ENTRIES, _prefix(tip)) or b""
                    tip = data.partition(b"\n")[0].decode()
        return reached


def _entry_bytes(entry: ConversationEntry) -> bytes:
    return (entry.parent_id or "").encode() + b"\n" + ModelMessagesTypeAdapter.dump_json([entry.message])
