"""Tools of a program: functions whose calls are recorded, and whose recorded results a replay hands back.

    @annals.tool
    def search(query: str) -> list[str]: ...

A frame holds the arguments, the result or the exception, and the version of the tool: a hash of its source. With
`annals.replay(..., tools="recorded")`, the default, the body does not run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar, overload

from annals import lanes, snapshots
from annals.errors import NotSerializable, ToolError


_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def tool(function: _Function) -> _Function: ...
@overload
def tool(*, name: str | None = None, version: str | None = None) -> Callable[[_Function], _Function]: ...
def tool(function: Any = None, *, name: str | None = None, version: str | None = None) -> Any:
    """Records the calls of a function, sync or async, also of generators, as frames of component tool.

    `name` is the tool's name (default: the function's). `version` is noted beside the hash of the source.
    """
    if function is None:
        return lambda function: tool(function, name=name, version=version)
    made = _Tool(function, name or function.__name__, version)
    for is_kind, wrapper in (
        (inspect.isasyncgenfunction, _async_generator),
        (inspect.iscoroutinefunction, _coroutine),
        (inspect.isgeneratorfunction, _generator),
    ):
        if is_kind(function):
            return wrapper(made)
    return _function(made)


class _Tool:
    def __init__(self, function: Any, name: str, version: str | None) -> None:
        self.function = function
        self.name = name
        self.call_name = f"tool {name}"
        facts = {"name": name, "source": source_hash(function)}
        if version is not None:
            facts["version"] = version
        self.facts = facts
        parameters = list(inspect.signature(function).parameters)
        self.is_method = bool(parameters) and parameters[0] in ("self", "cls")

    def input(self, args: tuple, kwargs: dict) -> bytes:
        if self.is_method and args:
            args = args[1:]
        try:
            return snapshots.encode_bytes({"args": list(args), "kwargs": kwargs})
        except NotSerializable as error:
            raise NotSerializable(error.path, f"{error.what} (an argument of the tool {self.name})") from None


def source_hash(function: Any) -> str | None:
    """The SHA-256 of a function's source, or None where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    return hashlib.sha256(source.encode()).hexdigest()


class RecordedCall:
    """One call that is being recorded."""

    def __init__(self, made: _Tool, lane: Any, args: tuple, kwargs: dict) -> None:
        self.tool = made
        self.call, self.metadata = lane.session.begin_call(
            lane, "tool", made.call_name, made.input(args, kwargs), {"tool": made.facts}
        )
        self.lane, self.inside = lane.body()

    def part(self, **what: Any) -> None:
        self._write((json.dumps(what, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))

    def _write(self, data: bytes) -> None:
        if self.call is not None:
            self.call.part(data)

    def end(self, error: bool) -> None:
        # The draws inside of the tool come before its end.
        self.lane.session.flush(self.lane)
        if self.call is not None:
            metadata = {**self.metadata, "inside": self.inside} if self.inside else None
            self.call.end(error, metadata and json.dumps(metadata).encode())

    def result(self, result: Any) -> Any:
        try:
            encoded = snapshots.encode(result)
        except NotSerializable as error:
            self.fail(error)
            raise NotSerializable(error.path, f"{error.what} (the result of {self.tool.name})") from None
        self.part(**{"return": encoded})
        self.end(False)
        return result

    def fail(self, error: BaseException) -> None:
        self.part(**{"raise": _encode_error(error)})
        self.end(True)


def _encode_error(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    try:
        args = snapshots.encode(list(error.args))
    except NotSerializable:
        args = [str(error)]
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "args": args, "text": str(error)}


def _decode_error(of: dict[str, Any]) -> BaseException:
    kind = snapshots.class_of(of["type"])
    if kind is not None and issubclass(kind, BaseException):
        with contextlib.suppress(Exception):
            return kind(*snapshots.decode(of["args"]))
    return ToolError(f"{of['type'].partition(':')[2]}: {of['text']}")


class _Served:
    """The recorded call that answers this one."""

    def __init__(self, made: _Tool, lane: Any, args: tuple, kwargs: dict) -> None:
        self.tool = made
        self.session = lane.session
        with lanes.inside():
            found = self.session.result(made.call_name, made.input(args, kwargs))
        self.seq = found.seq
        lines = found.output.decode("utf-8", "surrogatepass").splitlines()
        self.lines = [json.loads(line) for line in lines]
        recorded = json.loads(found.metadata).get("tool", {}).get("source")
        if recorded and made.facts["source"] and recorded != made.facts["source"]:
            self.session.note(f"the source of the tool {made.name} has changed since it was recorded")

    def end(self) -> None:
        self.session.ended(self.seq)

    def value(self, line: dict[str, Any]) -> Any:
        if "raise" in line:
            raise _decode_error(line["raise"])
        return snapshots.decode(line.get("return"))

    def last(self) -> dict[str, Any]:
        if not self.lines:
            raise self.session.diverge(f"the recorded call of {self.tool.name} (step {self.seq}) has no result")
        return self.lines[-1]

    def compare(self, lines: list[dict[str, Any]]) -> None:
        """Compares what the tool gives now with what it gave."""
        if lines != self.lines:
            one, other = (json.dumps(lines).encode() for lines in (self.lines, lines))
            where = snapshots.first_difference(one, other)
            self.session.note_divergence(f"step {self.seq}: the tool {self.tool.name} gives another result: {where}")


def lane_and_mode() -> tuple[Any, str]:
    lane = lanes.current()
    if lane is None:
        return None, "off"
    session = lane.session
    if session.mode == "record":
        return lane, "off" if session.is_forked() else "record"
    return lane, {"recorded": "serve", "live": "live", "compare": "compare"}[session.tools]


def _body(lane: Any, mode: str) -> Any:
    return lane.body()[0] if mode == "live" else None


def _returned(result: Any) -> list[dict[str, Any]]:
    return [json.loads(json.dumps({"return": snapshots.encode(result)}))]


def _raised(error: BaseException) -> list[dict[str, Any]]:
    return [json.loads(json.dumps({"raise": _encode_error(error)}))]


def _steps(items: Any, lane: Any) -> Any:
    while True:
        try:
            with lanes.within(lane):
                item = next(items)
        except StopIteration as stop:
            return stop.value
        yield item


async def _async_steps(items: Any, lane: Any) -> Any:
    while True:
        with lanes.within(lane):
            item = await anext(items, _END)
        if item is _END:
            return
        yield item


_END = object()


def _function(made: _Tool) -> Any:
    @functools.wraps(made.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return recorded_function(made, args, kwargs, lambda: made.function(*args, **kwargs))

    return call


def recorded_function(made: Any, args: tuple, kwargs: dict, run: Any) -> Any:
    """Runs a tool that is recorded, or gives its recorded result."""
    lane, mode = lane_and_mode()
    if mode in ("off", "live"):
        with lanes.within(_body(lane, mode)):
            return run()
    if mode == "record":
        recorded = RecordedCall(made, lane, args, kwargs)
        try:
            with lanes.within(recorded.lane):
                result = run()
        except BaseException as error:
            recorded.fail(error)
            raise
        return recorded.result(result)
    served = _Served(made, lane, args, kwargs)
    try:
        if mode == "compare":
            try:
                with lanes.within(lane.body()[0]):
                    result = run()
            except Exception as error:
                served.compare(_raised(error))
                raise
            served.compare(_returned(result))
            return result
        served.session.wait_turn(served.seq)
        return served.value(served.last())
    finally:
        served.end()


def _coroutine(made: _Tool) -> Any:
    @functools.wraps(made.function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await recorded_coroutine(made, args, kwargs, lambda: made.function(*args, **kwargs))

    return call


async def recorded_coroutine(made: Any, args: tuple, kwargs: dict, run: Any) -> Any:
    """Awaits a tool that is recorded, or gives its recorded result."""
    lane, mode = lane_and_mode()
    if mode in ("off", "live"):
        with lanes.within(_body(lane, mode)):
            return await run()
    if mode == "record":
        recorded = RecordedCall(made, lane, args, kwargs)
        try:
            with lanes.within(recorded.lane):
                result = await run()
        except BaseException as error:
            recorded.fail(error)
            raise
        return recorded.result(result)
    if mode == "serve":
        return await served_coroutine(made, lane, args, kwargs)
    served = _Served(made, lane, args, kwargs)
    try:
        with lanes.within(lane.body()[0]):
            result = await run()
    except Exception as error:
        served.compare(_raised(error))
        raise
    finally:
        served.end()
    served.compare(_returned(result))
    return result


async def served_coroutine(made: Any, lane: Any, args: tuple, kwargs: dict) -> Any:
    """The recorded result of a tool."""
    served = _Served(made, lane, args, kwargs)
    try:
        await served.session.wait_turn_async(served.seq)
        return served.value(served.last())
    finally:
        served.end()


def _generator(made: _Tool) -> Any:
    @functools.wraps(made.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        lane, mode = lane_and_mode()
        if mode == "off":
            return (yield from made.function(*args, **kwargs))
        if mode == "live":
            return (yield from _steps(made.function(*args, **kwargs), _body(lane, mode)))
        if mode == "record":
            recorded = RecordedCall(made, lane, args, kwargs)
            try:
                items = made.function(*args, **kwargs)
                while True:
                    try:
                        with lanes.within(recorded.lane):
                            item = next(items)
                    except StopIteration as stop:
                        return recorded.result(stop.value)
                    recorded.part(**{"yield": snapshots.encode(item)})
                    yield item
            except GeneratorExit:
                recorded.part(closed=True)
                recorded.end(False)
                items.close()
                raise
            except BaseException as error:
                recorded.fail(error)
                raise
        served = _Served(made, lane, args, kwargs)
        try:
            if mode == "compare":
                lines = []
                for item in _steps(made.function(*args, **kwargs), lane.body()[0]):
                    lines.append({"yield": snapshots.encode(item)})
                    yield item
                served.compare([*json.loads(json.dumps(lines)), *served.lines[-1:]])
                return None
            for line in served.lines:
                if "yield" not in line:
                    served.session.wait_turn(served.seq)
                    return served.value(line)
                yield snapshots.decode(line["yield"])
        finally:
            served.end()

    return call


def _async_generator(made: _Tool) -> Any:
    @functools.wraps(made.function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        lane, mode = lane_and_mode()
        if mode in ("off", "live"):
            async for item in _async_steps(made.function(*args, **kwargs), _body(lane, mode)):
                yield item
            return
        if mode == "record":
            recorded = RecordedCall(made, lane, args, kwargs)
            try:
                async for item in _async_steps(made.function(*args, **kwargs), recorded.lane):
                    recorded.part(**{"yield": snapshots.encode(item)})
                    yield item
            except GeneratorExit:
                recorded.part(closed=True)
                recorded.end(False)
                raise
            except BaseException as error:
                recorded.fail(error)
                raise
            recorded.result(None)
            return
        served = _Served(made, lane, args, kwargs)
        try:
            if mode == "compare":
                lines = []
                async for item in _async_steps(made.function(*args, **kwargs), lane.body()[0]):
                    lines.append({"yield": snapshots.encode(item)})
                    yield item
                served.compare([*json.loads(json.dumps(lines)), *served.lines[-1:]])
                return
            for line in served.lines:
                if "yield" not in line:
                    await served.session.wait_turn_async(served.seq)
                    served.value(line)
                    return
                yield snapshots.decode(line["yield"])
        finally:
            served.end()

    return call


def call_value(component: str, name: str, input: bytes, make: Any) -> Any:
    """A value that is made once: recorded as a call, and handed back by a replay."""
    lane = lanes.current()
    if lane is None:
        return make()
    session = lane.session
    if session.mode == "record":
        call, _ = session.begin_call(lane, component, name, input, {})
        value = make()
        if call is not None:
            call.part(snapshots.encode_bytes(value))
            call.end(False)
        return value
    if session.tools == "live":
        return make()
    found = session.result(name, input)
    session.wait_turn(found.seq)
    session.ended(found.seq)
    return snapshots.decode_bytes(found.output)
