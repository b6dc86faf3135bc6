"""Sessions of agent frameworks, kept in an annals store.

`OpenAISession` is a `Session` of the OpenAI Agents SDK: `Runner.run(agent, "…", session=OpenAISession("user-7"))`.
It needs nothing of the SDK: the SDK's protocol is a set of methods.

`ClaudeSessionStore` is a `SessionStore` of the Claude Agent SDK: `ClaudeAgentOptions(session_store=…)`. It keeps
transcripts, also of subagents, and the SDK's summaries of them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import annals

OPENAI_ITEMS = "openai.sessions"


CLAUDE_ENTRIES = "claude.entries"
CLAUDE_IDS = "claude.ids"
CLAUDE_SESSIONS = "claude.sessions"


def _prefix(*parts: str) -> bytes:
    texts = (part.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") for part in parts)
    return b"".join(text + b"\0\1" for text in texts)


def _end(prefix: bytes) -> bytes | None:
    return prefix[:-1] + b"\2" if prefix else None


def _texts(key: bytes) -> list[str]:
    parts = key.split(b"\0\1")[:-1]
    return [part.replace(b"\0\xff", b"\0").decode("utf-8", "surrogatepass") for part in parts]


def _next_keys(space: annals.Namespace, keyspace: str, prefix: bytes) -> Iterator[bytes]:
    """Keys after the last one with this prefix. The time orders the items of all processes; a random number keeps the
    keys of two processes apart."""
    page, _ = space.scan_page(keyspace, prefix, _end(prefix), count=1, reverse=True, keys_only=True)
    last = int(page[0][0][len(prefix) :].split(b"-")[0]) if page else 0
    now, own = max(time.time_ns(), last + 1), secrets.token_hex(4)
    place = 0
    while True:
        yield prefix + f"{now:020}-{own}-{place:06}".encode()
        place += 1


def _scan(space: annals.Namespace, keyspace: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    start = prefix
    while True:
        page, more = space.scan_page(keyspace, start, _end(prefix), count=1000)
        for key, value in page:
            yield key, value or b""
        if not more or not page:
            return
        start = page[-1][0] + b"\0"


def _dumps(item: Any, place: int) -> str:
    try:
        return json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise annals.Invalid(f"item {place} cannot be stored: it is no JSON ({error})") from error


def _delete(space: annals.Namespace, keyspace: str, prefix: bytes) -> None:
    while page := space.scan_page(keyspace, prefix, _end(prefix), count=150, keys_only=True)[0]:
        space.write([("delete", keyspace, key) for key, _ in page])


class OpenAISession:
    """The items of one conversation. Any number of processes may add items; none is lost or overwritten.

    `store` is a path or an open `annals.Store`. Items are JSON, kept as the SDK gave them. `add_items` is on disk when
    it returns, whole.
    """

    session_settings: Any = None

    def __init__(self, session_id: str, store: Any = None, *, namespace: str = "default") -> None:
        self.session_id = session_id
        self._owns = not isinstance(store, annals.Store)
        self.store: annals.Store = annals.open(store) if self._owns else store
        self._space = self.store.namespace(namespace)
        self._start = _prefix(session_id)
        self._end = _end(self._start)

    def close(self) -> None:
        """Closes the store if it was opened here."""
        if self._owns:
            self.store.close()

    def _items(self, limit: int | None) -> list[Any]:
        found: list[Any] = []
        end = self._end
        while limit is None or len(found) < limit:
            count = 1000 if limit is None else min(limit - len(found), 1000)
            page, more = self._space.scan_page(OPENAI_ITEMS, self._start, end, count=count, reverse=True)
            found += [json.loads(value or b"") for _, value in page]
            if not more or not page:
                break
            end = page[-1][0]
        return found[::-1]

    def _add(self, items: list[Any]) -> None:
        if not items:
            return
        keys = _next_keys(self._space, OPENAI_ITEMS, self._start)
        values = [_dumps(item, place) for place, item in enumerate(items)]
        self._space.write([("put", OPENAI_ITEMS, key, value) for value, key in zip(values, keys)])  # noqa: B905

    def _pop(self) -> Any:
        page, _ = self._space.scan_page(OPENAI_ITEMS, self._start, self._end, count=1, reverse=True)
        if not page:
            return None
        self._space.delete(OPENAI_ITEMS, page[0][0])
        return json.loads(page[0][1] or b"")

    def _clear(self) -> None:
        _delete(self._space, OPENAI_ITEMS, self._start)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The newest `limit` items, or all, oldest first."""
        return await asyncio.to_thread(self._items, limit)

    async def add_items(self, items: list[Any]) -> None:
        """Adds items at the end."""
        await asyncio.to_thread(self._add, list(items))

    async def pop_item(self) -> Any:
        """Removes the newest item and returns it; None if there is none."""
        return await asyncio.to_thread(self._pop)

    async def clear_session(self) -> None:
        """Removes all items."""
        await asyncio.to_thread(self._clear)


class ClaudeSessionStore:
    """Transcripts of the Claude Agent SDK.

    `append` is on disk when it returns, whole. An entry whose `uuid` is there already is not added again. Summaries are
    made under a lock of this object: only one process should append to a session at a time, as the SDK does.
    """

    def __init__(self, store: Any = None, *, namespace: str = "default") -> None:
        self._owns = not isinstance(store, annals.Store)
        self.store: annals.Store = annals.open(store) if self._owns else store
        self._space = self.store.namespace(namespace)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the store if it was opened here."""
        if self._owns:
            self.store.close()

    def _append(self, key: Mapping[str, Any], entries: list[Any]) -> None:
        if not entries:
            return
        from claude_agent_sdk import fold_session_summary

        subpath = key.get("subpath", "")
        prefix = _prefix(key["project_key"], key["session_id"], subpath)
        with self._lock:
            changes: list[tuple[Any, ...]] = []
            keys, added, seen = _next_keys(self._space, CLAUDE_ENTRIES, prefix), [], set()
            for place, entry in enumerate(entries):
                uuid = entry.get("uuid")
                if uuid is not None:
                    at = prefix + _prefix(uuid)
                    if uuid in seen or self._space.get(CLAUDE_IDS, at) is not None:
                        continue
                    seen.add(uuid)
                    changes.append(("put", CLAUDE_IDS, at, b""))
                changes.append(("put", CLAUDE_ENTRIES, next(keys), _dumps(entry, place)))
                added.append(entry)
            if not added:
                return
            before = self._space.get(CLAUDE_SESSIONS, prefix)
            summary = None
            if not subpath:
                earlier = json.loads(before) if before else None
                summary = dict(fold_session_summary(earlier, key, added))
            session = {**(summary or {}), "session_id": key["session_id"], "mtime": time.time_ns() // 1_000_000}
            changes.append(("put", CLAUDE_SESSIONS, prefix, _dumps(session, 0)))
            self._space.write(changes)

    def _load(self, key: Mapping[str, Any]) -> list[Any] | None:
        prefix = _prefix(key["project_key"], key["session_id"], key.get("subpath", ""))
        entries = [json.loads(value) for _, value in _scan(self._space, CLAUDE_ENTRIES, prefix)]
        return entries or None

    def _sessions(self, project_key: str) -> list[dict[str, Any]]:
        found = _scan(self._space, CLAUDE_SESSIONS, _prefix(project_key))
        return [json.loads(value) for key, value in found if not _texts(key)[2]]

    def _delete(self, key: Mapping[str, Any]) -> None:
        parts = [key["project_key"], key["session_id"], *([key["subpath"]] if "subpath" in key else [])]
        # The list of sessions first: one that is listed has all its entries.
        for keyspace in (CLAUDE_SESSIONS, CLAUDE_IDS, CLAUDE_ENTRIES):
            _delete(self._space, keyspace, _prefix(*parts))

    def _subkeys(self, key: Mapping[str, Any]) -> list[str]:
        found = _scan(self._space, CLAUDE_SESSIONS, _prefix(key["project_key"], key["session_id"]))
        return [subpath for subpath in (_texts(key)[2] for key, _ in found) if subpath]

    async def append(self, key: Mapping[str, Any], entries: list[Any]) -> None:
        """Adds entries to a transcript."""
        await asyncio.to_thread(self._append, key, entries)

    async def load(self, key: Mapping[str, Any]) -> list[Any] | None:
        """All entries of a transcript in order; None if there are none."""
        return await asyncio.to_thread(self._load, key)

    async def list_sessions(self, project_key: str) -> list[dict[str, Any]]:
        """The sessions of a project with the time of their last change, in milliseconds since 1970."""
        found = await asyncio.to_thread(self._sessions, project_key)
        return [{"session_id": one["session_id"], "mtime": one["mtime"]} for one in found]

    async def list_session_summaries(self, project_key: str) -> list[dict[str, Any]]:
        """The SDK's summaries of the sessions of a project."""
        return await asyncio.to_thread(self._sessions, project_key)

    async def delete(self, key: Mapping[str, Any]) -> None:
        """Deletes a session with its subagents, or with `subpath` one subagent's transcript."""
        await asyncio.to_thread(self._delete, key)

    async def list_subkeys(self, key: Mapping[str, Any]) -> list[str]:
        """The subpaths of a session."""
        return await asyncio.to_thread(self._subkeys, key)
