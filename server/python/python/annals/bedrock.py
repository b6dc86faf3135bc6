"""Bedrock, for clients of botocore that do not use urllib3: a handler of the event `before-send`.

Clients of botocore are recorded without this, because botocore sends with urllib3. A signature (`Authorization`,
`X-Amz-Date`, `X-Amz-Security-Token`) is a header, and headers are not compared: another signature is no divergence,
another body or model is. Use `register` where another handler of `before-send`, or another HTTP session, would
answer first.
"""

from __future__ import annotations

from typing import Any

from annals import lanes
from annals.http_hooks._parts import RecordedParts, ServedParts


def register(events: Any, send: Any) -> None:
    """Records and replays the requests of a client: `register(client.meta.events, send)`.

    `send` takes botocore's prepared request and returns its response; a recording calls it, a replay does not.
    Streams go through botocore's own parser. botocore is not imported.
    """

    def before_send(request: Any, **kwargs: Any) -> Any:
        lane = lanes.current()
        if lane is None:
            return None
        session, body = lane.session, _body(request.body)
        headers = [(_bytes(name), _bytes(value)) for name, value in request.headers.items()]
        if session.mode == "replay":
            answer = session.answer(request.method, request.url, headers, body)
            parts = ServedParts(session, lane, answer)
            if answer.failed:
                parts.failed()
                raise ConnectionError(answer.broken)
            names = {name.decode(): value.decode() for name, value in answer.headers}
            return _Response(request.url, answer.status, names, _Raw(parts.sync(ConnectionError)))
        exchange = session.begin_exchange(lane, request.method, request.url, headers, body)
        if exchange is None:
            return None
        try:
            with lanes.inside():
                response = send(request)
        except BaseException as error:
            exchange.fail(error) if isinstance(error, Exception) else exchange.hang_up()
            raise
        exchange.head(
            response.status_code,
            [(_bytes(name), _bytes(value)) for name, value in response.headers.items()],
        )
        response.raw = _Raw(RecordedParts(exchange).sync(response.raw.stream()))
        return response

    events.register_first("before-send", before_send)


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("latin-1", "replace")


def _body(body: Any) -> bytes:
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    return body.read() if hasattr(body, "read") else bytes(body)


class _Response:
    """What botocore asks of a response."""

    def __init__(self, url: str, status: int, headers: dict[str, str], raw: Any) -> None:
        self.url, self.status_code, self.headers, self.raw = url, status, headers, raw
        self._content: bytes | None = None

    @property
    def content(self) -> bytes:
        """The whole body."""
        if self._content is None:
            self._content = b"".join(self.raw.stream())
        return self._content


class _Raw:
    """A body as botocore reads it."""

    def __init__(self, parts: Any) -> None:
        self._parts = parts
        self._left = b""

    def read(self, amt: int | None = None) -> bytes:
        while amt is None or len(self._left) < amt:
            part = next(self._parts, None)
            if part is None:
                break
            self._left += part
        amt = len(self._left) if amt is None else amt
        read, self._left = self._left[:amt], self._left[amt:]
        return read

    def stream(self, amt: int = 65536, **kwargs: Any) -> Any:
        if self._left:
            yield self.read(len(self._left))
        yield from self._parts

    def close(self) -> None:
        self._parts.close()

    def __iter__(self) -> Any:
        return self.stream()
