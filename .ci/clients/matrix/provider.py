"""A scripted model provider that counts: every interface that a client of the matrix asks, on listeners of their own.

Each answered request has a number, and the answer says it in the header `x-call`. A recording keeps that header, so the
requests that annals recorded are known one by one. `closed()` is for replays: a listener then counts each connection and
closes it without an answer.
"""
import binascii
import contextlib
import json
import pathlib
import struct
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import upstream  # noqa: E402

# What the last part of a path is if the request asks a model.
MODEL_CALLS = (
    "/chat/completions", "/completions", "/responses", "/embeddings", "/messages", "/chat", "/api/generate", "/embed",
    ":generatecontent", ":streamgeneratecontent", "/converse", "/converse-stream", "/invoke", "/predictions", "/files",
)


def event_frame(kind, value):
    """One message of the event streams of AWS: prelude, headers and payload, with the checksum of each."""
    headers = b""
    for name, text in ((":event-type", kind), (":content-type", "application/json"), (":message-type", "event")):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(text)) + text.encode()
    payload = json.dumps(value).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", binascii.crc32(message))


class Handler(upstream.Handler):
    def setup(self):
        self.number = None
        super().setup()

    def end_headers(self):
        if self.number is not None:
            self.send_header("x-call", str(self.number))
        super().end_headers()

    def send_error(self, *words, **named):
        self.server.odd.append(f"{self.requestline!r}: {words}")
        super().send_error(*words, **named)

    def whole(self, status, value, headers=()):
        # Some clients ask for these two, which the plain answers leave out.
        if isinstance(value, dict) and value.get("object") == "chat.completion":
            value = {**value, "system_fingerprint": "fp", "service_tier": "default"}
        super().whole(status, value, headers)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.number = self.server.note(self.command, self.path)
        path = self.path.split("?")[0]
        if "upgrade" in self.headers.get("connection", "").lower():
            return self.whole(426, {"error": {"message": "no WebSocket here"}})
        if "/predictions/" in path:
            return self.whole(200, self.prediction(path))
        if "/hypervisor" in path or path in ("/", "/api/version"):
            return self.whole(200, {"version": "1.0"})
        return super().do_GET()

    def do_POST(self):
        self.number = self.server.note("POST", self.path)
        path = self.path.split("?")[0]
        body = self.body()
        if path.endswith("/files"):
            named = body.split(b'filename="')[1].split(b'"')[0].decode() if b'filename="' in body else None
            value = {"id": f"file-{self.number}", "object": "file", "bytes": len(body), "created_at": 1, "filename": named}
            return self.whole(200, {**value, "purpose": "assistants", "status": "processed"})
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            self.server.odd.append(f"POST {self.path}: not JSON")
            return self.whole(400, {"error": {"message": "not JSON"}})
        self.answer(path, asked)

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, path, asked):
        number = self.number
        if path.endswith("/v1/messages"):
            return self.anthropic(asked, number)
        if path.endswith("/messages"):
            error = {"type": "not_found_error", "message": f"no such path: {path}"}
            return self.whole(404, {"type": "error", "error": error})
        if path.endswith("/responses"):
            return self.stream_response(asked) if asked.get("stream") else self.respond(asked, number)
        if ":generatecontent" in path.lower() or ":streamgeneratecontent" in path.lower():
            return self.gemini(path, asked)
        if path.endswith("/api/chat"):
            return self.ollama(asked)
        if "/model/" in path:
            return self.bedrock(path, asked)
        if path.endswith("/predictions"):
            return self.whole(201, self.prediction(path))
        if path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.1, number / 8]}]
            return self.whole(200, {"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 1, "total_tokens": 1}})
        if path.endswith("/embed"):
            return self.whole(200, {"id": "e", "texts": ["hi"], "embeddings": {"float": [[0.1, number / 8]]}})
        if path.endswith("/chat/completions"):
            # The deployments of Azure name the model in the path.
            return self.chat({"model": "m-1", **asked}, number)
        if path.endswith("/v2/chat") or path.endswith("/v1/chat"):
            return self.cohere(asked)
        return self.whole(200, {"ok": number})

    def stream_response(self, asked):
        """The events of the responses interface; the text comes in three parts."""
        number = self.number
        item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        text = f"{number}: ünïcode answer"
        part = {"type": "output_text", "text": text, "annotations": []}
        whole = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": asked["model"], "parallel_tool_calls": True,
                 "tool_choice": "auto", "tools": [], "status": "completed", "output": [{**item, "content": [part]}],
                 "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_tokens_details": {"cached_tokens": 0},
                           "output_tokens_details": {"reasoning_tokens": 0}}}
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        events = [{"type": "response.created", "response": begun}]
        events.append({"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress", "content": []}})
        events.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
        events += [{"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []} for piece in (text[:3], text[3:9], text[9:])]
        events.append({"type": "response.output_text.done", **place, "text": text, "logprobs": []})
        events.append({"type": "response.content_part.done", **place, "part": part})
        events.append({"type": "response.output_item.done", "output_index": 0, "item": {**item, "content": [part]}})
        events.append({"type": "response.completed", "response": whole})
        upstream.sse(self, [{**event, "sequence_number": at} for at, event in enumerate(events)], True)

    def gemini(self, path, asked):
        usage = {"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7}
        words = [f"{self.number}: ", "ünïcode ", "answer"]

        def part(text, ended):
            candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
            return {"candidates": [{**candidate, "finishReason": "STOP"} if ended else candidate], "usageMetadata": usage, "modelVersion": "m-1"}
        if "stream" in path.lower():
            return upstream.sse(self, [part(word, word == words[-1]) for word in words], False)
        return self.whole(200, part("".join(words), True))

    def ollama(self, asked):
        base = {"model": asked["model"], "created_at": "2026-11-23T00:00:00Z"}
        words = [f"{self.number}: ", "ünïcode ", "answer"]
        last = {"done": True, "done_reason": "stop", "total_duration": 1, "prompt_eval_count": 3, "eval_count": 4}

        def line(text, more):
            return {**base, "message": {"role": "assistant", "content": text}, **more}
        if asked.get("stream") is False:
            return self.whole(200, line("".join(words), last))
        lines = [line(word, {"done": False}) for word in words] + [line("", last)]
        return self.parts("application/x-ndjson", [json.dumps(value).encode() + b"\n" for value in lines])

    def bedrock(self, path, asked):
        usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
        text = f"{self.number}: ünïcode answer"
        if path.endswith("/invoke"):
            message = {"id": f"msg_{self.number}", "type": "message", "role": "assistant", "model": "m-1", "stop_sequence": None}
            return self.whole(200, {**message, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn",
                                    "usage": {"input_tokens": 3, "output_tokens": 4}})
        if path.endswith("/converse"):
            output = {"message": {"role": "assistant", "content": [{"text": text}]}}
            return self.whole(200, {"output": output, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}})
        pieces = [event_frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in (text[:5], text[5:])]
        self.parts("application/vnd.amazon.eventstream", [
            event_frame("messageStart", {"role": "assistant"}), *pieces, event_frame("contentBlockStop", {"contentBlockIndex": 0}),
            event_frame("messageStop", {"stopReason": "end_turn"}), event_frame("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}),
        ])

    def cohere(self, asked):
        usage = {"tokens": {"input_tokens": 3, "output_tokens": 4}}
        text = f"{self.number}: ünïcode answer"
        if not asked.get("stream"):
            message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
            return self.whole(200, {"id": f"c-{self.number}", "finish_reason": "COMPLETE", "message": message, "usage": usage})
        events = [{"type": "message-start", "id": f"c-{self.number}", "delta": {"message": {"role": "assistant"}}}]
        events.append({"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}})
        events += [{"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": piece}}}} for piece in (text[:5], text[5:])]
        events.append({"type": "content-end", "index": 0})
        events.append({"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usage}})
        upstream.sse(self, events, True)

    def prediction(self, path):
        base = {"id": "p1", "model": "a/b", "version": "v1", "input": {}, "logs": "", "error": None, "urls": {}, "metrics": {}}
        base |= {"created_at": "2026-11-23T00:00:00Z", "started_at": None, "completed_at": None, "data_removed": False}
        return {**base, "status": "succeeded", "output": [f"{self.number}: ", "answer"]}

    def parts(self, kind, parts):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


class Provider:
    """The listeners of the matrix; they share the numbers of their calls."""

    def __init__(self, addresses):
        self.lock = threading.Lock()
        self.calls, self.odd, self.connections, self.is_closed = {}, [], 0, False
        self.servers = [self.listener(address) for address in addresses]
        self.urls = [self.url(server) for server in self.servers]

    @staticmethod
    def url(server):
        return f"http://{server.server_address[0]}:{server.server_port}"

    def listener(self, address):
        provider = self

        class Server(upstream.Server):
            odd = self.odd

            def verify_request(self, request, client_address):
                return provider.admit()

            def handle_error(self, request, client_address):
                """A client may hang up; what it was answered is known."""

            def note(self, method, path):
                return provider.note(method, path, provider.url(self))

        server = Server((address, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def admit(self):
        with self.lock:
            self.connections += 1
            return not self.is_closed

    def note(self, method, path, listener):
        with self.lock:
            number = len(self.calls) + 1
            last = path.split("?")[0].lower()
            is_model = method == "POST" and last.endswith(MODEL_CALLS)
            self.calls[number] = {"what": f"{method} {path.split('?')[0]}", "is_model": is_model, "listener": listener}
            return number

    def since(self, number):
        """The calls after this one, by number."""
        with self.lock:
            return {at: call for at, call in self.calls.items() if at > number}

    @contextlib.contextmanager
    def closed(self):
        """Counts connections instead of answering. Gives a function that says how many came."""
        with self.lock:
            self.is_closed, before = True, self.connections
        try:
            yield lambda: self.connections - before
        finally:
            with self.lock:
                self.is_closed = False
