"""The parts of an answer, recorded while they pass, or served as recorded."""

from __future__ import annotations

from typing import Any


def describe(error: BaseException) -> str:
    """An exception as a frame holds it."""
    return f"{type(error).__name__}: {error}"


def recorded_error(broken: str, classes: Any, default: type[Exception]) -> tuple[type[Exception], str]:
    """The exception class and the text that a frame holds, if the client has that class."""
    broken = broken.removeprefix("the upstream broke off: ")
    name, _, text = broken.partition(": ")
    found = getattr(classes, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found, text
    return default, broken


class RecordedParts:
    """Notes parts of an answer. It ends once, whatever ends it."""

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._ended = False

    def part(self, bytes_: bytes) -> None:
        if not self._ended and bytes_:
            self._exchange.part(bytes(bytes_))

    def end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            if error is None:
                self._exchange.end()
            elif isinstance(error, Exception):
                self._exchange.end(f"the upstream broke off: {describe(error)}")
            else:
                self._exchange.hang_up()

    def close(self) -> None:
        """The client needs no more."""
        if not self._ended:
            self._ended = True
            self._exchange.hang_up()

    def sync(self, parts: Any) -> Any:
        """Passes parts on as they come."""
        try:
            for part in parts:
                self.part(part)
                yield part
        except GeneratorExit:
            self.close()
            raise
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    async def asynchronous(self, parts: Any) -> Any:
        """The same for an async client."""
        try:
            async for part in parts:
                self.part(part)
                yield part
        except GeneratorExit:
            self.close()
            raise
        except BaseException as error:
            self.end(error)
            raise
        self.end()


class ServedParts:
    """Serves the recorded parts. The last one waits for the answers that ended before it in the recording."""

    def __init__(self, session: Any, lane: Any, answer: Any) -> None:
        self._session = session
        self._answer = answer
        self._ended = False
        # A lane that asks again has done with its last answer, whether it has closed it or not.
        if lane.answer is not None:
            lane.answer.close()
        lane.answer = self

    def error(self) -> str | None:
        """Why the answer breaks off after its parts."""
        return self._answer.broken if not self._answer.failed else None

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._session.ended(self._answer.seq)

    def sync(self, fail: Any) -> Any:
        """`fail` makes the client's exception of a recorded error."""
        answer, waits = self._answer, not self._answer.hung_up
        parts = answer.parts
        try:
            for place, part in enumerate(parts, 1):
                if place == len(parts) and waits:
                    self._session.wait_turn(answer.seq)
                yield part
            if not parts and waits:
                self._session.wait_turn(answer.seq)
        finally:
            self.close()
        if self.error():
            raise fail(self.error())

    async def asynchronous(self, fail: Any) -> Any:
        """The same for an async client."""
        answer, waits = self._answer, not self._answer.hung_up
        parts = answer.parts
        try:
            for place, part in enumerate(parts, 1):
                if place == len(parts) and waits:
                    await self._session.wait_turn_async(answer.seq)
                yield part
            if not parts and waits:
                await self._session.wait_turn_async(answer.seq)
        finally:
            self.close()
        if self.error():
            raise fail(self.error())

    def failed(self) -> None:
        """Waits for the turn of a request that got no answer."""
        self._session.wait_turn(self._answer.seq)
        self.close()

    async def failed_async(self) -> None:
        """The same for an async client."""
        await self._session.wait_turn_async(self._answer.seq)
        self.close()
