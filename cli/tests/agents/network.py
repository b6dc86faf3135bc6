"""Does what its arguments say, one after the other, and prints what came of each; never fails."""

import json
import os
import socket
import subprocess
import sys
import urllib.request


def call(base):
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(base + "/chat/completions", body, headers)) as answer:
        return answer.status


def connect(host, port):
    socket.create_connection((host, int(port))).close()


def datagram(host, port):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.sendto(b"x", (host, int(port)))


def many(count, host, port):
    failed = 0
    for _ in range(int(count)):
        sock = socket.socket()
        failed += sock.connect_ex((host, int(port))) != 0
        sock.close()
    return f"{failed} failed"


def run(*command):
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode


def hold(path):
    with open(path) as held:
        return held.read()


DOES = {
    "annals": lambda: call(os.environ["OPENAI_BASE_URL"]),
    "direct": lambda host, port: call(f"http://{host}:{port}/v1"),
    "connect": connect,
    "datagram": datagram,
    "name": lambda name: socket.getaddrinfo(name, 443) and "found",
    "many": many,
    "hold": hold,
    "run": run,
    "own-namespace": lambda host, port: run("unshare", "-Urn", sys.executable, __file__, f"connect {host} {port}"),
    "other-namespace": lambda host, port: run(
        "nsenter", f"--net=/proc/{os.environ['OUTSIDE']}/ns/net", sys.executable, __file__, f"connect {host} {port}"
    ),
}

for action in sys.argv[1:]:
    name, *rest = action.split()
    try:
        print(name, DOES[name](*rest), flush=True)
    except OSError as error:
        print(name, type(error).__name__, flush=True)
