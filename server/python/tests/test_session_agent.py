"""What issue 30 must show: an agent recorded once and replayed 20 times; the cost of recording."""

import asyncio
import datetime
import json
import os
import threading
import time
import uuid

import pytest
from session_upstream import Upstream

import annals

httpx = pytest.importorskip("httpx")


@pytest.fixture
def up():
    upstream = Upstream()
    yield upstream
    upstream.close()


def make_agent(url, notes):
    """Two local tools with side effects, ids and times in prompts, threads and asyncio."""

    @annals.tool
    def write_note(text):
        with open(notes, "a") as file:
            file.write(text + "\n")
        return len(text)

    @annals.tool
    async def look_up(word):
        with open(notes, "a") as file:
            file.write(f"looked up {word}\n")
        await asyncio.sleep(0)
        return {"word": word, "at": datetime.datetime.now().isoformat()}

    def ask(client, text):
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": f"{text} {uuid.uuid4()} {time.time()}"}],
        }
        return client.post(f"{url}/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    def agent(change=""):
        said = {}
        with httpx.Client(headers={"authorization": f"Bearer {os.environ.get('KEY', 'none')}"}) as client:
            said["plan"] = ask(client, "plan" + change)
            write_note(said["plan"])

            def worker(place):
                answer = ask(client, f"worker {place}")
                write_note(answer)
                said[f"worker {place}"] = answer

            threads = [threading.Thread(target=worker, args=(place,)) for place in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        async def main():
            async with httpx.AsyncClient() as client:

                async def task(place):
                    found = await look_up(f"word {place}")
                    body = {"model": "m", "messages": [{"role": "user", "content": json.dumps(found) + str(uuid.uuid4())}]}  # fmt: skip
                    response = await client.post(f"{url}/v1/chat/completions", json=body)
                    said[f"task {place}"] = response.json()["choices"][0]["message"]["content"]

                await asyncio.gather(*(task(place) for place in range(4)))

        asyncio.run(main())
        return said

    return agent


def test_agent_is_replayed_20_times(tmp_path, up, monkeypatch):
    monkeypatch.setenv("KEY", "a secret key of the test")
    store, notes = tmp_path / "s", tmp_path / "notes"
    agent = make_agent(up.url, notes)
    with annals.record("r", store=store):
        recorded = agent()
    written, requests = notes.read_bytes(), up.requests
    assert requests == 8
    up.close()
    monkeypatch.delenv("KEY")
    for _ in range(20):
        with annals.replay("r", store=store) as replay:
            said = agent()
        assert said == recorded
        assert replay.receipt.faithful and replay.receipt.recorded == 16
    assert notes.read_bytes() == written, "no tool ran again"
    with pytest.raises(annals.Diverged, match=r"\$\.messages\[0\]\.content"), annals.replay("r", store=store):
        agent("!")
    for file in store.rglob("*"):
        if file.is_file():
            assert b"a secret key of the test" not in file.read_bytes()
