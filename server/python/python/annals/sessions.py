"""Sessions of agent frameworks, kept in an annals store.

`OpenAISession` is a `Session` of the OpenAI Agents SDK: `Runner.run(agent, "…", session=OpenAISession("user-7"))`.
It needs nothing of the SDK: the SDK's protocol is a set of methods.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

import annals

OPENAI_ITEMS = "openai.sessions"


def _prefix(session_id: str) -> bytes:
    return session_id.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\1"


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
        self._end = self._start[:-1] + b"\2"

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
        # The time orders the items of all processes. The random number keeps two processes apart.
        page, _ = self._space.scan_page(OPENAI_ITEMS, self._start, self._end, count=1, reverse=True, keys_only=True)
        last = int(page[0][0][len(self._start) :].split(b"-")[0]) if page else 0
        now, own = max(time.time_ns(), last + 1), secrets.token_hex(4)
        changes = []
        for place, item in enumerate(items):
            try:
                value = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
            except (TypeError, ValueError) as error:
                raise annals.Invalid(f"item {place} cannot be stored: it is no JSON ({error})") from error
            changes.append(("put", OPENAI_ITEMS, self._start + f"{now:020}-{own}-{place:06}".encode(), value))
        self._space.write(changes)

    def _pop(self) -> Any:
        page, _ = self._space.scan_page(OPENAI_ITEMS, self._start, self._end, count=1, reverse=True)
        if not page:
            return None
        self._space.delete(OPENAI_ITEMS, page[0][0])
        return json.loads(page[0][1] or b"")

    def _clear(self) -> None:
        while page := self._space.scan_page(OPENAI_ITEMS, self._start, self._end, count=150, keys_only=True)[0]:
            self._space.write([("delete", OPENAI_ITEMS, key) for key, _ in page])

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
