"""HTTP clients recorded and replayed in process. Each test records against a local upstream, closes it, and replays."""

import asyncio
import json

import pytest
from session_upstream import Upstream

import annals
from annals import _annals

httpx = pytest.importorskip("httpx")


@pytest.fixture
def up():
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "s"


def record_then_replay(store, up, agent, **options):
    """Both results of the agent, and the receipt; the upstream is gone in the replay."""
    with annals.record("r", store=store):
        recorded = agent()
    before = up.requests
    with annals.replay("r", store=store, **options) as replay:
        replayed = agent()
    assert up.requests == before, "a replay calls no upstream"
    return recorded, replayed, replay.receipt


def _httpx(url):
    with httpx.Client() as client:
        return [client.post(f"{url}/a", json={"n": n}).text for n in range(3)]


def _httpx_async(url):
    async def main():
        async with httpx.AsyncClient() as client:
            return [(await client.post(f"{url}/a", json={"n": n})).text for n in range(3)]

    return asyncio.run(main())


def _httpx2(url):
    httpx2 = pytest.importorskip("httpx2")
    with httpx2.Client() as client:
        return [client.post(f"{url}/a", json={"n": n}).text for n in range(3)]


def _httpx2_async(url):
    httpx2 = pytest.importorskip("httpx2")

    async def main():
        async with httpx2.AsyncClient() as client:
            return [(await client.post(f"{url}/a", json={"n": n})).text for n in range(3)]

    return asyncio.run(main())


def _requests(url):
    requests = pytest.importorskip("requests")
    with requests.Session() as client:
        return [client.post(f"{url}/a", json={"n": n}).text for n in range(3)]


def _urllib3(url):
    urllib3 = pytest.importorskip("urllib3")
    pool = urllib3.PoolManager()
    return [pool.request("POST", f"{url}/a", body=json.dumps({"n": n})).data for n in range(3)]


def _aiohttp(url):
    aiohttp = pytest.importorskip("aiohttp")

    async def main():
        async with aiohttp.ClientSession() as client:
            texts = []
            for n in range(3):
                async with client.post(f"{url}/a", json={"n": n}) as response:
                    texts.append(await response.text())
            return texts

    return asyncio.run(main())


CLIENTS = [_httpx, _httpx_async, _httpx2, _httpx2_async, _requests, _urllib3, _aiohttp]


@pytest.mark.parametrize("client", CLIENTS)
def test_client_gets_its_recorded_answers(client, store, up):
    recorded, replayed, receipt = record_then_replay(store, up, lambda: client(up.url))
    assert recorded == replayed
    assert receipt.faithful and receipt.recorded == 3 and receipt.exact == 3


@pytest.mark.parametrize("client", CLIENTS)
def test_changed_request_is_named(client, store, up):
    with annals.record("r", store=store):
        client(up.url)

    def changed(request):
        return client(up.url)

    original = json.dumps

    def dumps(value, *args, **kwargs):
        return original({"n": 7} if value == {"n": 1} else value, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception) as failure:
        patch.setattr(json, "dumps", dumps)
        for module in ("httpx._content", "httpx2._content"):
            import sys

            if module in sys.modules and hasattr(sys.modules[module], "json_dumps"):
                patch.setattr(sys.modules[module], "json_dumps", dumps)
        with annals.replay("r", store=store):
            if client is _aiohttp:
                pytest.skip("aiohttp binds json.dumps when its session is made")
            changed(None)
    assert "$.n" in str(failure.value) and "7" in str(failure.value)


def test_frame_is_the_one_of_the_proxy(store, up):
    with annals.record("r", store=store):
        httpx.post(f"{up.url}/v1/chat/completions", json={"model": "m", "messages": []})
    (frame,) = _annals.frames(store, "default", "r")
    metadata = json.loads(frame["metadata"])
    assert frame["component"] == "llm"
    assert metadata["http"]["status"] == 200 and metadata["http"]["method"] == "POST"
    assert json.loads(frame["input"]) == {"model": "m", "messages": []}
    assert json.loads(frame["output"])["id"] == "x1"


def _stream_httpx(url):
    with httpx.stream("GET", f"{url}/stream") as response:
        yield from response.iter_raw()


def _stream_requests(url):
    requests = pytest.importorskip("requests")
    with requests.get(f"{url}/stream", stream=True) as response:
        yield from response.iter_content(None)


@pytest.mark.parametrize("stream", [_stream_httpx, _stream_requests])
def test_stream_is_passed_on_as_it_comes(stream, store, up):
    """The upstream sends a part only after the client has the one before: a client that waits for more hangs."""
    import threading

    def agent():
        up.gate = threading.Semaphore(0)
        parts = []
        for part in stream(up.url):
            parts.append(part)
            up.gate.release()
        return parts

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert b"".join(recorded) == b"".join(replayed) and receipt.faithful
    assert len(recorded) == len(replayed) >= 4


def test_aiohttp_stream_is_passed_on_as_it_comes(store, up):
    import threading

    aiohttp = pytest.importorskip("aiohttp")

    def agent():
        up.gate = threading.Semaphore(0)

        async def main():
            parts = []
            async with aiohttp.ClientSession() as client, client.get(f"{up.url}/stream") as response:
                async for part in response.content.iter_any():
                    parts.append(part)
                    up.gate.release()
            return b"".join(parts)

        return asyncio.run(main())

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed and receipt.faithful


def test_status_and_headers_are_recorded(store, up):
    """tracefork replays a recorded 429 as 200, and loses `retry-after`."""

    def agent():
        response = httpx.get(f"{up.url}/429")
        return response.status_code, response.headers["retry-after"], response.text

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed == (429, "7", '{"error":"slow down"}') and receipt.faithful


def test_failed_request_fails_again(store):
    """tracefork does not record failed calls. No server listens here."""

    def agent():
        with pytest.raises(httpx.ConnectError) as failure:
            httpx.get("http://127.0.0.1:9/nobody")
        return str(failure.value)

    with annals.record("r", store=store):
        recorded = agent()
    with annals.replay("r", store=store) as replay:
        assert agent() == recorded
    assert replay.receipt.faithful


def test_broken_answer_breaks_again(store, up):
    def agent():
        with pytest.raises(httpx.RemoteProtocolError) as failure:
            httpx.get(f"{up.url}/broken")
        return str(failure.value)

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed and receipt.faithful


@pytest.mark.parametrize("client", ["httpx", "requests", "aiohttp"])
def test_compressed_answer_is_read_again(client, store, up):
    module = pytest.importorskip(client)

    def agent():
        if client != "aiohttp":
            return module.get(f"{up.url}/gzip").text

        async def main():
            async with module.ClientSession() as session, session.get(f"{up.url}/gzip") as response:
                return await response.text()

        return asyncio.run(main())

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed == "hello" * 100 and receipt.faithful


@pytest.mark.parametrize("client", ["httpx", "requests", "aiohttp"])
def test_each_redirect_is_an_exchange(client, store, up):
    module = pytest.importorskip(client)

    def agent():
        if client == "httpx":
            return module.get(f"{up.url}/redirect", follow_redirects=True).text
        if client == "requests":
            return module.get(f"{up.url}/redirect").text

        async def main():
            async with module.ClientSession() as session, session.get(f"{up.url}/redirect") as response:
                return await response.text()

        return asyncio.run(main())

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed == "answer 2" and receipt.recorded == 2 and receipt.faithful


def test_same_body_on_another_path_diverges(store, up):
    with annals.record("r", store=store):
        httpx.post(f"{up.url}/a", json={})
    with pytest.raises(annals.Diverged), annals.replay("r", store=store):
        httpx.post(f"{up.url}/b", json={})


def test_call_that_is_not_made_is_an_error(store, up):
    with annals.record("r", store=store):
        httpx.get(f"{up.url}/a")
    with pytest.raises(annals.Diverged, match="unused 1"), annals.replay("r", store=store):
        pass


def test_stream_that_is_never_closed_ends_with_the_block(store, up):
    # The instrumentation of OpenTelemetry does so: it does not wait for the closing of an async stream.
    kept = []

    async def main(client):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        request = client.build_request("POST", f"{up.url}/v1/chat/completions", json=body)
        response = await client.send(request, stream=True)
        parts = response.aiter_raw()
        kept.append(parts)
        return await anext(parts)

    def agent():
        # `asyncio.run` would close the stream.
        loop, client = asyncio.new_event_loop(), httpx.AsyncClient()
        kept.append((loop, client))
        return loop.run_until_complete(main(client))

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed and receipt.faithful
    for loop, client in kept[::2]:
        loop.run_until_complete(client.aclose())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_overlapping_async_calls_end_in_recorded_order(store, up):
    async def main():
        ended = []
        async with httpx.AsyncClient() as client:

            async def call(ms):
                await client.get(f"{up.url}/slow/{ms}")
                ended.append(ms)

            await asyncio.gather(*(call(ms) for ms in (150, 20, 80)))
        return ended

    recorded, replayed, receipt = record_then_replay(store, up, lambda: asyncio.run(main()))
    assert recorded == replayed == [20, 80, 150] and receipt.faithful


def test_overlapping_async_calls_begin_before_the_first_one_ends(store, up):
    # Each call asks for what it saw when it began. A replay that answers the first one at once would ask otherwise.
    async def main():
        under_way, seen = [], []
        async with httpx.AsyncClient() as client:

            async def call(ms):
                # As clients do that look at their platform first, in a thread.
                await asyncio.to_thread(int)
                under_way.append(ms)
                await client.post(f"{up.url}/slow/{ms}", json={"under_way": len(under_way)})
                under_way.remove(ms)
                seen.append((ms, len(under_way)))

            await call(10)
            await asyncio.gather(*(call(ms) for ms in (300, 20, 150)))
            await call(5)
        return seen

    recorded, replayed, receipt = record_then_replay(store, up, lambda: asyncio.run(main()))
    assert recorded == replayed == [(10, 0), (20, 2), (150, 1), (300, 0), (5, 0)] and receipt.faithful


def test_calls_one_after_the_other_wait_for_none(store, up, monkeypatch):
    # Also if a tool that does not run had asked.
    from annals import recording

    waits, next_call = [], recording.Replay._next_call
    monkeypatch.setattr(recording.Replay, "_next_call", lambda *at: waits.append(next_call(*at)) or waits[-1])

    @annals.tool
    def search(what):
        return httpx.get(f"{up.url}/slow/{what}").text

    def agent():
        said = [httpx.get(f"{up.url}/slow/5").text, search(7), search(3)]
        return [*said, httpx.get(f"{up.url}/slow/4").text, httpx.get(f"{up.url}/slow/6").text]

    for tools in ("recorded", "live", "compare"):
        with annals.record(tools, store=store):
            recorded = agent()
        waits.clear()
        with annals.replay(tools, store=store, tools=tools):
            assert agent() == recorded
        assert set(waits) == {None}, tools


def test_call_that_begins_later_than_recorded_is_no_divergence(store, up, monkeypatch):
    # The second call began while the first one was under way. In the replay it begins when the first one has ended.
    from concurrent.futures import ThreadPoolExecutor

    from annals import recording

    monkeypatch.setattr(recording, "BEGIN_PATIENCE_S", 0.0)
    times = (60, 90)

    async def tasks(overlapping):
        async with httpx.AsyncClient() as client:
            calls = [client.get(f"{up.url}/slow/{ms}") for ms in times]
            if overlapping:
                return await asyncio.gather(*calls)
            return [await call for call in calls]

    def threads(overlapping):
        call = httpx.get
        urls = [f"{up.url}/slow/{ms}" for ms in times]
        if not overlapping:
            return list(map(call, urls))
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(call, urls))

    for name, agent in (("tasks", lambda overlapping: asyncio.run(tasks(overlapping))), ("threads", threads)):
        with annals.record(name, store=store):
            agent(True)
        with annals.replay(name, store=store) as replay:
            agent(False)
        assert replay.receipt.faithful, name


def test_overlapping_calls_of_threads_end_in_recorded_order(store, up, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from annals import recording

    order = []
    note_end = recording.Replay.ended

    def ended(session, seq):
        # The next call waits for this one, so the list has the order in which answers end. Threads may wake in another.
        order.append(seq)
        note_end(session, seq)

    monkeypatch.setattr(recording.Replay, "ended", ended)

    def agent():
        ended = []

        def call(ms):
            httpx.get(f"{up.url}/slow/{ms}")
            ended.append(ms)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call, (860, 20, 580, 300)))
        return ended

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert sorted(recorded) == sorted(replayed) == [20, 300, 580, 860] and receipt.faithful
    with annals.open(store) as opened:
        frames = {frame.seq: json.loads(frame.metadata) for frame in opened.namespace().run("r")}
    assert [frames[seq]["http"]["path"] for seq in order] == [f"/slow/{ms}" for ms in (20, 300, 580, 860)]


def test_chaos_serves_overlapping_calls_in_another_order(store, up):
    async def main():
        ended = []
        async with httpx.AsyncClient() as client:

            async def call(ms):
                await client.get(f"{up.url}/slow/{ms}")
                ended.append(ms)

            await asyncio.gather(*(call(ms) for ms in (150, 20, 80)))
        return ended

    with annals.record("r", store=store):
        asyncio.run(main())
    orders = set()
    for seed in range(12):
        with annals.replay("r", store=store, chaos=seed, strict=False):
            orders.add(tuple(asyncio.run(main())))
    assert len(orders) > 1 and all(sorted(order) == [20, 80, 150] for order in orders)


def test_swapped_sequential_calls_do_not_hang(store, up):
    """tracefork hangs here."""

    def agent(paths):
        async def main():
            async with httpx.AsyncClient() as client:
                return [(await client.get(f"{up.url}/{path}")).text for path in paths]

        return asyncio.run(main())

    with annals.record("r", store=store):
        agent("ab")
    with annals.replay("r", store=store, strict=False) as replay:
        agent("ba")
    assert not replay.receipt.faithful


def test_openai_and_anthropic_clients(store, up):
    openai = pytest.importorskip("openai")
    anthropic = pytest.importorskip("anthropic")

    def agent():
        one = openai.OpenAI(base_url=f"{up.url}/v1", api_key="k")
        other = anthropic.Anthropic(base_url=up.url, api_key="k")
        messages = [{"role": "user", "content": "hi"}]
        said = one.chat.completions.create(model="m", messages=messages).choices[0].message.content
        parts = one.chat.completions.create(model="m", messages=messages, stream=True)
        streamed = "".join(part.choices[0].delta.content for part in parts)
        answer = other.messages.create(model="m", max_tokens=5, messages=messages)
        return said, streamed, answer.content[0].text

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed and receipt.faithful and receipt.recorded == 3


@pytest.mark.filterwarnings("ignore:annals")
def test_header_that_http_does_not_allow_is_named(up, store):
    # http.client sends a control character in a header's value; a frame has no place for it.
    urllib3 = pytest.importorskip("urllib3")
    with annals.record("r", store=store) as run:
        urllib3.PoolManager().request("GET", up.url + "/a?key=1", headers={"X-Odd": "a\x01b", "X-Even": "c"})
    assert run.notes == [f"the header 'X-Odd' of the request GET {up.url}/a: HTTP does not allow it"]


def test_botocore_signature_is_no_divergence(store, up):
    session = pytest.importorskip("botocore.session")
    import datetime

    def agent(text="hi"):
        made = session.get_session()
        made.set_credentials(f"AKID{datetime.datetime.now().microsecond}", "secret")
        client = made.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=up.url)
        body = json.dumps({"messages": [text]})
        return client.invoke_model(modelId="m", body=body)["body"].read()

    with annals.record("r", store=store, nondet=False):
        recorded = agent()
    with annals.replay("r", store=store, nondet=False) as replay:
        assert agent() == recorded
    assert replay.receipt.exact == 1, "another key and another time sign the same request"
    with pytest.raises(annals.Diverged, match=r"\$.messages"), annals.replay("r", store=store, nondet=False):
        agent("ho")


@pytest.mark.parametrize("call", ["invoke_model_with_response_stream", "converse_stream"])
def test_botocore_event_stream_is_recorded_and_served(store, up, call):
    session = pytest.importorskip("botocore.session")

    def agent(text="hi"):
        made = session.get_session()
        made.set_credentials("AKID", "secret")
        client = made.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=up.url)
        if call == "converse_stream":
            messages = [{"role": "user", "content": [{"text": text}]}]
            return list(client.converse_stream(modelId="m", messages=messages)["stream"])
        body = json.dumps({"messages": [text]})
        return list(client.invoke_model_with_response_stream(modelId="m", body=body)["body"])

    with annals.record("r", store=store, nondet=False):
        recorded = agent()
    assert len(recorded) == (5 if call == "converse_stream" else 3), recorded
    asked = up.requests
    with annals.replay("r", store=store, nondet=False) as replay:
        assert agent() == recorded
    assert (replay.receipt.exact, up.requests) == (1, asked)
    with pytest.raises(annals.Diverged, match=r"\$.messages"), annals.replay("r", store=store, nondet=False):
        agent("ho")


def test_patches_are_taken_out(store, up):
    urllib3 = pytest.importorskip("urllib3")
    before = httpx.HTTPTransport.handle_request, urllib3.connectionpool.HTTPConnectionPool._make_request
    with annals.record("r", store=store):
        assert httpx.HTTPTransport.handle_request is not before[0]
    after = httpx.HTTPTransport.handle_request, urllib3.connectionpool.HTTPConnectionPool._make_request
    assert before == after


def test_stream_that_its_client_leaves(store, up):
    def agent():
        with httpx.stream("GET", f"{up.url}/stream") as response:
            return next(response.iter_raw())

    recorded, replayed, receipt = record_then_replay(store, up, agent)
    assert recorded == replayed and receipt.faithful


def test_stream_left_open_does_not_hold_the_block(store, up):
    with annals.record("r", store=store):
        client = httpx.Client()
        left = client.send(client.build_request("GET", f"{up.url}/stream"), stream=True)
        next(left.iter_raw())
    (frame,) = _annals.frames(store, "default", "r")
    assert frame["output"].startswith(b"data:")
    left.close()
