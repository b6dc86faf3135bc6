#!/usr/bin/env python3
"""Caches of agent frameworks, and TLS clients, against `annals serve`: prints a table of what each did, and ends with 1 if anything was not as it should be.

Usage: .ci/clients/framework_clients.py [CLIENT...]     (default: langchain litellm tls)
LangChain's RedisStore and litellm's Redis cache run unmodified from PyPI. `tls` connects with redis-py (ssl), with openssl and with curl to a daemon
that requires TLS, with a certificate made here. What is missing is said in a line that begins with SKIPPED. ANNALS names the binary.
"""
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import redis_clients  # noqa: E402
from redis_clients import Daemon, Skipped, installed, run  # noqa: E402

# The BLAKE3 of "secret", as b3sum prints it: the token of a test. A real one is random.
SECRET = "5fbf08af2b116ab8f7f3c14b8ec01a46ce23d290e2ebc7a752d0982d54c054f2"
VERSIONS = {"redis": "8.1.0", "langchain-community": "0.4.2", "litellm": "1.110.2"}

LANGCHAIN = r"""
import sys, warnings
warnings.simplefilter("ignore")
import langchain_community
from langchain_community.storage import RedisStore
from langchain_community.utilities.redis import get_client
from importlib.metadata import version
print(version("langchain-community"))
tell = lambda what, right: print(what, bool(right), sep="\t")
url = f"redis://127.0.0.1:{sys.argv[1]}"
store = RedisStore(redis_url=url, namespace="docs")
store.mset([("a", b"\x00one"), ("b", b"two"), ("c", b"three")])
tell("mset and mget give bytes", store.mget(["a", "none", "c"]) == [b"\x00one", None, b"three"])
tell("yield_keys is all of the namespace", sorted(store.yield_keys()) == ["a", "b", "c"])
tell("yield_keys with a prefix", sorted(store.yield_keys(prefix="b*")) == ["b"])
other = RedisStore(client=get_client(url), namespace="other")
tell("another namespace is apart", other.mget(["a"]) == [None] and not list(other.yield_keys()))
store.mdelete(["a", "b"])
tell("mdelete", store.mget(["a", "b", "c"]) == [None, None, b"three"])
timed = RedisStore(redis_url=url, namespace="timed", ttl=100)
timed.mset([("k", b"v")])
tell("ttl", timed.mget(["k"]) == [b"v"] and 0 < timed.client.ttl("timed/k") <= 100)
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_core.embeddings import Embeddings
class Counted(Embeddings):
    asked = 0
    def embed_documents(self, texts):
        Counted.asked += len(texts)
        return [[float(len(text))] for text in texts]
    def embed_query(self, text):
        return self.embed_documents([text])[0]
cached = CacheBackedEmbeddings.from_bytes_store(Counted(), RedisStore(redis_url=url, namespace="vectors"), namespace="m", key_encoder="sha256")
first, second = cached.embed_documents(["one", "three"]), cached.embed_documents(["three", "one", "fifteen"])
tell("CacheBackedEmbeddings asks once for each text", (first, second, Counted.asked) == ([[3.0], [5.0]], [[5.0], [3.0], [7.0]], 3))
"""

LITELLM = r"""
import asyncio, os, sys, warnings
# Prices are not asked for over the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
warnings.simplefilter("ignore")
import litellm
from importlib.metadata import version
from litellm.caching.caching import Cache
from litellm.caching.redis_cache import RedisCache
print(version("litellm"))
tell = lambda what, right: print(what, bool(right), sep="\t")
port = int(sys.argv[1])
cache = RedisCache(host="127.0.0.1", port=port)
cache.set_cache("k", {"a": [1, "x"]}, ttl=100)
tell("set_cache and get_cache", cache.get_cache("k") == {"a": [1, "x"]} and cache.get_cache("none") is None)
tell("the ttl", 0 < cache.redis_client.ttl("k") <= 100)
tell("batch_get_cache", cache.batch_get_cache(["k", "none"]) == {"k": {"a": [1, "x"]}, "none": None})
tell("increment_cache", (cache.increment_cache("n", 2), cache.increment_cache("n", 3)) == (2, 5))
cache.delete_cache("k")
tell("delete_cache", cache.get_cache("k") is None)
async def asynchronous():
    cache = RedisCache(host="127.0.0.1", port=port)
    await cache.async_set_cache("ak", [1, 2], ttl=60)
    await cache.async_set_cache_pipeline([("p1", "one"), ("p2", "two")], ttl=60)
    found = await cache.async_batch_get_cache(["p1", "p2", "none"])
    tell("async: set, pipeline, batch get", await cache.async_get_cache("ak") == [1, 2] and found == {"p1": "one", "p2": "two", "none": None})
    tell("async: increment", float(await cache.async_increment("af", 1.5)) == 1.5 and float(await cache.async_increment("af", 1.0)) == 2.5)
    tell("async: ping", await cache.ping())
asyncio.run(asynchronous())
litellm.cache = Cache(type="redis", host="127.0.0.1", port=str(port))
def ask(question, answer):
    reply = litellm.completion(model="gpt-4o-mini", messages=[{"role": "user", "content": question}], mock_response=answer, caching=True)
    return reply.choices[0].message.content
import time
first = ask("why?", "because")
until = time.monotonic() + 20
while not any(b"because" in (cache.redis_client.get(key) or b"") for key in cache.redis_client.scan_iter("*")) and time.monotonic() < until:
    time.sleep(0.05)
tell("completion: the same question gets the cached answer", (first, ask("why?", "another")) == ("because", "because"))
tell("completion: another question does not", ask("how?", "another") == "another")
"""

TLS = r"""
import sys, redis
print(redis.__version__)
tell = lambda what, right: print(what, bool(right), sep="\t")
address = dict(host="localhost", port=int(sys.argv[1]), socket_timeout=60)
big = bytes(range(256)) * 32768
for protocol in (2, 3):
    r = redis.Redis(**address, protocol=protocol, ssl=True, ssl_ca_certs="cert.pem", password="secret")
    tell(f"a value of 8 MiB (RESP{protocol})", r.set("big", big) and r.get("big") == big)
    pipe = r.pipeline(transaction=False)
    for number in range(1000):
        pipe.set(f"p:{number}", number)
        pipe.get(f"p:{number}")
    tell(f"a pipeline of 2,000 (RESP{protocol})", pipe.execute()[1::2] == [str(number).encode() for number in range(1000)])
    tell(f"XREAD BLOCK runs out (RESP{protocol})", not r.xread({"none": "$"}, block=50) and r.ping())
try:
    redis.Redis(**address, ssl=True, password="secret").ping()
    tell("an unknown certificate is refused by the client", False)
except redis.ConnectionError as error:
    tell("an unknown certificate is refused by the client", "CERTIFICATE_VERIFY_FAILED" in str(error))
try:
    redis.Redis(**address, password="secret").ping()
    tell("a client without TLS is told", False)
except redis.RedisError as error:
    tell("a client without TLS is told", "this port requires TLS" in str(error))
"""


def python(daemon, folder, packages, program):
    installed([sys.executable, "-m", "venv", "venv"], folder)
    pip = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--retries=1", "--disable-pip-version-check"]
    installed([*pip, *(f"{name}=={VERSIONS[name]}" if name in VERSIONS else name for name in packages)], folder)
    (folder / "doings.py").write_text(program)
    yield from redis_clients.told(daemon, folder, [folder / "venv/bin/python", "doings.py"])


def langchain(daemon, folder):
    yield from python(daemon, folder, ["redis", "langchain-community"], LANGCHAIN)


def litellm(daemon, folder):
    # litellm imports the last three when its cache answers, and does not require them.
    yield from python(daemon, folder, ["redis", "litellm", "fastapi", "orjson", "soundfile"], LITELLM)


class TlsDaemon(Daemon):
    """Requires TLS on both ports, and a token of the configuration file."""

    def __init__(self, folder):
        if shutil.which("openssl") is None:
            raise Skipped("openssl is not installed")
        name = "/CN=localhost"
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
        code, out, err = run(["openssl", "req", "-x509", *key, "-out", "cert.pem", "-days", "2", "-subj", name, *names], cwd=folder)
        if code:
            raise Skipped(err[-200:])
        (folder / "annals.toml").write_text(
            f'tls_cert = "{folder}/cert.pem"\ntls_key = "{folder}/key.pem"\nhttp = "127.0.0.1:0"\n'
            '[[tokens]]\nname = "test"\nblake3 = "HASH"\n'.replace("HASH", SECRET)
        )
        self.config = folder / "annals.toml"
        super().__init__(folder)

    def options(self):
        return ["--config", self.config]


def tls(daemon, folder):
    yield from python(daemon, folder, ["redis"], TLS)
    said = run(["openssl", "s_client", "-connect", f"127.0.0.1:{daemon.port}", "-CAfile", "cert.pem", "-brief", "-no_ign_eof"], cwd=folder, input="")
    yield "openssl s_client verifies the certificate", "Verification: OK" in said[1] + said[2], said[1] + said[2]
    if shutil.which("curl") is None:
        print("SKIPPED: curl is not installed")
        return
    url = f"https://127.0.0.1:{daemon.http}/v1/runs"
    said = run(["curl", "--silent", "--show-error", "--cacert", "cert.pem", "-H", "Authorization: Bearer secret", "--json", '{"name":"r"}', url], cwd=folder)
    yield "curl begins a run over HTTPS", '"name":"r"' in said[1], said[1] + said[2]
    said = run(["curl", "--silent", url.replace("https", "http")], cwd=folder)
    yield "curl without TLS is told", "this port requires TLS" in said[1], said[1] + said[2]


CLIENTS = {"langchain": (Daemon, langchain), "litellm": (Daemon, litellm), "tls": (TlsDaemon, tls)}


def main():
    chosen = sys.argv[1:] or list(CLIENTS)
    if not set(chosen) <= set(CLIENTS):
        sys.exit(__doc__)
    failed = 0
    print("| client | does | |\n|---|---|---|")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            daemon = None
            try:
                start, doings = CLIENTS[name]
                daemon = start(pathlib.Path(folder))
                doings = doings(daemon, pathlib.Path(folder))
                client = f"{name} {next(doings)}"
                for doing, right, seen in doings:
                    print(f"| {client} | {doing} | {'ok' if right else 'FAILED'} |", flush=True)
                    if not right:
                        failed += 1
                        print(seen[-2000:])
            except Skipped as why:
                print(f"SKIPPED: {name}: {why}")
            finally:
                if daemon is not None:
                    daemon.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
