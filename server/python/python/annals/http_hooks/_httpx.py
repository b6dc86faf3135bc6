"""httpx and httpx2: the transports."""

from __future__ import annotations

import functools
from typing import Any

from annals import lanes
from annals.http_hooks._parts import RecordedParts, ServedParts, recorded_error

_SYNC = ("HTTPTransport", "MockTransport", "WSGITransport")
_ASYNC = ("AsyncHTTPTransport", "MockTransport", "ASGITransport")


def patch(httpx: Any) -> list[tuple[Any, str, Any]]:
    """Patches a module of the form of httpx; returns the originals."""
    originals: list[tuple[Any, str, Any]] = []

    class RecordedStream(httpx.SyncByteStream):
        def __init__(self, stream: Any, parts: RecordedParts) -> None:
            self._stream, self._parts = stream, parts

        def __iter__(self) -> Any:
            return self._parts.sync(self._stream)

        def close(self) -> None:
            self._parts.close()
            self._stream.close()

    class RecordedAsyncStream(httpx.AsyncByteStream):
        def __init__(self, stream: Any, parts: RecordedParts) -> None:
            self._stream, self._parts = stream, parts

        def __aiter__(self) -> Any:
            return self._parts.asynchronous(self._stream)

        async def aclose(self) -> None:
            self._parts.close()
            await self._stream.aclose()

    class ServedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __init__(self, parts: ServedParts, fail: Any) -> None:
            self._parts, self._fail = parts, fail

        def __iter__(self) -> Any:
            return self._parts.sync(self._fail)

        def __aiter__(self) -> Any:
            return self._parts.asynchronous(self._fail)

        def close(self) -> None:
            self._parts.close()

        async def aclose(self) -> None:
            self._parts.close()

    def failure(request: Any, default: type[Exception]) -> Any:
        def fail(broken: str) -> Exception:
            kind, text = recorded_error(broken, httpx, default)
            return kind(text, request=request) if issubclass(kind, httpx.RequestError) else kind(text)

        return fail

    def served(answer: Any, parts: ServedParts, request: Any) -> Any:
        stream = ServedStream(parts, failure(request, httpx.RemoteProtocolError))
        return httpx.Response(answer.status, headers=answer.headers, stream=stream, request=request)

    def handle_request(original: Any) -> Any:
        @functools.wraps(original)
        def handle_request(self: Any, request: Any) -> Any:
            lane = lanes.current()
            if lane is None:
                return original(self, request)
            session, body = lane.session, request.read()
            if session.mode == "replay":
                answer = session.answer(request.method, str(request.url), request.headers.raw, body)
                parts = ServedParts(session, lane, answer)
                if answer.failed:
                    parts.failed()
                    raise failure(request, httpx.ConnectError)(answer.broken)
                return served(answer, parts, request)
            exchange = session.begin_exchange(
                lane, request.method, str(request.url), request.headers.raw, body
            )
            if exchange is None:
                return original(self, request)
            try:
                with lanes.inside():
                    response = original(self, request)
            except BaseException as error:
                exchange.fail(error) if isinstance(error, Exception) else exchange.hang_up()
                raise
            exchange.head(response.status_code, response.headers.raw)
            response.stream = RecordedStream(response.stream, RecordedParts(exchange))
            return response

        return handle_request

    def handle_async_request(original: Any) -> Any:
        @functools.wraps(original)
        async def handle_async_request(self: Any, request: Any) -> Any:
            lane = lanes.current()
            if lane is None:
                return await original(self, request)
            session, body = lane.session, await request.aread()
            if session.mode == "replay":
                answer = session.answer(request.method, str(request.url), request.headers.raw, body)
                parts = ServedParts(session, lane, answer)
                if answer.failed:
                    await parts.failed_async()
                    raise failure(request, httpx.ConnectError)(answer.broken)
                return served(answer, parts, request)
            exchange = session.begin_exchange(
                lane, request.method, str(request.url), request.headers.raw, body
            )
            if exchange is None:
                return await original(self, request)
            try:
                with lanes.inside():
                    response = await original(self, request)
            except BaseException as error:
                exchange.fail(error) if isinstance(error, Exception) else exchange.hang_up()
                raise
            exchange.head(response.status_code, response.headers.raw)
            response.stream = RecordedAsyncStream(response.stream, RecordedParts(exchange))
            return response

        return handle_async_request

    for name in _SYNC:
        if transport := getattr(httpx, name, None):
            lanes.replace(transport, "handle_request", handle_request, originals)
    for name in _ASYNC:
        if transport := getattr(httpx, name, None):
            lanes.replace(transport, "handle_async_request", handle_async_request, originals)
    return originals
