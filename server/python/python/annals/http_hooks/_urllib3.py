"""urllib3, and through it requests and botocore. Each try and each redirect is an exchange."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from annals import lanes
from annals.errors import Unavailable
from annals.http_hooks._parts import RecordedParts, ServedParts, recorded_error


def patch(urllib3: Any) -> list[tuple[Any, str, Any]]:
    """Patches urllib3; returns the originals."""
    from urllib3 import connectionpool, exceptions

    pool = connectionpool.HTTPConnectionPool
    if "response_conn" not in inspect.signature(pool._make_request).parameters:
        raise Unavailable(f"annals records urllib3 from version 2 on, and this is {urllib3.__version__}")
    originals: list[tuple[Any, str, Any]] = []

    class Body:
        """A body as the response reads it: each read gives at most one part."""

        def __init__(self, parts: Any, close: Any) -> None:
            self._parts, self._close = parts, close
            self._left = b""
            self.closed = False

        def read1(self, amt: int | None = None) -> bytes:
            while not self._left:
                part = next(self._parts, None)
                if part is None:
                    self.close()
                    return b""
                self._left = part
            amt = len(self._left) if amt is None or amt < 0 else amt
            part, self._left = self._left[:amt], self._left[amt:]
            return part

        def read(self, amt: int | None = None) -> bytes:
            parts: list[bytes] = []
            while amt is None or amt < 0 or sum(map(len, parts)) < amt:
                rest = None if amt is None or amt < 0 else amt - sum(map(len, parts))
                part = self.read1(rest)
                if not part:
                    break
                parts.append(part)
            return b"".join(parts)

        def close(self) -> None:
            if not self.closed:
                self.closed = True
                self._close()

        def isclosed(self) -> bool:
            return self.closed

        def flush(self) -> None:
            """Nothing is buffered."""

    class Response(urllib3.HTTPResponse):
        def stream(self, amt: int | None = 65536, decode_content: bool | None = None) -> Any:
            # Parts are passed on as they come: the base class waits for `amt` bytes.
            while True:
                data = self.read1(amt, decode_content=decode_content)
                if data:
                    yield data
                elif self._fp is None or self._fp.closed:
                    return

        def supports_chunked_reads(self) -> bool:
            return False

    def fail(broken: str) -> Exception:
        kind, text = recorded_error(broken, exceptions, exceptions.ProtocolError)
        try:
            return kind(text)
        except TypeError:  # some classes want the pool
            return exceptions.ProtocolError(f"{kind.__name__}: {text}")

    def make_request(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def make_request(self: Any, *args: Any, **kwargs: Any) -> Any:
            lane = lanes.current()
            if lane is None:
                return original(self, *args, **kwargs)
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            body = given["body"] = _whole(given["body"])
            target = given["url"]
            url = target if "://" in target else f"{self.scheme}://{_host(self)}{target}"
            headers = [
                (_encoded(name), _encoded(value)) for name, value in dict(given["headers"] or {}).items()
            ]
            session, preload = lane.session, given["preload_content"]
            if session.mode == "replay":
                answer = session.answer(given["method"], url, headers, body or b"")
                parts = ServedParts(session, lane, answer)
                if answer.failed:
                    parts.failed()
                    raise fail(answer.broken)
                names = urllib3.HTTPHeaderDict()
                for name, value in answer.headers:
                    names.add(name.decode("latin-1"), value.decode("latin-1"))
                return _response(
                    Body(parts.sync(fail), parts.close), names, answer.status, given, preload
                )
            exchange = session.begin_exchange(lane, given["method"], url, headers, body or b"")
            if exchange is None:
                return original(*bound.args, **bound.kwargs)
            given["preload_content"] = False
            try:
                with lanes.inside():
                    response = original(*bound.args, **bound.kwargs)
            except BaseException as error:
                exchange.fail(error) if isinstance(error, Exception) else exchange.hang_up()
                raise
            exchange.head(
                response.status, [(_encoded(name), _encoded(value)) for name, value in response.headers.items()]
            )
            parts = RecordedParts(exchange)
            raw = response._fp

            def read() -> Any:
                while part := raw.read1(65536):
                    yield part

            def close() -> None:
                parts.close()
                raw.close()

            made = _response(
                Body(parts.sync(read()), close), response.headers, response.status, given, preload, response
            )
            return made

        return make_request

    def _response(body: Any, headers: Any, status: int, given: Any, preload: bool, of: Any = None) -> Any:
        made = Response(
            body=body,
            headers=headers,
            status=status,
            reason=of.reason if of is not None else None,
            version=of.version if of is not None else 11,
            preload_content=False,
            decode_content=given["decode_content"],
            original_response=of._original_response if of is not None else None,
            request_method=given["method"],
            request_url=given["url"],
            retries=given["retries"],
            enforce_content_length=False,
        )
        if of is not None:
            made._connection, made._pool = of._connection, of._pool
            made._sock_shutdown = getattr(of, "_sock_shutdown", None)
            # A response closes its connection when it is collected, and this one lives on in another.
            of._fp = of._connection = of._pool = None
        if preload:
            made._body = made.read(decode_content=given["decode_content"])
        return made

    lanes.replace(pool, "_make_request", make_request, originals)
    return originals


def _host(pool: Any) -> str:
    host = f"[{pool.host}]" if ":" in pool.host else pool.host
    default = {"http": 80, "https": 443}.get(pool.scheme)
    return host if pool.port in (None, default) else f"{host}:{pool.port}"


def _encoded(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode("latin-1", "replace")


def _whole(body: Any) -> bytes | None:
    """A body as bytes: a request is recorded before it is sent."""
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    if hasattr(body, "read"):
        read = body.read()
        return read.encode() if isinstance(read, str) else read
    return b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in body)
