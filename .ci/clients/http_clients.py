#!/usr/bin/env python3
"""Clients of the daemon over HTTP, unchanged, against `annals serve --http`: prints what each did, and ends with 1 if anything was not as it should be.

Usage: .ci/clients/http_clients.py [--work DIR]
The commands of docs/http.md are run as they stand there. Programs of the openai and anthropic SDKs are recorded through /proxy, the run and the token told in
each of the three ways, and replayed through /replay once the upstream (upstream.py) is gone: they have to print the same, with nothing left over. The SDK of
OpenTelemetry exports to /v1/traces, plain and gzip; what /metrics says is read by the parser of prometheus_client.
Makes a virtual environment in DIR (default target/clients) with pip: without it, this is skipped and said. ANNALS names the binary (default: target/debug/annals).
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BINARY = os.environ.get("ANNALS", str(ROOT / "target" / "debug" / "annals"))
PACKAGES = ["openai", "anthropic", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "prometheus-client"]
SDKS = {"openai": "/openai/v1", "anthropic": "/anthropic"}
WAYS = ["path", "headers", "behind the key"]
DOINGS = ["plain", "stream", "concurrent", "errors", "tools"]
KEY = "sk-a-key-that-must-not-be-kept"

# An SDK's client with headers of its own, as its option has them; then the program as it is.
WITH_HEADERS = """
import functools, json, runpy, sys
name, script, headers, *args = sys.argv[1:]
sdk = __import__(name)
for client in ("OpenAI", "AsyncOpenAI", "Anthropic", "AsyncAnthropic"):
    if hasattr(sdk, client):
        setattr(sdk, client, functools.partial(getattr(sdk, client), default_headers=json.loads(headers)))
sys.argv = [script, *args]
runpy.run_path(script, run_name="__main__")
"""

# Two spans, one within the other. Prints the trace's id.
TRACED = """
import sys
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
address, token, packed = sys.argv[1:]
exporter = OTLPSpanExporter(endpoint=address + "/v1/traces", headers={"authorization": "Bearer " + token}, compression=Compression[packed])
provider = TracerProvider(resource=Resource.create({"service.name": "a service"}))
provider.add_span_processor(BatchSpanProcessor(exporter))
tracer = provider.get_tracer("annals")
with tracer.start_as_current_span("invoke_agent") as root:
    with tracer.start_as_current_span("chat m-1") as span:
        span.set_attribute("gen_ai.operation.name", "chat")
        span.set_attribute("gen_ai.request.model", "m-1")
        span.set_attribute("gen_ai.usage.input_tokens", 11)
        span.set_attribute("gen_ai.input.messages", '[{"role":"user","parts":[{"type":"text","content":"é?"}]}]')
        span.set_attribute("gen_ai.output.messages", '[{"role":"assistant","parts":[{"type":"text","content":"yes"}]}]')
assert provider.force_flush()
provider.shutdown()
print(format(root.get_span_context().trace_id, "032x"))
"""

# What a text in OpenMetrics says: the type of each family, and its samples.
PARSED = """
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = text_string_to_metric_families(sys.stdin.read())
print(json.dumps({family.name: [family.type, [[sample.name, sample.value] for sample in family.samples]] for family in families}))
"""


class Wrong(Exception):
    """Something is not as it should be."""


def check(is_so, what):
    if not is_so:
        raise Wrong(what)


class Daemon:
    def __init__(self, folder, upstream):
        self.store = folder / "store"
        self.token = self.annals("token", "add", "me").strip()
        options = [f"--upstream=openai={upstream}/v1", f"--upstream=anthropic={upstream}"]
        self.log = (folder / "log").open("w+")
        command = [BINARY, "--store", self.store, "serve", "--http", "127.0.0.1:0", *options]
        self.child = subprocess.Popen(command, stderr=self.log)
        said = ""
        while "annals: ready" not in said:
            check(self.child.poll() is None, f"the daemon does not start: {said}")
            said = (folder / "log").read_text()
            time.sleep(0.02)
        self.address = re.search(r"http://127\.0\.0\.1:\d+", said)[0]

    def annals(self, *words):
        done = subprocess.run([BINARY, "--store", self.store, *words], capture_output=True, text=True)
        check(done.returncode == 0, f"annals {words}: {done.stderr}")
        return done.stdout

    def ask(self, method, path, body=None):
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            raise Wrong(f"{method} {path}: {error.code} {error.read().decode()}") from error

    def stop(self):
        self.child.terminate()
        check(self.child.wait() == 0, "the daemon did not end in order")


def upstream(folder):
    port_file = folder / "port"
    server = subprocess.Popen([sys.executable, "-B", HERE / "upstream.py", port_file])
    while not port_file.exists():
        time.sleep(0.02)
    return server, f"http://127.0.0.1:{port_file.read_text()}"


def documented(daemon):
    """Runs the commands of docs/http.md; gives how many there were."""
    text = (ROOT / "docs" / "http.md").read_text()
    lines = re.search(r"```console\n(.*?)```", text, re.S)[1].splitlines()
    shell, count = ["set -e"], 0
    expected = []
    for line in lines:
        if line.startswith("$ "):
            command = line[2:].replace("http://127.0.0.1:7421", daemon.address).replace("curl ", "curl -sS ")
            # A token is told by its first digits there.
            command = re.sub(r"^export TOKEN=.*", f"export TOKEN={daemon.token}", command)
            # It was done, so that there is a daemon to ask.
            command = command.replace("annals token add me", f"echo {daemon.token}")
            shell += [command, "echo; echo ----"]
            expected.append("")
            count += 1
        else:
            expected[-1] += line + "\n"
    done = subprocess.run(["bash", "-c", "\n".join(shell)], capture_output=True, text=True)
    check(done.returncode == 0, f"docs/http.md: {done.stderr}")
    told = [part.strip() for part in done.stdout.split("----\n")][:-1]
    for said, shown in zip(told, expected, strict=True):
        both = [re.sub("^[0-9a-f]{64}$", "TOKEN", text.strip()) for text in (said, shown)]
        check(both[0] == both[1], f"docs/http.md shows {shown!r}, and there came {said!r}")
    return count


def program(python, daemon, sdk, way, doing, run, begins):
    """What a program prints that goes through the daemon."""
    named = urllib.parse.quote(run, safe="")
    base, key, script = daemon.address + begins, KEY, str(HERE / f"python_{sdk}.py")
    command = [python, "-B", script, doing]
    if way == "path":
        base += f"/{daemon.token}@{named}"
    elif way == "headers":
        headers = {"x-annals-run": run, "x-annals-token": daemon.token}
        command = [python, "-B", "-c", WITH_HEADERS, sdk, script, json.dumps(headers), doing]
    else:
        key += f"+annals:{daemon.token}:{named}"
    name = sdk.upper()
    environment = os.environ | {f"{name}_BASE_URL": base + SDKS[sdk], f"{name}_API_KEY": key}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0, f"{begins} {sdk} {way} {doing}: {done.stderr[-800:]}")
    return done.stdout


def replayed(python, daemon, sdk, way, doing, run, printed):
    again = program(python, daemon, sdk, way, doing, run, "/replay")
    same = sorted(again.splitlines()) == sorted(printed.splitlines()) if doing == "concurrent" else again == printed
    check(same, f"{run} printed {printed[-300:]!r}, replayed {again[-300:]!r}")
    came = json.loads(daemon.ask("GET", f"/replay/{daemon.token}@{urllib.parse.quote(run, safe='')}"))
    left = [came[what] for what in ("unused", "unrecorded", "changed", "diverged", "given_up")]
    check(not any(left) and came["served"] == came["recorded"] > 0, f"{run}: {came}")


def traced(python, daemon, packed):
    done = subprocess.run([python, "-c", TRACED, daemon.address, daemon.token, packed], capture_output=True, text=True)
    check(done.returncode == 0 and not done.stderr, f"the exporter: {done.stderr}")
    frames = json.loads(daemon.ask("GET", f"/v1/runs/trace-{done.stdout.strip()}/frames"))
    check([frame["component"] for frame in frames] == ["internal", "llm"], f"frames of a trace: {frames}")
    check(frames[1]["parent"] == 1 and '"é?"' in frames[1]["request"] and '"yes"' in frames[1]["response"], f"{frames}")
    check(json.loads(frames[1]["metadata"])["usage"]["input"] == 11, f"{frames}")


def metrics(python, daemon):
    text = daemon.ask("GET", "/metrics")
    done = subprocess.run([python, "-c", PARSED], input=text, capture_output=True, text=True)
    check(done.returncode == 0, f"the parser: {done.stderr}")
    families = json.loads(done.stdout)
    commands = dict(families["annals_commands"][1])
    check(commands["annals_commands_total"] > 0 and families["annals_sync_seconds"][0] == "histogram", f"{families}")
    return len(families)


def version(python, package):
    asked = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    done = subprocess.run([python, "-c", asked, package], capture_output=True, text=True)
    return done.stdout.strip() or None


def installed(work):
    """A Python that has all packages, or none."""
    python = work / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    missing = [package for package in PACKAGES if not version(python, package)]
    if missing:
        subprocess.run([python, "-m", "pip", "install", "-q", *missing], check=False)
    return str(python) if all(version(python, package) for package in PACKAGES) else None


def attempt(what, doing, failed):
    """A cell of the table."""
    try:
        return doing() or "as it should be"
    except (Wrong, subprocess.TimeoutExpired) as wrong:
        failed.append(f"{what}: {wrong}")
        return "FAILED"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "clients")
    work = parser.parse_args().work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python, failed = installed(work), []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        server, url = upstream(folder)
        daemon = Daemon(folder, url)
        print("| client | did | |\n|---|---|---|")
        cell = attempt("curl", lambda: f"{documented(daemon)} commands", failed)
        print(f"| curl | the commands of docs/http.md | {cell} |", flush=True)
        if python is None:
            print("SKIPPED: pip cannot install " + ", ".join(PACKAGES))
        else:
            runs = [(sdk, way, doing, f"{sdk} {way} {doing}") for sdk in SDKS for way in WAYS for doing in DOINGS]
            printed = {}

            def record(sdk, way, doing, run):
                printed[run] = program(python, daemon, sdk, way, doing, run, "/proxy")
                daemon.ask("POST", f"/v1/runs/{urllib.parse.quote(run, safe='')}/end", {})

            for sdk, way, doing, run in runs:
                attempt(f"recording {run}", lambda: record(sdk, way, doing, run), failed)
            server.kill()
            server.wait()
            for sdk in SDKS:
                for way in WAYS:
                    cells = []
                    for doing in DOINGS:
                        run = f"{sdk} {way} {doing}"
                        if run in printed:
                            done = attempt(f"replaying {run}", lambda: replayed(python, daemon, sdk, way, doing, run, printed[run]), failed)
                            cells.append(doing if done != "FAILED" else f"{doing} FAILED")
                        else:
                            cells.append(f"{doing} FAILED")
                    row = f"| Python {sdk} {version(python, sdk)}, {way} | recorded, and replayed with the upstream gone | {', '.join(cells)} |"
                    print(row, flush=True)
            known = daemon.annals("verify") and subprocess.run(["grep", "-rlaF", KEY, daemon.store], capture_output=True, text=True).stdout
            if known:
                failed.append(f"the key is in {known}")
            name = f"OpenTelemetry SDK for Python {version(python, 'opentelemetry-sdk')}"
            for packed in ("NoCompression", "Gzip"):
                cell = attempt(f"OpenTelemetry {packed}", lambda: traced(python, daemon, packed), failed)
                print(f"| {name}, protobuf, {packed} | spans to `/v1/traces` | {cell} |", flush=True)
            cell = attempt("Prometheus", lambda: f"{metrics(python, daemon)} families", failed)
            print(f"| prometheus_client {version(python, 'prometheus-client')}, parser of OpenMetrics | `/metrics` | {cell} |", flush=True)
        server.kill()
        attempt("the end", daemon.stop, failed)
        if not failed and python is not None:
            daemon.annals("verify")
    for what in failed:
        print(what, file=sys.stderr)
    sys.exit(1 if failed else 0)


main()
