"""Record and replay a block of a Python program.

    with annals.record("run"):
        agent()
    with annals.replay("run") as replayed:
        agent()
    print(replayed.receipt)

While a block is open, the HTTP clients' transports, clocks, ids and randomness are patched, and restored when the
last block ends. A replay calls no upstream; at its end it raises `annals.Diverged` unless it was faithful.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import json
import os
import pathlib
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from annals import _annals, errors, lanes
from annals.errors import Diverged, Invalid

# How long an answer waits for earlier ones while nothing moves, in seconds.
PATIENCE_S = 3.0
# How long an answer waits for calls that began before it ended, while nothing moves, in seconds. Such a call may begin
# later than in the recording, for example after a pause; that is no divergence.
BEGIN_PATIENCE_S = 0.1

_monotonic = time.monotonic


def default_store() -> pathlib.Path:
    """`$ANNALS_STORE`, else the nearest `.annals` upward, else `./.annals`."""
    if named := os.environ.get("ANNALS_STORE"):
        return pathlib.Path(named)
    here = pathlib.Path.cwd()
    for directory in (here, *here.parents):
        if (directory / ".annals").is_dir():
            return directory / ".annals"
    return pathlib.Path(".annals")


class _Session:
    """What recordings and replays have in common."""

    mode = ""
    receipt: Receipt | None = None

    def __init__(self, name: str, *, nondet: bool, guard: bool) -> None:
        self.name = name
        self.is_open = False
        self.pid = os.getpid()
        self.notes: list[str] = []
        self._lanes: dict[str, lanes.Lane] = {}
        self._lock = threading.Lock()
        self._token: Any = None
        self._patch_nondet = nondet
        self._guard = guard

    def lane(self, id: str) -> lanes.Lane:
        with self._lock:
            if id not in self._lanes:
                self._lanes[id] = lanes.Lane(self, id)
            return self._lanes[id]

    def note(self, what: str) -> None:
        """Says once that something is not in the recording."""
        with self._lock:
            if what not in self.notes:
                self.notes.append(what)

    def note_connection(self, address: str) -> None:
        """A connection that no patched client opened."""
        self.note(f"the connection to {address}")

    def _enter(self) -> None:
        from annals import http_hooks, nondet

        self._token = lanes.enter(self)
        self.is_open = True
        http_hooks.install()
        nondet.install(self, patch=self._patch_nondet, guard=self._guard)

    def _leave(self) -> None:
        from annals import http_hooks, nondet

        self.is_open = False
        nondet.uninstall(self)
        http_hooks.uninstall()
        lanes.leave(self, self._token)

    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened the block."""
        return os.getpid() != self.pid


class Recording(_Session):
    """A run that is being recorded."""

    mode = "record"

    def __init__(self, name, *, store, namespace, agent, model, tags, secrets, replace, nondet, guard):
        super().__init__(name, nondet=nondet, guard=guard)
        self.store = pathlib.Path(store) if store is not None else default_store()
        self.namespace = namespace
        self.counts: dict[str, Any] = {}
        self._exchanges: weakref.WeakSet = weakref.WeakSet()
        with lanes.inside():
            self._run = _annals.RecordingSession(
                self.store,
                name,
                namespace=namespace,
                agent=agent,
                model=model,
                tags=[(str(key), str(value)) for key, value in dict(tags or {}).items()],
                secrets=list(secrets),
                replace=replace,
            )

    def begin_exchange(self, lane, method: str, url: str, headers, body: bytes):
        """Begins the frame of a request; None in a forked child, which cannot record."""
        if self.is_forked():
            return None
        self.flush(lane)
        exchange = self._run.exchange(method, url, headers, body)
        self.note_invalid(headers, f"the request {method} {url.partition('?')[0]}")
        lane.note_call(exchange.seq)
        holder = ExchangeHolder(exchange, self, url)
        with self._lock:
            self._exchanges.add(holder)
        return holder

    def note_invalid(self, headers, of: str) -> None:
        """Says which headers a frame does not have, because HTTP does not allow them."""
        for name in _annals.invalid_headers(headers):
            self.note(f"the header {name!r} of {of}: HTTP does not allow it")

    def begin_call(self, lane, component: str, name: str, input: bytes, metadata: dict):
        """Begins the frame of another call, such as a tool's. Returns it with its metadata."""
        if self.is_forked():
            return None, metadata
        self.flush(lane)
        metadata = {"call": {"name": name}, "lane": lane.id, **metadata}
        call = self._run.call(component, input, _json(metadata), None)
        lane.note_call(call.seq)
        return call, metadata

    def record(self, component: str, input: bytes = b"", output: bytes = b"", **metadata: Any) -> None:
        """Records a frame of the program's own; a replay does not ask for it."""
        if not self.is_forked():
            self._run.record(component, _bytes(input), _bytes(output), _json(metadata))

    def flush(self, lane) -> None:
        """Records the draws of a lane since its last call."""
        pending, lane.pending = lane.pending, []
        if pending and not self.is_forked():
            metadata = _json({"draws": len(pending), "lane": lane.id})
            self._run.record("nondet", b"", "".join(pending).encode(), metadata)

    def snapshot(self, state: Any, label: str = "") -> int:
        """Stores a state. Returns the number of its frame.

        Raises `annals.NotSerializable` with the path to what cannot be stored.
        """
        from annals import snapshots

        with lanes.inside():
            return self._run.snapshot(state, snapshots.encode_other, _json({"snapshot": label}))

    def _finish(self, failed: bool) -> None:
        self._leave()
        if self.is_forked():
            return
        for lane in list(self._lanes.values()):
            self.flush(lane)
        for holder in list(self._exchanges):
            holder.hang_up()
        self.counts = self._run.end(not failed)
        if self.counts["failure"]:
            raise errors.Unavailable(f"run {self.name} lacks frames: {self.counts['failure']}")
        for note in self.notes:
            warnings.warn(f"annals: not recorded in {self.name}: {note}", stacklevel=4)


class ExchangeHolder:
    """The Python side of an exchange, so that an open one can be ended with its session."""

    __slots__ = ("__weakref__", "_exchange", "_session", "_url", "part")

    def __init__(self, exchange, session: Recording, url: str) -> None:
        self._exchange = exchange
        self._session = session
        self._url = url
        self.part = exchange.part

    def head(self, status: int, headers) -> None:
        self._exchange.head(status, headers)
        self._session.note_invalid(headers, f"the answer of {self._url.partition('?')[0]}")

    def end(self, broken: str | None = None) -> None:
        self._exchange.end(broken)

    def fail(self, error: BaseException) -> None:
        self._exchange.fail(f"{type(error).__name__}: {error}")

    def hang_up(self) -> None:
        self._exchange.hang_up()


class Replay(_Session):
    """A recorded run that answers the block."""

    mode = "replay"

    def __init__(self, name, *, store, namespace, rules, chaos, tools, network, nondet, guard, drifting, strict):
        super().__init__(name, nondet=nondet, guard=guard)
        if tools not in ("recorded", "live", "compare"):
            raise Invalid(f'tools is "recorded", "live" or "compare", not {tools!r}')
        self.store = pathlib.Path(store) if store is not None else default_store()
        self.namespace = namespace
        if network not in ("refuse", "allow"):
            raise Invalid(f'network is "refuse" or "allow", not {network!r}')
        self.tools = tools
        self.network = network
        self.drifting = drifting
        self.strict = strict
        self.diverged: list[str] = []
        self._moved = threading.Condition()
        self._movements = 0
        self._wakers: set = set()
        self._snapshots = 0
        with lanes.inside():
            self._run = _annals.ReplaySession(
                self.store,
                name,
                namespace=namespace,
                rules=[rules] if isinstance(rules, str) else list(rules),
                chaos=chaos,
                tools=tools,
            )
        # Exchanges in the order in which they began. Those before `_begun` have been asked for, or are given up.
        self._calls = [(begun, ended, seq) for seq, exchange, begun, ended in self._run.calls if exchange]
        self._ended_ns = {seq: ended for _, ended, seq in self._calls}
        self._asked: set[int] = set()
        self._begun = 0
        self._recorded: dict[str, list[str]] = {}
        for lane, lines in self._run.draws:
            self._recorded.setdefault(lane, []).extend(lines.splitlines())
        self._recorded_states: list[int] | None = None

    def lane(self, id: str):
        lane = super().lane(id)
        if lane.values is None:
            lane.values = iter(self._recorded.get(id, ()))
        return lane

    def note_divergence(self, what: str) -> None:
        """Notes a difference for the receipt."""
        with self._lock:
            self.diverged.append(what)

    def diverge(self, what: str) -> Diverged:
        """Notes a difference, and returns the exception to raise."""
        self.note_divergence(what)
        return Diverged(what)

    def note_connection(self, address: str) -> None:
        """Refuses a connection that no patched client opens."""
        if self.network == "refuse":
            raise self.diverge(
                f"the program connects to {address}, which is not recorded: allow it with network=\"allow\""
            )
        super().note_connection(address)

    def _check_fork(self) -> None:
        if self.is_forked():
            raise Diverged("a forked process of a replay cannot be answered, and must not call upstreams")

    def answer(self, method: str, url: str, headers, body: bytes):
        """The recorded answer of a request. Raises `Diverged`."""
        self._check_fork()
        found = self._run.answer(method, url, headers, body)
        return self._taken(found)

    def result(self, name: str, input: bytes):
        """The recorded result of another call. Raises `Diverged`."""
        self._check_fork()
        found = self._run.result(name, input)
        if not isinstance(found, str) and self.tools == "recorded":
            # What a tool asked that does not run.
            self._asked.update(json.loads(found.metadata).get("inside", ()))
        return self._taken(found)

    def _taken(self, found):
        if not isinstance(found, str):
            self._asked.add(found.seq)
        self._wake()
        if isinstance(found, str):
            raise Diverged(found)
        return found

    def _wake(self) -> None:
        with self._moved:
            self._movements += 1
            self._moved.notify_all()
            wakers, self._wakers = self._wakers, set()
        for loop, future in wakers:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(lambda future=future: future.done() or future.set_result(None))

    def _next_call(self, seq: int) -> int | None:
        """A call that began before this frame's answer ended, and that the program has not asked for yet."""
        with self._lock:
            while self._begun < len(self._calls) and self._calls[self._begun][2] in self._asked:
                self._begun += 1
            if self._begun == len(self._calls):
                return None
            begun, _, following = self._calls[self._begun]
            return following if begun < self._ended_ns.get(seq, 0) else None

    def wait_turn(self, seq: int) -> None:
        """Blocks until this frame's answer may end, as recorded."""
        while (following := self._next_call(seq)) is not None:
            with self._moved:
                seen = self._movements
                if self._next_call(seq) == following:
                    self._moved.wait(BEGIN_PATIENCE_S)
                    if self._movements == seen:
                        self._asked.add(following)
        while not self._run.may_end(seq):
            with self._moved:
                seen = self._movements
                if not self._run.may_end(seq) and self._movements == seen:
                    self._moved.wait(PATIENCE_S)
                    if self._movements == seen:
                        self._run.stop_waiting(seq)

    async def wait_turn_async(self, seq: int) -> None:
        """The same without blocking the event loop."""
        while (following := self._next_call(seq)) is not None:
            if not await self._movement(lambda: self._next_call(seq) != following, BEGIN_PATIENCE_S):
                self._asked.add(following)
        while not self._run.may_end(seq):
            if not await self._movement(lambda: self._run.may_end(seq), PATIENCE_S):
                self._run.stop_waiting(seq)

    async def _movement(self, done: Any, patience_s: float) -> bool:
        """Waits until a call of the program begins or ends, or is `done`; whether that happened in this time."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._moved:
            seen = self._movements
            self._wakers.add((loop, future))
        if done():
            return True
        woken, _ = await asyncio.wait({future}, timeout=patience_s)
        return bool(woken) or self._movements != seen

    def ended(self, seq: int) -> None:
        """Says that this frame's answer has ended."""
        self._run.note_end(seq)
        self._wake()

    def snapshot(self, state: Any, label: str = "") -> int:
        """Compares a state with the recorded one. A difference is named in the receipt."""
        from annals import snapshots

        encoded = snapshots.encode_bytes(state)
        if self._recorded_states is None:
            frames = _annals.frames(self.store, self.namespace, self.name)
            self._recorded_states = [frame["seq"] for frame in frames if frame["component"] == "state"]
        if self._snapshots >= len(self._recorded_states):
            raise self.diverge(f"snapshot {self._snapshots + 1} was not recorded")
        seq = self._recorded_states[self._snapshots]
        self._snapshots += 1
        found = _annals.snapshot(self.store, self.namespace, self.name, seq)
        if found is None or found[1] != encoded:
            where = snapshots.first_difference(found[1] if found else b"null", encoded)
            raise self.diverge(f"the state after frame {seq} differs at {where}")
        return seq

    def record(self, component: str, input: bytes = b"", output: bytes = b"", **metadata: Any) -> None:
        """Does nothing: the frame is recorded already."""

    def flush(self, lane) -> None:
        """Does nothing: draws are not recorded in a replay."""

    def _finish(self, failed: bool) -> None:
        self._leave()
        if self.is_forked():
            return
        # As in a recording, an answer that is still open ends with the block.
        for lane in list(self._lanes.values()):
            if lane.answer is not None:
                lane.answer.close()
        undrawn = 0
        for id, lines in self._recorded.items():
            if self.tools == "recorded" and "/tool." in id:
                continue  # drawn inside of a tool that does not run
            lane = self._lanes.get(id)
            undrawn += len(lines) if lane is None else sum(1 for _ in lane.values)
        self.receipt = Receipt(self._run.finish(), self.diverged, undrawn, list(self.notes))
        if self.strict and not failed and not self.receipt.faithful:
            raise Diverged(str(self.receipt))


class Receipt:
    """The outcome of a replay. Its text is one line, followed by the differences."""

    def __init__(self, counts: dict[str, Any], diverged: list[str], undrawn: int, notes: list[str]) -> None:
        self.counts = counts
        self.diverged = [*counts["diverged"], *diverged]
        self.undrawn = undrawn
        self.notes = notes
        self.faithful = bool(counts["faithful"]) and not diverged and not undrawn

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["counts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        lines = [self.counts["text"] + (f", undrawn {self.undrawn}" if self.undrawn else "")]
        return "\n".join([*lines, *self.diverged, *(f"not seen: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        return f"<Receipt {'faithful' if self.faithful else 'DIVERGED'}: {self.counts['text']}>"


_S = TypeVar("_S", bound=_Session)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Block(Generic[_S]):
    """A `with` block, an `async with` block, or a decorator."""

    def __init__(self, make: Callable[..., _S], name: str | None, options: dict[str, Any]) -> None:
        self._make = make
        self._name = name
        self._options = options
        self._session: Any = None

    def __enter__(self) -> _S:
        name = self._name or f"{pathlib.Path(sys.argv[0] or 'python').stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        self._session = self._make(name, **self._options)
        self._session._enter()
        return self._session

    def __exit__(self, kind, error, traceback) -> None:
        self._session._finish(kind is not None)
        # A client may have wrapped the divergence into an exception of its own.
        diverged = self._session.receipt and self._session.receipt.diverged
        if diverged and isinstance(error, Exception) and not isinstance(error, Diverged) and self._session.strict:
            raise Diverged(str(self._session.receipt)) from error

    async def __aenter__(self) -> _S:
        return self.__enter__()

    async def __aexit__(self, kind, error, traceback) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: _Function) -> _Function:
        name = self._name or function.__name__
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded_async(*args, **kwargs):
                with _Block(self._make, name, self._options):
                    return await function(*args, **kwargs)

            return recorded_async  # type: ignore[return-value]

        @functools.wraps(function)
        def recorded(*args, **kwargs):
            with _Block(self._make, name, self._options):
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]


def record(
    name: str | None = None,
    *,
    store: Any = None,
    namespace: str = "default",
    agent: str = "",
    model: str = "",
    tags: dict[str, Any] | None = None,
    secrets: tuple[str, ...] | list[str] = (),
    replace: bool = False,
    nondet: bool = True,
    guard: bool = False,
) -> _Block[Recording]:
    """Records a block, or the function that this decorates, as a run.

    `store` is a directory (default: as the command line finds it). `secrets` names environment variables whose
    values are removed before storing. `nondet` patches clocks, ids and randomness. `guard` raises
    `annals.Unrecorded` on threads, subprocesses and draws that cannot be recorded.
    """
    options = dict(
        store=store, namespace=namespace, agent=agent, model=model, tags=tags, secrets=secrets,
        replace=replace, nondet=nondet, guard=guard,
    )  # fmt: skip
    return _Block(Recording, name, options)


def replay(
    name: str,
    *,
    store: Any = None,
    namespace: str = "default",
    rules: str | list[str] | tuple[str, ...] = (),
    chaos: int | None = None,
    tools: str = "recorded",
    network: str = "refuse",
    nondet: bool = True,
    guard: bool = False,
    drifting: bool = False,
    strict: bool = True,
) -> _Block[Replay]:
    """Answers a block, or the function that this decorates, from a run.

    `rules` are texts as `annals replay --rule` takes them, such as "mask uuid $.messages", and presets of
    `--matcher`. `chaos` is a seed for another order of overlapping answers. `tools`: "recorded" hands back results,
    "live" runs tools and does not look at the recording, "compare" runs them and compares. `network` "refuse" raises
    on connections that no patched client opens; Unix sockets are free. `drifting` changes each draw, as a negative
    control. Without `strict`, a divergence at the end is only in the receipt.
    """
    options = dict(
        store=store, namespace=namespace, rules=rules, chaos=chaos, tools=tools, network=network,
        nondet=nondet, guard=guard, drifting=drifting, strict=strict,
    )  # fmt: skip
    return _Block(Replay, name, options)


def current_run() -> Any:
    """The open recording or replay that the caller belongs to, or None."""
    lane = lanes.current()
    return lane.session if lane else None


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _at_exit() -> None:
    # The interpreter ends inside of a block, for example in a daemon thread.
    for session in lanes.open_sessions():
        if not session.is_forked():
            with contextlib.suppress(Exception):
                session._finish(True)
            print(f"annals: the program ended inside of the block of {session.name}", file=sys.stderr)


atexit.register(_at_exit)


def _note_fork() -> None:
    for session in lanes.open_sessions():
        if not session.is_forked():
            session.note("a process was forked: what it does is not recorded")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_note_fork)
