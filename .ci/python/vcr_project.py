"""The pytest plugin on a real project: the tests of OpenTelemetry's OpenAI instrumentation, which came with vcrpy
cassettes of the provider, are recorded into annals' tapes, replayed, and red after one byte is changed.

Usage: python .ci/python/vcr_project.py SDIST. Needs annals, the project, openai, pytest, pytest-asyncio and PyYAML; SDIST
is the project's source archive, whose tests and cassettes are unpacked into a temporary folder.

The tests are not changed: this file is also a plugin of pytest, which gives them another `vcr` fixture and the marker
`annals`. While a tape is recorded, requests for the provider go to a server on the loopback interface, which answers
from the cassettes. Replays run without it. Ends with 1 if a test has another result than without annals, if a replay
calls anybody, or if a changed byte goes unnoticed.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PROVIDER = "api.openai.com"
# Of a whole answer: the server sends its own.
NOT_SENT = {"content-length", "content-encoding", "transfer-encoding", "connection"}

# The plugin, in the process of the tests.


class Cassettes:
    """Stands for vcrpy: says which cassette answers."""

    name = ""
    uses = 0

    def register_serializer(self, *_: Any) -> None:
        pass

    @contextlib.contextmanager
    def use_cassette(self, name: str, **_: Any) -> Any:
        Cassettes.name, Cassettes.uses = name, Cassettes.uses + 1
        yield


@pytest.fixture(scope="module")
def vcr() -> Cassettes:
    return Cassettes()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if item.get_closest_marker("vcr") or "vcr" in inspect.signature(item.function).parameters:
            if "ANNALS_NO_TAPES" not in os.environ:
                item.add_marker("annals")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: Any) -> Any:
    with Cassettes().use_cassette(f"{item.originalname}.yaml"):
        return (yield)


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", "vcr: answered by the cassette that has the test's name")
    if upstream := os.environ.get("ANNALS_CASSETTES"):
        for module in ("httpx", "httpx2"):
            with contextlib.suppress(ModuleNotFoundError):
                redirect(__import__(module), upstream)


def redirect(httpx: Any, upstream: str) -> None:
    """Sends requests for the provider to the server of the cassettes, below what annals records."""

    def redirected(request: Any) -> Any:
        if request.url.host != PROVIDER:
            return request
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
        headers += [(b"host", upstream.partition("://")[2].encode())]
        headers += [(b"x-cassette", Cassettes.name.encode()), (b"x-use", b"%d-%d" % (os.getpid(), Cassettes.uses))]
        url = upstream + request.url.raw_path.decode()
        return httpx.Request(request.method, url, headers=headers, stream=request.stream, extensions=request.extensions)

    sync, asynchronous = httpx.HTTPTransport.handle_request, httpx.AsyncHTTPTransport.handle_async_request
    httpx.HTTPTransport.handle_request = lambda self, request: sync(self, redirected(request))
    httpx.AsyncHTTPTransport.handle_async_request = lambda self, request: asynchronous(self, redirected(request))


# The program.


class Upstream:
    """Answers from cassettes: each interaction once a use, the first that has the request's body if there is one."""

    def __init__(self, cassettes: Path) -> None:
        import yaml

        self.requests = 0
        played: dict[tuple[str, str], list[Any]] = {}
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                use = self.headers["x-cassette"], self.headers["x-use"]
                if use not in played:
                    text = (cassettes / use[0]).read_text()
                    played[use] = list(yaml.safe_load(text)["interactions"])
                left = [one for one in played[use] if urlsplit(one["request"]["uri"]).path == self.path]
                same = [one for one in left if json.loads(one["request"]["body"]) == json.loads(body)]
                upstream.requests += 1
                if not left:
                    self.send_error(404, f"{use[0]} has no interaction left for {self.path}")
                    return
                found = (same or left)[0]
                played[use].remove(found)
                answer, content = found["response"], found["response"]["body"]["string"]
                content = content.encode() if isinstance(content, str) else content
                self.send_response(answer["status"]["code"])
                for name, values in answer["headers"].items():
                    if name.lower() not in NOT_SENT:
                        for value in [values] if isinstance(values, str) else values:
                            self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def run(project: Path, *options: str, **environment: str) -> tuple[dict[str, str], str]:
    """The results of all tests by their names, and the output."""
    plugins = ["-p", "annals.pytest_plugin", "-p", "vcr_project", "-p", "no:cacheprovider"]
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-rA", "--show-capture=no", *plugins, *options, "tests"]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    # A provider that is called would not answer a replay.
    variables = {**os.environ, "PYTHONPATH": path, "OPENAI_API_KEY": "test_openai_api_key", **environment}
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)
    results = {}
    for line in done.stdout.splitlines():
        result, _, name = line.partition(" ")
        if result in ("PASSED", "FAILED", "ERROR"):
            results[name.partition(" - ")[0]] = result
    return results, done.stdout + done.stderr


def main() -> int:
    wrong: list[str] = []

    def check(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(sys.argv[1]) as archive:
            archive.extractall(directory, filter="data")
        (project,) = Path(directory).iterdir()
        upstream = Upstream(project / "tests/cassettes")
        plain, output = run(project, ANNALS_CASSETTES=upstream.url, ANNALS_NO_TAPES="1")
        passed = {name for name, result in plain.items() if result == "PASSED"}
        check(bool(passed), f"no test passes without annals: {output[-2000:]}")
        before = upstream.requests
        recorded, output = run(project, "--annals-record=once", ANNALS_CASSETTES=upstream.url)
        tapes = sorted(project.glob("tests/tapes/*/*.annals"))
        requests = upstream.requests - before
        check(recorded == plain, f"recorded: {difference(plain, recorded)} {output[-2000:]}")
        check(requests == before, f"{before} requests without annals, {requests} with it")
        upstream.close()
        # Nothing says where the server was.
        replayed, output = run(project)
        check(replayed == plain, f"replayed: {difference(plain, replayed)} {output[-3000:]}")

        rng, originals = random.Random(30), {tape: tape.read_bytes() for tape in tapes}
        for tape, bytes_ in originals.items():
            changed = bytearray(bytes_)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            tape.write_bytes(changed)
        red, _ = run(project)
        taped = {name for name in passed if tape_of(project, name) in originals}
        check(len(taped) == len(tapes), f"{len(tapes)} tapes of {len(taped)} tests")
        check(taped == {name for name in passed if red[name] == "FAILED"}, f"one byte: {difference(plain, red)}")
        for tape, bytes_ in originals.items():
            tape.write_bytes(bytes_)
        prompts = project / "tests/test_utils.py"
        text = prompts.read_text()
        check("Say this is a test" in text, "the prompt is not in test_utils.py")
        prompts.write_text(text.replace("Say this is a test", "Say this is a tesT"))
        asked, output = run(project)
        prompts.write_text(text)
        other = [name for name in taped if asked[name] == "FAILED"]
        check(bool(other) and '$.messages[0].content' in output, f"another prompt: {output[-2000:]}")
        again, _ = run(project)
        check(again == plain, f"replayed again: {difference(plain, again)}")
    print(
        f"{len(plain)} tests, {len(passed)} pass without annals, {len(tapes)} of them with tapes: {requests} requests recorded, "
        f"replayed without the server; {sum(red[name] == 'FAILED' for name in taped)} red after one changed byte of each "
        f"tape, {len(other)} after one changed letter of the prompt"
    )
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def difference(wanted: dict[str, str], got: dict[str, str]) -> dict[str, tuple[Any, Any]]:
    names = sorted({*wanted, *got})
    return {name: (wanted.get(name), got.get(name)) for name in names if wanted.get(name) != got.get(name)}


def tape_of(project: Path, name: str) -> Path:
    from annals.pytest_plugin import tape_path

    class Item:
        path = project / name.partition("::")[0]
        nodeid = name

        def get_closest_marker(self, _: str) -> Any:
            return pytest.mark.annals.mark

    return tape_path(Item())


if __name__ == "__main__":
    sys.exit(main())
