"""tracefork's own offline scenarios over annals: the five fault classes of `tracefork validate` and the eleven cases
of `tracefork bench`.

Usage: python .ci/python/tracefork_scenarios.py [--change]. Needs annals and tracefork 1.0.0, which needs Python 3.12 or later.

tracefork's scenarios ask fakes inside of the process. Here each fake answers behind a real HTTP server, and annals
records what the agents ask it. Then the server is gone and annals serves the recording to the same scenario. Prints a
row for each scenario and ends with 1 if a result, with or without the server, is not what tracefork claims, or if a
replay differs from its recording. `--change` changes one letter of a question in each replay, which must be named.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
from tracefork import bench, competing_faults, synthetic, validate
from tracefork.faults import FaultClass

import annals

FAKES = (
    synthetic.ScriptedFakeLLM,
    synthetic.FaultAwareFakeLLM,
    competing_faults.RuleBasedTail,
    competing_faults._ConcurrentNeutralFiller,
)
# What tracefork 1.0.0 says of itself.
CLAIMED_PRECISION = 1.0
CLAIMED_CONTROL = 0.0
CLAIMED_CASES = (10, 11)
CLAIMED_MISS = ["gate_half_of_conjunction"]
# The shapley runs of `bench`, in their order, with the cases that are read from each.
SHAPLEY_RUNS = {"root-echo": 3, "gate-payload": 3, "all": 3, "concurrent": 2}


class Upstream:
    """A server behind which the fakes answer. The path begins with the number of the fake."""

    def __init__(self) -> None:
        self.fakes: list[Any] = []
        self.requests = 0
        self.change = False
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                number = int(self.path.split("/")[1])
                status, answer = upstream.answer(number, int(self.headers["x-call"]), body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, number: int, call: int, body: bytes) -> tuple[int, bytes]:
        fake, original = self.fakes[number]
        self.requests += 1
        request = httpx2.Request("POST", "https://api.anthropic.com/v1/messages", content=body)
        try:
            if isinstance(fake, httpx2.AsyncBaseTransport):
                # Calls that overlap arrive in any order: the fake counts them as they were made.
                fake._n = call
                return 200, asyncio.run(original(fake, request)).content
            return 200, original(fake, request).content
        except Exception as error:  # noqa: BLE001 - the agent sees it as a failed call
            return 500, repr(error).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def begin(self) -> None:
        """Fakes get the same numbers in a recording and in its replay."""
        self.fakes = []

    def forward(self, fake: Any, original: Any, request: Any) -> Any:
        if "annals_number" not in vars(fake):
            fake.annals_number, fake.annals_calls = len(self.fakes), 0
            self.fakes.append((fake, original))
        headers = [("content-type", "application/json"), ("x-call", str(fake.annals_calls))]
        fake.annals_calls += 1
        content = request.content
        if self.change:
            content, self.change = content.replace(b"user", b"User", 1), False
        return httpx2.Request("POST", f"{self.url}/{fake.annals_number}/v1/messages", headers=headers, content=content)

    def install(self) -> None:
        for kind in FAKES:
            if issubclass(kind, httpx2.AsyncBaseTransport):
                kind.handle_async_request = self.asynchronous(kind.handle_async_request)
            else:
                kind.handle_request = self.synchronous(kind.handle_request)

    def synchronous(self, original: Any) -> Any:
        def handle_request(fake: Any, request: Any) -> Any:
            with httpx2.HTTPTransport() as transport:
                response = transport.handle_request(self.forward(fake, original, request))
                return httpx2.Response(response.status_code, headers=response.headers, content=response.read())

        return handle_request

    def asynchronous(self, original: Any) -> Any:
        async def handle_async_request(fake: Any, request: Any) -> Any:
            async with httpx2.AsyncHTTPTransport() as transport:
                response = await transport.handle_async_request(self.forward(fake, original, request))
                return httpx2.Response(response.status_code, headers=response.headers, content=await response.aread())

        return handle_async_request


class Scenarios:
    """Runs scenarios, each in a recording, or in its replay."""

    def __init__(self, upstream: Upstream, store: Path) -> None:
        self.upstream, self.store = upstream, store
        self.replaying = False
        # The recording in whose replay one question is changed.
        self.changing: str | None = None
        self.requests: dict[str, int] = {}
        self.receipts: dict[str, str] = {}

    def run(self, name: str, work: Any) -> Any:
        self.upstream.begin()
        self.upstream.change = self.changing == name
        before = self.upstream.requests
        block = annals.replay if self.replaying else annals.record
        with block(name, store=self.store) as session:
            result = work()
        if self.replaying:
            self.receipts[name] = str(session.receipt)
            assert self.upstream.requests == before, f"the replay of {name} asked the server"
        else:
            self.requests[name] = self.upstream.requests - before
        return result

    def validate(self) -> dict[str, tuple[float, float]]:
        found = {}
        for kind in FaultClass:
            report = self.run(f"validate-{kind.value}", validate.ValidationRunner(kind).run)
            found[kind.value] = report.top1_precision, report.negative_control_max_flip
        return found

    def bench(self) -> Any:
        names = iter(SHAPLEY_RUNS)
        kept = bench.run_shapley, bench.run_shapley_concurrent

        def in_a_block(original: Any) -> Any:
            return lambda *wanted, **options: self.run(f"bench-{next(names)}", lambda: original(*wanted, **options))

        bench.run_shapley, bench.run_shapley_concurrent = map(in_a_block, kept)
        try:
            return bench.run_bench()
        finally:
            bench.run_shapley, bench.run_shapley_concurrent = kept


def main() -> int:
    version = importlib.metadata.version("tracefork")
    upstream = Upstream()
    upstream.install()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        scenarios = Scenarios(upstream, Path(directory) / "store")
        begun = time.monotonic()
        recorded = scenarios.validate(), scenarios.bench()
        recording = time.monotonic() - begun
        upstream.close()
        scenarios.replaying = True
        if "--change" in sys.argv[1:]:
            return changed(scenarios)
        begun = time.monotonic()
        replayed = scenarios.validate(), scenarios.bench()
        replaying = time.monotonic() - begun

    print(f"tracefork {version}: recorded in {recording:.1f} s, replayed without the server in {replaying:.1f} s\n")
    print("| scenario | requests | tracefork claims | recorded | replayed |\n|---|---|---|---|---|")
    for name, (precision, control) in recorded[0].items():
        again, requests = replayed[0][name], scenarios.requests["validate-" + name]
        print(f"| validate: {name} | {requests} | {CLAIMED_PRECISION:.2f} | {precision:.2f} | {again[0]:.2f} |")
        if not (precision, control) == again == (CLAIMED_PRECISION, CLAIMED_CONTROL):
            wrong.append(f"validate {name}: {precision}, {control}; replayed {again}")
    cases, again = iter(recorded[1].cases), iter(replayed[1].cases)
    for name, count in SHAPLEY_RUNS.items():
        for place in range(count):
            one, two = next(cases), next(again)
            requests = scenarios.requests["bench-" + name] if place == 0 else "the same"
            claimed = "missed" if one.name in CLAIMED_MISS else "right"
            print(f"| bench, {name}: {one.name} | {requests} | {claimed} | {said(one)} | {said(two)} |")
            if not claimed == said(one) == said(two) or one != two:
                wrong.append(f"bench {one.name}: {one}; replayed {two}")
    for report, what in ((recorded[1], "recorded"), (replayed[1], "replayed")):
        print(f"\nbench, {what}: {report.n_resolved} of {report.n_cases}", end="")
        if (report.n_resolved, report.n_cases) != CLAIMED_CASES or report.unexpected_failures():
            wrong.append(f"bench, {what}: {report.n_resolved} of {report.n_cases}")
    print()
    for name, count in scenarios.requests.items():
        if f"exact {count} of {count}, served {count}, unused 0" not in scenarios.receipts[name]:
            wrong.append(f"{name}: {count} requests, and the replay says: {scenarios.receipts[name]}")
    print(f"{sum(scenarios.requests.values())} requests in {len(scenarios.requests)} recordings, each replayed exactly")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def said(case: Any) -> str:
    return "right" if case.resolved else "missed"


def changed(scenarios: Scenarios) -> int:
    """Each replay asks one question that differs by a letter; it must not be answered."""
    blind = []
    for name in list(scenarios.requests):
        scenarios.changing = name
        kind = name.removeprefix("validate-")
        try:
            if kind != name:
                scenarios.run(name, validate.ValidationRunner(FaultClass(kind)).run)
            else:
                scenarios.bench()
        except annals.Diverged as difference:
            print(f"{name}: {str(difference).splitlines()[0]}")
        else:
            blind.append(name)
    for name in blind:
        print(f"NOT NAMED: {name}")
    return 1 if blind else 0


if __name__ == "__main__":
    sys.exit(main())
