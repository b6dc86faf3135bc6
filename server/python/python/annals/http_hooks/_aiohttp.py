"""aiohttp: a client middleware, nearest to the connection.

aiohttp decompresses answers before anything can see them. So a frame holds the decompressed answer, without the
header `content-encoding`.
"""

from __future__ import annotations

import functools
from typing import Any

from annals import lanes
from annals.errors import Unavailable
from annals.http_hooks._parts import RecordedParts, ServedParts, recorded_error


def patch(aiohttp: Any) -> list[tuple[Any, str, Any]]:
    """Patches aiohttp; returns the originals."""
    import asyncio

    from aiohttp import streams
    from multidict import CIMultiDict, CIMultiDictProxy

    if not hasattr(aiohttp, "ClientMiddlewareType"):
        raise Unavailable(f"annals records aiohttp from version 3.12 on, and this is {aiohttp.__version__}")
    originals: list[tuple[Any, str, Any]] = []

    def fail(broken: str) -> Exception:
        kind, text = recorded_error(broken, aiohttp, aiohttp.ClientPayloadError)
        try:
            return kind(text)
        except TypeError:  # connection errors want the connection's key
            return aiohttp.ClientConnectionError(text)

    class Protocol:
        """The part of a protocol that a stream asks of: nothing is paused."""

        _reading_paused = False
        connected = True

        def pause_reading(self) -> None:
            """Nothing is read."""

        def resume_reading(self) -> None:
            """Nothing is read."""

    async def whole(request: Any) -> bytes:
        body = request.body
        if isinstance(body, (bytes, bytearray)):
            return bytes(body)
        if body is None:
            return b""
        return await body.as_bytes()

    async def recorded(request: Any, handler: Any) -> Any:
        lane = lanes.current()
        if lane is None:
            return await handler(request)
        session = lane.session
        headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
        body = await whole(request)
        url = str(request.url)
        if session.mode == "replay":
            return await served(session, lane, request, session.answer(request.method, url, headers, body))
        exchange = session.begin_exchange(lane, request.method, url, headers, body)
        if exchange is None:
            return await handler(request)
        try:
            with lanes.inside():
                response = await handler(request)
        except BaseException as error:
            exchange.fail(error) if isinstance(error, Exception) else exchange.hang_up()
            raise
        encoded = response.headers.get("content-encoding")
        exchange.head(
            response.status,
            [
                (name.encode(), value.encode("utf-8", "surrogateescape"))
                for name, value in response.headers.items()
                if not (encoded and name.lower() in ("content-encoding", "content-length"))
            ],
        )
        tee(response, RecordedParts(exchange))
        return response

    def tee(response: Any, parts: RecordedParts) -> None:
        content = response.content
        if content is streams.EMPTY_PAYLOAD or isinstance(content, streams.EmptyStreamReader):
            parts.end()
            return
        for part in content._buffer:
            parts.part(part)
        error = content.exception()
        if content._eof or error is not None:
            parts.end(error)
            return

        class Tee(type(content)):
            __slots__ = ()

            def feed_data(self, data: bytes, *rest: Any) -> Any:
                parts.part(data)
                return super().feed_data(data, *rest)

            def feed_eof(self) -> None:
                parts.end()
                super().feed_eof()

            def set_exception(self, exc: BaseException, *rest: Any) -> None:
                failed = exc if isinstance(exc, BaseException) else None
                # The response was closed by its client.
                if "Connection closed" in str(exc) and response.closed:
                    parts.close()
                else:
                    parts.end(failed or aiohttp.ClientPayloadError(str(exc)))
                super().set_exception(exc, *rest)

        content.__class__ = Tee
        close = response.close

        def closing() -> None:
            parts.close()
            close()

        response.close = closing

    async def served(session: Any, lane: Any, request: Any, answer: Any) -> Any:
        parts = ServedParts(session, lane, answer)
        if answer.failed:
            await parts.failed_async()
            raise fail(answer.broken)
        loop = asyncio.get_running_loop()

        class Writer:
            output_size = 0

        response = request.response_class(
            request.method,
            request.original_url if hasattr(request, "original_url") else request.url,
            writer=None,
            continue100=None,
            timer=None,
            request_info=request.request_info,
            traces=[],
            loop=loop,
            session=request._session if hasattr(request, "_session") else None,
            stream_writer=Writer(),
        )
        headers = CIMultiDict()
        for name, value in answer.headers:
            headers.add(name.decode(), value.decode("utf-8", "surrogateescape"))
        response.version = aiohttp.HttpVersion11
        response.status, response.reason = answer.status, ""
        response._headers, response._raw_headers = CIMultiDictProxy(headers), tuple(answer.headers)
        if cookies := headers.getall("set-cookie", ()):
            response._raw_cookie_headers = tuple(cookies)
        response._closed = False
        response.content = streams.StreamReader(Protocol(), 2**16, loop=loop)

        async def feed() -> None:
            try:
                async for part in parts.asynchronous(fail):
                    response.content.feed_data(part)
                    await asyncio.sleep(0)
            except Exception as error:
                response.content.set_exception(error)
            else:
                response.content.feed_eof()

        # The stream takes the parts while the program does something else.
        with lanes.inside():
            response._annals_feed = loop.create_task(feed())
        return response

    def request(original: Any) -> Any:
        @functools.wraps(original)
        async def _request(self: Any, *args: Any, **kwargs: Any) -> Any:
            if lanes.current() is None:
                return await original(self, *args, **kwargs)
            of = kwargs.get("middlewares")
            kwargs["middlewares"] = (*(self._middlewares if of is None else of), recorded)
            return await original(self, *args, **kwargs)

        return _request

    lanes.replace(aiohttp.ClientSession, "_request", request, originals)
    return originals
