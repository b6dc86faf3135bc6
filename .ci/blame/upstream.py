"""A scripted model with an OpenAI-compatible interface, for the agents beside it. It errs once for each agent.

    python3 upstream.py    prints its address, and serves until its standard input ends

As with a real model, no two answers have the same ids, so every request after a new answer differs from the recorded
one. What it says follows from the conversation: the tools that were called, and what they returned. Only one answer for
each agent is wrong, and only when it is asked for the first time:

  agent_openai.py     third answer: the refund has its digits swapped
  agent_langgraph.py  second answer: an outdated page is opened
"""

import http.server
import itertools
import json
import sys
import threading

numbers = itertools.count(1)
erred = set()


def call(name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None,
            "tool_calls": [{"id": f"call_{next(numbers):024}", "type": "function", "function": function}]}


def say(text):
    return {"role": "assistant", "content": text}


def errs(agent):
    """Whether this is the answer that goes wrong: the first one."""
    first = agent not in erred
    erred.add(agent)
    return first


def refund(step, messages):
    if step == 1:
        return call("find_order", order="A-1042")
    if step == 2:
        return call("read_policy", topic="damaged goods")
    if step == 3:
        paid = json.loads(next(m["content"] for m in messages if m["role"] == "tool"))["paid"]
        return call("refund", order="A-1042", amount=float(str(paid)[::-1]) if errs("refund") else paid)
    if step == 4:
        return call("notify", customer="C-77", text="Your refund is on its way.")
    refunds = [json.loads(c["function"]["arguments"]) for m in messages for c in m.get("tool_calls") or [] if c["function"]["name"] == "refund"]
    return say(f"Order A-1042: refunded {refunds[-1]['amount']:.2f} euros, and the customer was told.")


def research(step, messages):
    if step == 1:
        return call("search", words="return period")
    if step == 2:
        return call("open_page", page="returns-2019" if errs("research") else "returns-2025")
    if step == 3:
        return call("note", text=next(m["content"] for m in reversed(messages) if m["role"] == "tool"))
    noted = next(m["content"] for m in reversed(messages) if m["role"] == "tool")
    return say(f"According to our rules: {noted}")


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        messages = request["messages"]
        step = 1 + sum(message["role"] == "assistant" for message in messages)
        script = refund if "refund" in messages[0]["content"] else research
        message = script(step, messages)
        answer = {"id": f"chatcmpl-{next(numbers)}", "object": "chat.completion", "created": 1764000000 + next(numbers), "model": request["model"],
                  "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}],
                  "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
