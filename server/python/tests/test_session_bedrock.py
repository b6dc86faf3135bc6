"""`annals.bedrock.register` with fakes of botocore's parts, as tracefork tests its transport."""

import types

import pytest

import annals
from annals import bedrock


class FakeEmitter:
    def register_first(self, event, handler):
        assert event == "before-send"
        self.handler = handler


class FakeRaw:
    def __init__(self, parts):
        self.parts = parts

    def stream(self):
        yield from self.parts


def request(body=b"{}", date="20260101T000000Z", model="m"):
    headers = {"Authorization": f"AWS4 {date}", "X-Amz-Date": date}
    url = f"https://bedrock-runtime.us-east-1.amazonaws.com/model/{model}/invoke"
    return types.SimpleNamespace(method="POST", url=url, headers=headers, body=body)


@pytest.fixture
def client():
    emitter, sent = FakeEmitter(), []

    def send(asked):
        sent.append(asked)
        headers = {"Content-Type": "application/json"}
        raw = FakeRaw([b"one ", b"two"])
        return types.SimpleNamespace(status_code=200, headers=headers, raw=raw)

    bedrock.register(emitter, send)
    emitter.sent = sent
    return emitter


def test_signature_is_no_divergence_and_body_is(client, tmp_path):
    with annals.record("r", store=tmp_path / "s"):
        assert b"".join(client.handler(request()).raw.stream()) == b"one two"
    with annals.replay("r", store=tmp_path / "s"):
        answer = client.handler(request(date="20270101T000000Z"))
        assert answer.status_code == 200 and answer.content == b"one two"
    assert len(client.sent) == 1
    for changed in (request(body=b"[]"), request(model="other")):
        with pytest.raises(annals.Diverged), annals.replay("r", store=tmp_path / "s"):
            client.handler(changed)


def test_handler_leaves_requests_outside_of_blocks_alone(client):
    assert client.handler(request()) is None
    assert client.sent == []
