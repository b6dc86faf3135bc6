"""An agent of the standard library alone: does what its first argument says and prints all that it was told."""
import hashlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse

BASE = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])


def ask(path, body, method="POST", headers=None, connection=None):
    """Status, headers and body of one exchange; bodies of streams by parts."""
    connection = connection or http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "none"), "Content-Type": "application/json"}
    connection.request(method, BASE.path + path, data, {**sent, **(headers or {})})
    answer = connection.getresponse()
    return answer


def told(answer):
    body = answer.read()
    headers = sorted((k.lower(), v) for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection"))
    return f"{answer.status} {headers} {hashlib.sha256(body).hexdigest()} {body[:300]!r}"


def chat(text, **more):
    return {"model": "m-1", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}], **more}


def every():
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=60)
    print(told(ask("/chat/completions", chat("one"), connection=connection)))
    print(told(ask("/chat/completions", chat("one"), connection=connection)), flush=True)
    print(told(ask("/chat/completions", chat("two", stream=True))))
    print(told(ask("/limited", {"a": 1})))
    print(told(ask("/limited", {"a": 1})))
    print(told(ask("/binary?x=1&key=AIzaSecretKey", bytes(range(256)))))
    print(told(ask("/empty", b"", method="GET")))
    print(told(ask("/nowhere/known", b"", method="DELETE")))
    print(told(ask("/empty/head", b"", method="HEAD")))
    print("a word to the wise", file=sys.stderr)


def changed(text):
    for word in ["one", text, "three"]:
        answer = ask("/chat/completions", chat(word, temperature=0.5))
        print(answer.status, json.loads(answer.read()).get("choices"))


def first_of_changed():
    print(ask("/chat/completions", chat("one", temperature=0.5)).status)


def headed(value):
    answer = ask("/chat/completions", chat("one"), headers={"anthropic-beta": value, "x-trace": value})
    print(answer.status, json.loads(answer.read()).get("choices"))


def threads():
    ended, lock = [], threading.Lock()

    def one(number):
        answer = ask("/chat/completions", chat(f"thread {number}", wait_ms=(number * 5 % 8) * 12))
        text = json.loads(answer.read())["choices"][0]["message"]["content"]
        assert f"thread {number}" in text, text
        with lock:
            ended.append(number)
            print(number, text, flush=True)

    all_of_them = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    [thread.start() for thread in all_of_them]
    [thread.join() for thread in all_of_them]


def hangs_up(bytes=60):
    answer = ask("/chat/completions", chat("slow", stream=True, pause_ms=40))
    print(answer.status, answer.read(int(bytes)))
    answer.close()
    print(told(ask("/chat/completions", chat("after"))))


def broken():
    try:
        print(told(ask("/broken", b"x")))
    except http.client.IncompleteRead as error:
        print("incomplete", error.partial)


def swapped(order):
    for word in order.split(","):
        answer = ask("/chat/completions", chat(word))
        answer.read()
        print(word, answer.status)


def fails(code):
    ask("/chat/completions", chat("about to fail")).read()
    sys.exit(int(code))


def dies():
    ask("/chat/completions", chat("about to die")).read()
    os.kill(os.getpid(), 15)


def noted(note, words):
    for word in words.split(","):
        answer = ask("/chat/completions", chat(word, note=note))
        print(word, answer.status, answer.read().decode(), flush=True)


def held(before, file, after):
    """Goes on once there is such a file. Ends if its folder is gone, with the test that would make the file."""
    noted("held", before)
    while not os.path.exists(file):
        try:
            os.getcwd()
        except FileNotFoundError:
            os._exit(1)
        time.sleep(0.01)
    noted("held", after)


def streams(words, bytes):
    """A slow stream for each word, told once it has begun; then so many bytes of output."""
    for word in words.split(","):
        answer = ask("/chat/completions", chat(word, stream=True, pause_ms=30))
        print("begun", word, answer.read(20), flush=True)
        print(told(answer), flush=True)
    print("x" * int(bytes))


def exits_if(path):
    """Ends with 1 if a file is there."""
    print(told(ask("/chat/completions", chat("one"))), flush=True)
    sys.exit(os.path.exists(path))


def gives_up(seconds="0.3"):
    """Hangs up before the answer comes; an ordinary call; one that nobody waits for at the end."""
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=float(seconds))
    try:
        print(ask("/chat/completions", chat("slow", wait_ms=1500), connection=connection).status)
    except TimeoutError:
        print("nobody answered")
    connection.close()
    print(told(ask("/chat/completions", chat("after"))), flush=True)
    last = http.client.HTTPConnection(BASE.hostname, BASE.port)
    last.request("POST", BASE.path + "/chat/completions", json.dumps(chat("last", wait_ms=1500)))


def cuts_upload():
    """Hangs up in the middle of a long body; then an ordinary call."""
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=60)
    connection.putrequest("POST", BASE.path + "/chat/completions")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "1000000")
    connection.endheaders(b"x" * 200000)
    connection.close()
    noted("after", "a")


def tools():
    """A call, the result of a tool, and one more turn that sends all of it again."""
    messages = [{"role": "user", "content": "how warm is it?"}]
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    for more in [[], [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "19 degrees"}],
                 [{"role": "assistant", "content": "warm"}, {"role": "user", "content": "sure?"}]]:
        messages += more
        print(ask("/chat/completions", {"model": "m-1", "messages": messages}).read().decode(), flush=True)


def is_killed(calls, bytes):
    """So many calls, then as many bytes of a stream, then it is killed."""
    for number in range(int(calls)):
        print(told(ask("/chat/completions", chat(f"call {number}"))), flush=True)
    if int(bytes):
        answer = ask("/chat/completions", chat("slow", stream=True, pause_ms=20))
        print(answer.read(int(bytes)), flush=True)
    os.kill(os.getpid(), 9)


def pictures(count, bytes, turns):
    """The same pictures sent again in every turn."""
    import base64
    import random
    chance = random.Random(7)
    picture = lambda: base64.b64encode(chance.randbytes(int(bytes) * 3 // 4)).decode()
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + picture()}} for _ in range(int(count))]
    messages = [{"role": "user", "content": parts}]
    for turn in range(int(turns)):
        messages.append({"role": "user", "content": f"turn {turn}"})
        answer = json.loads(ask("/chat/completions", {"model": "m-1", "messages": messages}).read())
        messages.append(answer["choices"][0]["message"])
    print(len(messages))


def large(bytes):
    print(told(ask("/chat/completions", bytes_of(int(bytes)))))


def bytes_of(count):
    return (b"0123456789abcdef" * (count // 16 + 1))[:count]


def chunked():
    def parts():
        yield b'{"model": "m-1", '
        yield b'"messages": [{"role": "user", "content": "in chunks"}]}'
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=60)
    connection.request("POST", BASE.path + "/chat/completions", parts(), {"Content-Type": "application/json"}, encode_chunked=True)
    print(told(connection.getresponse()))


def garbled():
    print(told(ask("/garbled", chat("x", stream=True))))
    print(told(ask("/chat/completions", b"{no json")))


def strange():
    print(told(ask("/chat/completions", b"", method="GET", headers={"Upgrade": "websocket", "Connection": "Upgrade"})))
    print(told(ask("/chat/completions", chat("still there"))))


def reads(count=""):
    """Reads all of its standard input, or so many bytes of it."""
    data = sys.stdin.buffer.read(*[int(count)] if count else [])
    print(len(data), ask("/chat/completions", chat(hashlib.sha256(data).hexdigest())).read().decode())


def leaves(file, output=""):
    """Ends at once; a grandchild in a session of its own goes on once there is such a file."""
    noted("before", "a")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if output == "silent":
                [os.dup2(os.open(os.devnull, os.O_RDWR), number) for number in (0, 1, 2)]
            held("b", file, "c")
        os._exit(0)
    os.wait()


def bulky(number, bytes):
    """So many requests with as many random bytes each."""
    import random
    chance = random.Random(7)
    for _ in range(int(number)):
        print(ask("/chat/completions", chat(chance.randbytes(int(bytes)).hex())).status)


def argued(*words):
    print(words, ask("/chat/completions", chat(" ".join(words))).read().decode(), os.getcwd())


def secretive():
    """Tells its secrets to the model, in an address, a header and its output; a stream spells one back in pieces."""
    token, plain = os.environ.get("TOKEN", "none"), os.environ.get("PLAIN", "none")
    print(ask("/chat/completions", chat("my token is " + token)).read().decode())
    print(ask("/chat/completions", chat("mine is " + plain, stream=True, spell=6)).read().decode())
    print(ask("/nowhere/" + urllib.parse.quote(token, safe="") + "?a=" + plain, b"", headers={"X-Mine": plain}).status)
    print(f"I know {plain}", file=sys.stderr)


LOAN = "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k."
BUREAU = '{ "score": 580, "bureau": "experian" }'


def loan(stream=""):
    """Asks about a loan, looks a score up as it is told, and prints the answer as it came."""
    messages = [{"role": "system", "content": "underwrite"}, {"role": "user", "content": LOAN}]
    body = {"model": "m-1", "messages": messages, "tools": [{"type": "function", "function": {"name": "lookupCreditBureau"}}], "stream": bool(stream)}
    ask("/chat/completions", body).read()
    call = {"id": "call_1", "type": "function", "function": {"name": "lookupCreditBureau", "arguments": '{"applicationId":"42"}'}}
    messages += [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": BUREAU}]
    print(ask("/chat/completions", body).read().decode())


def followup(annals, *options):
    """Has what was decided recalled, and asks a cheaper model with that in its prompt; prints what was recalled."""
    question = "Why was application #42 rejected?"
    recalled = subprocess.run([annals, "recall", question, *options], stdout=subprocess.PIPE, check=True).stdout.decode()
    messages = [{"role": "system", "content": "Answer from the record.\n" + recalled}, {"role": "user", "content": question}]
    ask("/chat/completions", {"model": "cheap-1", "messages": messages}).read()
    print(recalled)


def loan_claude():
    """The same of Anthropic's, as a stream."""
    base = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    messages = [{"role": "user", "content": LOAN}]

    def turn():
        body = json.dumps({"model": "c-1", "max_tokens": 100, "messages": messages, "stream": True}).encode()
        connection.request("POST", base.path + "/v1/messages", body, {"x-api-key": "none", "Content-Type": "application/json"})
        return connection.getresponse().read().decode()

    turn()
    call = {"type": "tool_use", "id": "toolu_1", "name": "lookupCreditBureau", "input": {"applicationId": "42"}}
    messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": BUREAU}]}]
    print(turn())


def nothing():
    print("no call")


globals()[sys.argv[1]](*sys.argv[2:])
