"""A scripted model provider for real clients: OpenAI chat and responses, Anthropic messages; plain, streamed, errors, tools.

Answers hold a number that counts up, so that a replay that reached it would show. Usage: upstream.py PORT_FILE
"""
import gzip
import http.server
import itertools
import json
import os
import sys
import time

count = itertools.count(1)
limited = itertools.count(1)


def sse(handler, events, named):
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    text = b""
    for event in events:
        if named and isinstance(event, dict):
            text += f"event: {event['type']}\n".encode()
        text += b"data: " + (event if isinstance(event, bytes) else json.dumps(event, ensure_ascii=False).encode()) + b"\n\n"
    # Parts end in the middle of events and of characters.
    for at in range(0, len(text), 61):
        part = text[at : at + 61]
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        handler.wfile.flush()
        time.sleep(0.0005)
    handler.wfile.write(b"0\r\n\r\n")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def whole(self, status, value, headers=()):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        if not isinstance(value, bytes):
            self.send_header("content-type", "application/json")
        if "gzip" in self.headers.get("accept-encoding", "") and len(body) > 100:
            body = gzip.compress(body, mtime=0)
            self.send_header("content-encoding", "gzip")
        self.send_header("x-request-id", f"req_{next(count)}")
        for name, text in headers:
            self.send_header(name, text)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.whole(200, {"object": "list", "data": [{"id": "m-1", "object": "model", "created": 1, "owned_by": "us"}]})

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        path = self.path.split("?")[0]
        if path.endswith("/audio/speech"):
            return self.whole(200, bytes(range(256)) * 64, [("content-type", "audio/mpeg")])
        asked = json.loads(body)
        number = next(count)
        text = json.dumps(asked)
        if "fail with 429" in text and next(limited) % 2 == 1:
            return self.whole(429, {"error": {"message": "slow down", "type": "rate_limit"}}, [("retry-after-ms", "5")])
        if "fail with 400" in text:
            return self.whole(400, {"error": {"message": "no such model", "type": "invalid_request_error"}})
        if "wait" in text:
            time.sleep(number * 7 % 11 / 200)
        if path.endswith("/messages"):
            return self.anthropic(asked, number)
        if path.endswith("/responses"):
            return self.respond(asked, number)
        if path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.1, number / 7]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            return self.whole(200, {"object": "list", "data": data, "model": "e", "usage": usage})
        return self.chat(asked, number)

    def chat(self, asked, number):
        last = asked["messages"][-1]
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        base = {"id": f"chatcmpl-{number}", "created": 1700000000 + number, "model": asked["model"]}
        if asked.get("tools") and last["role"] == "user":
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        else:
            message, reason = {"role": "assistant", "content": f"{number}: ünïcode {last['content']}"}, "stop"
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
            return self.whole(200, {**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        base["object"] = "chat.completion.chunk"
        deltas = [{"role": "assistant", "content": ""}]
        if message.get("tool_calls"):
            deltas.append({"tool_calls": [{"index": 0, **message["tool_calls"][0]}]})
        else:
            deltas += [{"content": word} for word in message["content"].split(" ")]
        events = [{**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        events.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        events.append({**base, "choices": [], "usage": usage})
        sse(self, [*events, b"[DONE]"], False)

    def anthropic(self, asked, number):
        last = asked["messages"][-1]["content"]
        usage = {"input_tokens": 11, "output_tokens": 7}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": asked["model"], "stop_sequence": None}
        if asked.get("tools") and isinstance(last, str):
            content, reason = [{"type": "tool_use", "id": f"toolu_{number}", "name": "add", "input": {"a": 2, "b": 3}}], "tool_use"
        else:
            content, reason = [{"type": "text", "text": f"{number}: ünïcode {json.dumps(last)}"}], "end_turn"
        if not asked.get("stream"):
            return self.whole(200, {**message, "content": content, "stop_reason": reason, "usage": usage})
        events = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}}]
        events.append({"type": "ping"})
        if content[0]["type"] == "text":
            events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
            for word in content[0]["text"].split(" "):
                events.append({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}})
        else:
            block = {**content[0], "input": {}}
            events.append({"type": "content_block_start", "index": 0, "content_block": block})
            delta = {"type": "input_json_delta", "partial_json": json.dumps(content[0]["input"])}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        events.append({"type": "content_block_stop", "index": 0})
        events.append({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage})
        events.append({"type": "message_stop"})
        sse(self, events, True)

    def respond(self, asked, number):
        part = {"type": "output_text", "text": f"{number}: {asked['input']}", "annotations": []}
        item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        self.whole(200, {
            "id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed", "model": asked["model"],
            "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7,
                      "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}},
        })


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main():
    server = Server(("127.0.0.1", 0), Handler)
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(server.server_port))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
