"""Times, ids and random numbers, recorded in order for each lane (thread or task) and served again.

The explicit source: `nondet.time()`, `nondet.time_ns()`, `nondet.now()`, `nondet.uuid4()`, `nondet.random()`,
`nondet.random_bytes(n)`. Outside of a block it draws from the system.

While a block is open, these are patched, too: `time.time`, `time.time_ns`, `datetime.now`, `datetime.utcnow`,
`datetime.today`, `date.today`, `uuid.uuid1`, `uuid.uuid4`, the functions of `random`, new `random.Random()`
without a seed, `secrets`, `random.SystemRandom`, `os.urandom`. With `nondet=False` they stay as they are; with
`guard=True` as well, they are refused.

Not seen: `from random import random` and the like before the block; `numpy.random`; `time.monotonic` and
`time.perf_counter`; clocks read by extension modules; threads that were started before the block; modules that
draw while they are imported; `hash()` of texts (set PYTHONHASHSEED). Draws of the modules
in `PASSED` are left to the system: they time, log and name things of their own, and do not change what a program asks.
"""

from __future__ import annotations

import _thread
import ctypes
import datetime as _datetime
import gc
import importlib._bootstrap
import os
import random as _random
import sys
import threading
import time as _time
import uuid as _uuid
from typing import Any

from annals import lanes
from annals.errors import Unrecorded

# Modules whose own draws are not the program's.
PASSED = frozenset(
    {
        "_pytest", "aiohttp", "annals", "anyio", "asyncio", "concurrent", "email", "h11", "http", "httpcore",
        "httpcore2", "importlib", "logging", "pluggy", "pydantic_graph", "pytest", "queue", "selectors", "ssl", "subprocess",
        "tempfile", "threading", "urllib3", "warnings",
    }
)  # fmt: skip

# HTTP clients that measure how long their own requests take. Their draws are the program's.
_TIMING_CLIENTS = frozenset({"httpx", "httpx2", "requests"})

# A frame of draws holds at most about this many.
DRAWS_MAX = 2048

_real_time_ns = _time.time_ns
_real_urandom = os.urandom
_real_uuid1, _real_uuid4 = _uuid.uuid1, _uuid.uuid4
_state = threading.Lock()
_patches: list[tuple[Any, str, Any]] = []
_patched_by: list[Any] = []
_guards: list[Any] = []
# Guarded sessions with `nondet=False`: their draws are not recorded, so the patches refuse them.
_uncaptured: list[Any] = []


def _draw(kind: str, make: Any, encode: Any, decode: Any) -> Any:
    """The next value of the caller's lane: made and recorded, or served."""
    lane = lanes.current(started=True)
    if lane is None:
        return make()
    session = lane.session
    if session.mode == "record":
        if session.is_forked():
            return make()
        with lanes.inside():  # `uuid4` draws random bytes, which are no draw of their own
            value = make()
        lane.pending.append(f"{kind} {encode(value)}\n")
        if len(lane.pending) >= DRAWS_MAX:
            with lanes.inside():
                session.flush(lane)
        return value
    with lanes.inside():
        line = next(lane.values, None)
        if line is None:
            raise session.diverge(f"lane {lane.id} draws a {kind} after its last recorded draw")
        recorded, _, text = line.partition(" ")
        if recorded != kind:
            raise session.diverge(f"lane {lane.id} drew a {recorded} when it was recorded, and now a {kind}")
        value = decode(text)
    return _drifted(kind, value) if session.drifting else value


# As `DriftingNondet` of the engine: a day, 1 h, 2 min, 3 s and some nanoseconds.
_DRIFT_NS = (86_400 + 3_600 + 120 + 3) * 1_000_000_000 + 456_789_123
# The highest bit, the lowest, and every other one between: of numbers of 53 bits, of bytes, and of ids without the
# digits of their version and variant.
_DRIFT_BITS = 0x15555555555555
_DRIFT_BYTE = 0xAB
_DRIFT_UUID = 0xAAAAAAAA_AAAA_0AAA_0AAA_AAAAAAAAAAAB


def _drifted(kind: str, value: Any) -> Any:
    """A value that differs from the recorded one, also in seconds, dates, shares of 1 and parts of an id."""
    if kind == "clock":
        return value + _DRIFT_NS
    if kind == "uuid":
        return _uuid.UUID(int=value.int ^ _DRIFT_UUID)
    if kind == "fill":
        return bytes(byte ^ _DRIFT_BYTE for byte in value)
    return value ^ _DRIFT_BITS


def time_ns() -> int:
    """The wall clock in nanoseconds since 1970-01-01 UTC."""
    return _draw("clock", _real_time_ns, str, int)


def time() -> float:
    """The wall clock in seconds since 1970-01-01 UTC."""
    return time_ns() / 1e9


def now(tz: Any = None) -> _datetime.datetime:
    """The date and time, local or of a zone."""
    return _at(_datetime.datetime, time_ns(), tz)


def uuid4() -> _uuid.UUID:
    """A random id."""
    return _draw("uuid", _real_uuid4, str, _uuid.UUID)


def random_bytes(count: int) -> bytes:
    """Random bytes."""
    return _draw("fill", lambda: _real_urandom(count), bytes.hex, bytes.fromhex)


def random() -> float:
    """A random number from 0 to below 1."""
    number = _draw("random", lambda: int.from_bytes(_real_urandom(7), "little") >> 3, str, int)
    return number / (1 << 53)


def _at(cls: Any, ns: int, tz: Any) -> Any:
    seconds, rest = divmod(ns, 1_000_000_000)
    return cls.fromtimestamp(seconds, tz).replace(microsecond=rest // 1000)


class _Random(_random.Random):
    """The functions of the module `random`, with recorded draws. `seed` still acts on the module's generator."""

    def __new__(cls, of: Any) -> Any:
        return super().__new__(cls, 0)

    def __init__(self, of: Any) -> None:
        self._of = of
        self.gauss_next = None

    def seed(self, *args: Any, **kwargs: Any) -> None:
        self._of.seed(*args, **kwargs)
        self.gauss_next = None

    def getstate(self) -> Any:
        return self._of.getstate()

    def setstate(self, state: Any) -> None:
        self._of.setstate(state)

    def random(self) -> float:
        return _draw("random", lambda: int(self._of.random() * (1 << 53)), str, int) / (1 << 53)

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        made = _draw(
            "fill", lambda: self._of.getrandbits(k).to_bytes(size, "little"), bytes.hex, bytes.fromhex
        )
        return int.from_bytes(made, "little") & ((1 << k) - 1)

    def randbytes(self, n: int) -> bytes:
        return self.getrandbits(n * 8).to_bytes(n, "little")


# The locks of the modules that are being imported: empty at most times.
_imported_now = getattr(importlib._bootstrap, "_module_locks", (None,))


def _is_passed() -> bool:
    """Whether the caller's caller is a module whose draws are left to the system, or is being imported."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__", "").partition(".")[0] in PASSED:
        return True
    # A module is imported once in a process, so a second replay there would not draw again. The stack is only looked at
    # while something is imported: it takes long, and CPython 3.11 may crash later if every frame has been looked at.
    while frame is not None and _imported_now:
        if frame.f_code.co_name == "_call_with_frames_removed":
            return True
        frame = frame.f_back
    return False


def _refuse_uncaptured(name: str) -> None:
    """Raises in a guarded block that does not capture its draws."""
    if not _uncaptured:
        return
    lane = lanes.current(started=True)
    if lane is not None and lane.session in _uncaptured:
        raise Unrecorded(f"{name} is not recorded with nondet=False, and the guard of {lane.session.name} is on")


def _patched(ours: Any, original: Any, name: str) -> Any:
    def draw(*args: Any, **kwargs: Any) -> Any:
        if _is_passed():
            with lanes.inside():
                return original(*args, **kwargs)
        _refuse_uncaptured(name)
        return ours(*args, **kwargs)

    draw.__name__ = getattr(original, "__name__", "draw")
    draw.__doc__ = original.__doc__
    return draw


def _type_dict(of: type) -> dict[str, Any]:
    """The dictionary of a type that Python code cannot change otherwise."""
    return gc.get_referents(of.__dict__)[0]


class _DatetimePatch:
    """`datetime.now` and `datetime.utcnow` are methods of an immutable type of C."""

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}

    def install(self) -> str | None:
        """Patches; returns why it cannot."""
        methods = _type_dict(_datetime.datetime)
        self._originals = {name: methods[name] for name in ("now", "utcnow")}
        of = self._originals

        def now(cls: Any, tz: Any = None) -> Any:
            if lanes.current(started=True) is None or _is_passed():
                return of["now"].__get__(None, cls)(tz)
            _refuse_uncaptured("datetime.now")
            return _at(cls, time_ns(), tz)

        def utcnow(cls: Any) -> Any:
            if lanes.current(started=True) is None or _is_passed():
                return of["utcnow"].__get__(None, cls)()
            _refuse_uncaptured("datetime.utcnow")
            return _at(cls, time_ns(), _datetime.timezone.utc).replace(tzinfo=None)

        self._set({"now": classmethod(now), "utcnow": classmethod(utcnow)})
        if _datetime.datetime.now.__func__ is not now:
            self.uninstall()
            return "datetime.now cannot be patched in this Python"
        return None

    def uninstall(self) -> None:
        self._set(self._originals)

    @staticmethod
    def _set(methods: dict[str, Any]) -> None:
        _type_dict(_datetime.datetime).update(methods)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(_datetime.datetime))


_datetime_patch = _DatetimePatch()


def install(session: Any, *, patch: bool, guard: bool) -> None:
    """Patches the clocks and the randomness for a block, and guards it."""
    with _state:
        if guard:
            _guards.append(session)
            _install_guard()
            if not patch:
                _uncaptured.append(session)
        if not patch and not guard:
            return
        _patched_by.append(session)
        if len(_patched_by) > 1:
            return
        _install_patches(session)


def uninstall(session: Any) -> None:
    """Takes the patches out when no block wants them."""
    with _state:
        if session in _guards:
            _guards.remove(session)
            if not _guards:
                lanes.restore(_guard_patches)
        if session in _uncaptured:
            _uncaptured.remove(session)
        if session not in _patched_by:
            return
        _patched_by.remove(session)
        if not _patched_by:
            _datetime_patch.uninstall()
            lanes.restore(_patches)


def _install_patches(session: Any) -> None:
    def ours(function: Any, name: str) -> Any:
        return lambda original: _patched(function, original, name)

    def secret_bytes(count: int) -> bytes:
        _refuse_uncaptured("random.SystemRandom")
        return random_bytes(count)

    def uuid1(node: Any = None, clock_seq: Any = None) -> _uuid.UUID:
        return _draw("uuid", lambda: _real_uuid1(node, clock_seq), str, _uuid.UUID)

    lanes.replace(_time, "time", ours(time, "time.time"), _patches)
    lanes.replace(_time, "time_ns", ours(time_ns, "time.time_ns"), _patches)
    lanes.replace(_uuid, "uuid1", ours(uuid1, "uuid.uuid1"), _patches)
    lanes.replace(_uuid, "uuid4", ours(uuid4, "uuid.uuid4"), _patches)
    lanes.replace(os, "urandom", ours(random_bytes, "os.urandom"), _patches)
    # `secrets` and `random.SystemRandom` draw through this name.
    lanes.replace(_random, "_urandom", lambda original: secret_bytes, _patches)
    generator = _Random(_random._inst)
    for name, of in list(vars(_random).items()):
        if getattr(of, "__self__", None) is _random._inst and hasattr(generator, name):
            lanes.replace(_random, name, ours(getattr(generator, name), f"random.{name}"), _patches)

    def seed(original: Any) -> Any:
        def seed(self: Any, a: Any = None, version: int = 2) -> None:
            unseeded = a is None and type(self) is not _random.SystemRandom
            if unseeded and lanes.current(started=True) is not None and not _is_passed():
                _refuse_uncaptured("random.Random without a seed")
                a = int.from_bytes(random_bytes(32), "little")
            original(self, a, version)

        return seed

    lanes.replace(_random.Random, "seed", seed, _patches)
    if why := _datetime_patch.install():
        session.note(why)
    if "numpy" in sys.modules:
        session.note("numpy.random is not patched: pass a generator that is seeded from annals.nondet")


_REFUSED = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.spawn", "os.exec",
     "_thread.start_new_thread", "_thread.start_joinable_thread"}
)  # fmt: skip
_THREAD_STARTS = (
    (_thread, "start_new_thread"),
    (threading, "_start_new_thread"),
    (threading, "_start_joinable_thread"),
)
_hooked = False


def _install_guard() -> None:
    """An audit hook cannot be taken out, so there is one, which looks for guarded sessions."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_audit)
    if len(_guards) == 1:
        for name in ("monotonic", "perf_counter", "sleep"):
            lanes.replace(_time, name, _refusing(f"time.{name}"), _guard_patches)
        # Python before 3.12 has no event for a thread's start, and 3.13 has another one.
        for module, name in _THREAD_STARTS:
            if hasattr(module, name):
                lanes.replace(module, name, _refusing("a thread's start", passes=False), _guard_patches)


_guard_patches: list[tuple[Any, str, Any]] = []


def _refusing(name: str, *, passes: bool = True) -> Any:
    """Refuses calls of a guarded block; `passes` lets modules of the system and HTTP clients call it."""

    def is_client() -> bool:
        caller = sys._getframe(2).f_globals.get("__name__", "")
        return caller.partition(".")[0] in _TIMING_CLIENTS

    def make(original: Any) -> Any:
        def refuse(*args: Any, **options: Any) -> Any:
            lane = lanes.current()
            if lane is not None and lane.session in _guards and not (passes and (_is_passed() or is_client())):
                raise Unrecorded(f"{name} is not recorded, and the guard of {lane.session.name} is on")
            return original(*args, **options)

        return refuse

    return make


def _audit(event: str, args: Any) -> None:
    if _guards and event in _REFUSED:
        lane = lanes.current()
        if lane is not None and lane.session in _guards:
            raise Unrecorded(f"{event} is not recorded, and the guard of {lane.session.name} is on")
