"""The store for asyncio: the same objects, whose calls are awaited.

    async with annals.aio.open("agent.annals") as store:
        space = await store.namespace("default")
        await space.put("notes", "42", "rejected")
        async for frame in (await space.run("loan-42")).frames():
            ...

Each call runs on a thread, without the interpreter's lock, so the event loop goes on while the disk works.
"""

from __future__ import annotations

import asyncio
from os import PathLike
from typing import Any

import annals

_WRAPPED = (annals.Store, annals.Namespace, annals.Run, annals.RunReader)


def _wrap(value: Any) -> Any:
    if isinstance(value, _WRAPPED):
        return Awaitable(value)
    return _Frames(value) if isinstance(value, annals.Frames) else value


class Awaitable:
    """An object of `annals` whose methods are coroutines. `wrapped` is the object itself."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.wrapped, name)
        if not callable(member):
            return member
        # Only makes an iterator: nothing is read.
        if name == "frames":
            return lambda: _wrap(member())

        async def call(*arguments: Any, **options: Any) -> Any:
            return _wrap(await asyncio.to_thread(member, *arguments, **options))

        return call

    async def __aenter__(self) -> Awaitable:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self.wrapped.__exit__, *error)

    def __repr__(self) -> str:
        return f"<annals.aio of {self.wrapped!r}>"


class _Frames:
    def __init__(self, frames: annals.Frames) -> None:
        self._frames = frames

    def __aiter__(self) -> _Frames:
        return self

    async def __anext__(self) -> annals.Frame:
        frame = await asyncio.to_thread(next, self._frames, None)
        if frame is None:
            raise StopAsyncIteration
        return frame


class open:  # noqa: N801 - reads as annals.open does
    """Opens a store: `await annals.aio.open(path)` or `async with annals.aio.open(path) as store`."""

    def __init__(self, path: str | PathLike[str] | None = None, *, read_only: bool = False) -> None:
        self._call = (path, read_only)
        self._store: Awaitable | None = None

    async def _open(self) -> Awaitable:
        path, read_only = self._call
        return Awaitable(await asyncio.to_thread(annals.open, path, read_only=read_only))

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> Awaitable:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *error: Any) -> None:
        if self._store is not None:
            await self._store.close()
