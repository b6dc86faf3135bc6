"""A scripted upstream on the loopback: it answers models' calls and counts them."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import struct
import threading
import time
import zlib


def event_message(kind, payload):
    """A message of AWS's event streams: lengths and headers, each with a checksum, and the payload."""
    headers = b""
    for name, value in ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer(b"")

    def do_POST(self):
        self._answer(self.rfile.read(int(self.headers.get("content-length") or 0)))

    def _answer(self, body):
        upstream = self.server.upstream
        with upstream.lock:
            upstream.requests += 1
            number = upstream.requests
        path = self.path.partition("?")[0]
        if path.startswith("/slow/"):
            time.sleep(int(path.split("/")[2]) / 1000)
        if path == "/429":
            return self._send(429, b'{"error":"slow down"}', {"retry-after": "7"})
        if path == "/redirect":
            return self._send(302, b"", {"location": "/after"})
        if path == "/gzip":
            import gzip

            return self._send(200, gzip.compress(b"hello" * 100), {"content-encoding": "gzip"})
        if path.endswith(("/invoke-with-response-stream", "/converse-stream")):
            return self._event_stream(path, number)
        if path == "/broken":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return None
        if path in ("/v1/chat/completions", "/v1/messages") or path == "/stream":
            asked = json.loads(body) if body else {}
            if path == "/stream" or asked.get("stream"):
                return self._stream(number)
            said = json.dumps(asked.get("messages", ""))[-60:]
            answer = {
                "id": f"x{number}", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"answer {number} to {said}"}}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            }  # fmt: skip
            if path == "/v1/messages":
                answer = {
                    "id": f"m{number}", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": f"answer {number} to {said}"}],
                    "usage": {"input_tokens": 3, "output_tokens": 2},
                }  # fmt: skip
            return self._send(200, json.dumps(answer).encode(), {"content-type": "application/json"})
        self._send(200, f"answer {number}".encode(), {})

    def _send(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _event_stream(self, path, number):
        """Events of Bedrock, in AWS's binary form, each sent in two pieces."""
        self.send_response(200)
        self.send_header("content-type", "application/vnd.amazon.eventstream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if path.endswith("/converse-stream"):
            events = [("messageStart", {"role": "assistant"})]
            events += [
                ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": f"{number}.{part}"}}) for part in range(3)
            ]
            events.append(("messageStop", {"stopReason": "end_turn"}))
        else:
            parts = [json.dumps({"part": f"{number}.{part}"}).encode() for part in range(3)]
            events = [("chunk", {"bytes": base64.b64encode(part).decode()}) for part in parts]
        for kind, payload in events:
            data = event_message(kind, json.dumps(payload).encode())
            self._chunk(data[:20])
            self._chunk(data[20:])
        self.wfile.write(b"0\r\n\r\n")

    def _stream(self, number):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for place in range(3):
            chunk = {
                "id": f"x{number}", "object": "chat.completion.chunk", "created": 1, "model": "m",
                "choices": [{"index": 0, "delta": {"content": f"part {number}.{place} "}}],
            }  # fmt: skip
            self._chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            # The client must get this part before the next one is sent.
            self.server.upstream.between_parts()
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Upstream:
    """The running server; `url` is its address."""

    def __init__(self):
        self.requests = 0
        self.lock = threading.Lock()
        self.gate = None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.upstream = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def between_parts(self):
        if self.gate is not None:
            self.gate.acquire()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def upstream():
    up = Upstream()
    try:
        yield up
    finally:
        up.close()
