"""Which session and which lane a line of the program belongs to.

A lane is a thread or a task. Its id says how it was started: `0` is the block itself, `0/2` the second thread,
task or job that the block started. So a replay finds the same lane under the same id, whatever order the threads
run in. Lanes are counted while a session is open, by patches of `Thread.start`, `Executor.submit` and the event
loop's `create_task`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import multiprocessing.process
import os
import socket
import subprocess
import threading
from typing import Any

from annals.errors import Invalid

_LANE: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("annals_lane", default=None)
# Set while annals itself, or a client below a recorded call, runs: its calls are not the program's.
_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("annals_inside", default=False)
_open: list[Any] = []
_lock = threading.Lock()


class Lane:
    """A thread or a task of a session."""

    __slots__ = ("_lock", "answer", "bodies", "children", "id", "inside", "pending", "session", "values")

    def __init__(self, session: Any, id: str) -> None:
        self.session = session
        self.id = id
        self.children = 0
        self._lock = threading.Lock()
        self.pending: list[str] = []
        self.values: Any = None
        self.answer: Any = None
        self.bodies = 0
        # The lists of the tools that this lane runs in: each gets the frames of its calls.
        self.inside: tuple[list[int], ...] = ()

    def child(self) -> Lane:
        """The lane of a thread or task that this lane starts."""
        with self._lock:
            self.children += 1
            lane = self.session.lane(f"{self.id}/{self.children}")
        lane.inside = self.inside
        return lane

    def body(self) -> tuple[Lane, list[int]]:
        """The lane of a tool's body, and the list of the calls inside of it."""
        with self._lock:
            self.bodies += 1
            lane = self.session.lane(f"{self.id}/tool.{self.bodies}")
        calls: list[int] = []
        lane.inside = (*self.inside, calls)
        return lane, calls

    def note_call(self, seq: int | None) -> None:
        """Notes a call for the tools that it is made in."""
        if seq is not None:
            for calls in self.inside:
                calls.append(seq)


def current(*, started: bool = False) -> Lane | None:
    """The lane of the caller, or None outside of every session.

    A thread that was started before the block belongs to the one open session, unless only threads that were
    `started` inside count. If several sessions are open, none can be told, which is an error.
    """
    if _INSIDE.get():
        return None
    lane = _LANE.get()
    if lane is not None and lane.session.is_open:
        return lane
    sessions = list(_open)
    if not sessions or started:
        return None
    if len(sessions) == 1:
        return sessions[0].lane(f"?{threading.current_thread().name}")
    raise Invalid(
        "several annals blocks are open, and this thread was started by none of them: "
        "start it inside of the block"
    )


@contextlib.contextmanager
def inside():
    """Marks calls as annals' own."""
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)


class within:
    """Runs a block in a lane. A generator uses it around each step, because steps may run in other contexts."""

    def __init__(self, lane: Lane | None) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        self._token = _LANE.set(self._lane) if self._lane is not None else None

    def __exit__(self, *error: Any) -> None:
        if self._token is not None:
            _LANE.reset(self._token)


def enter(session: Any) -> contextvars.Token:
    """Opens a session for this context."""
    with _lock:
        _open.append(session)
        if len(_open) == 1:
            _patch()
    return _LANE.set(session.lane("0"))


def leave(session: Any, token: contextvars.Token | None) -> None:
    """Closes a session."""
    with _lock:
        if session in _open:
            _open.remove(session)
            if not _open:
                _unpatch()
    if token is not None:
        # Another context may close the block, for example a generator that is collected.
        with contextlib.suppress(ValueError):
            _LANE.reset(token)


def open_sessions() -> list[Any]:
    """All open sessions."""
    return list(_open)


def _with_lane(lane: Lane, function):
    @functools.wraps(function)
    def run(*args, **kwargs):
        token = _LANE.set(lane)
        try:
            return function(*args, **kwargs)
        finally:
            _LANE.reset(token)

    return run


_originals: list[tuple[Any, str, Any]] = []


_INHERITED = object()


def replace(owner: Any, name: str, make, into: list[tuple[Any, str, Any]]) -> None:
    """Replaces an attribute; `restore` puts the originals back."""
    original = getattr(owner, name, None)
    if original is None:
        return
    own = owner.__dict__.get(name, _INHERITED) if isinstance(owner, type) else original
    into.append((owner, name, own))
    setattr(owner, name, make(original))


def restore(originals: list[tuple[Any, str, Any]]) -> None:
    """Puts replaced attributes back, the last one first."""
    while originals:
        owner, name, original = originals.pop()
        if original is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _note_process(what: Any) -> None:
    lane = current()
    if lane is not None:
        name = what.decode(errors="replace") if isinstance(what, bytes) else str(what)
        lane.session.note(f"the process {name!r}: annals sees only this one")


def _note_connection(address: Any) -> None:
    lane = current()
    if lane is not None:
        host = ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)
        lane.session.note_connection(host)


def _patch() -> None:
    def thread_start(original):
        @functools.wraps(original)
        def start(self):
            lane = current(started=True)
            if lane is not None:
                self.run = _with_lane(lane.child(), self.run)
            return original(self)

        return start

    def submit(original):
        @functools.wraps(original)
        def submit(self, fn, /, *args, **kwargs):
            lane = current(started=True)
            with inside():  # the pool's own threads are no lanes; its jobs are
                return original(self, fn if lane is None else _with_lane(lane.child(), fn), *args, **kwargs)

        return submit

    def create_task(original):
        @functools.wraps(original)
        def create_task(self, coro, **kwargs):
            lane = current(started=True)
            if lane is None:
                return original(self, coro, **kwargs)
            context = kwargs.get("context")
            if context is not None:
                context.run(_LANE.set, lane.child())
                return original(self, coro, **kwargs)
            token = _LANE.set(lane.child())
            try:
                return original(self, coro, **kwargs)
            finally:
                _LANE.reset(token)

        return create_task

    def process_start(original):
        @functools.wraps(original)
        def start(self):
            _note_process(self.name)
            return original(self)

        return start

    def popen_init(original):
        @functools.wraps(original)
        def init(self, args, *rest, **kwargs):
            _note_process(args if isinstance(args, (str, bytes, os.PathLike)) else next(iter(args), ""))
            return original(self, args, *rest, **kwargs)

        return init

    def system(original):
        @functools.wraps(original)
        def system(command):
            _note_process(command)
            return original(command)

        return system

    def connect(original):
        @functools.wraps(original)
        def connect(self, address):
            if self.family != getattr(socket, "AF_UNIX", None):
                _note_connection(address)
            return original(self, address)

        return connect

    replace(socket.socket, "connect", connect, _originals)
    replace(socket.socket, "connect_ex", connect, _originals)
    replace(multiprocessing.process.BaseProcess, "start", process_start, _originals)
    replace(subprocess.Popen, "__init__", popen_init, _originals)
    replace(os, "system", system, _originals)
    replace(threading.Thread, "start", thread_start, _originals)
    replace(concurrent.futures.ThreadPoolExecutor, "submit", submit, _originals)
    replace(asyncio.BaseEventLoop, "create_task", create_task, _originals)


def _unpatch() -> None:
    restore(_originals)
