"""The transports of HTTP clients, patched while a block is open. No client is imported that the program has not.

| client | where |
|---|---|
| httpx, httpx2 (the SDKs of OpenAI and Anthropic) | `handle_request` and `handle_async_request` of the transports |
| urllib3 (requests, botocore) | `HTTPConnectionPool._make_request`: one exchange for each try and redirect |
| aiohttp | a client middleware, nearest to the connection |

Not covered: `http.client` and `urllib.request` used directly, gRPC, WebSockets, pycurl. A recording names the
connections that Python opens besides, and a replay refuses them.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

_CLIENTS = {"httpx": "_httpx", "httpx2": "_httpx", "urllib3": "_urllib3", "aiohttp": "_aiohttp"}
_lock = threading.Lock()
_uses = 0
_installed: dict[str, list[tuple[Any, str, Any]]] = {}


def install() -> None:
    """Patches the clients that are imported, and those that will be."""
    global _uses
    with _lock:
        _uses += 1
        if _uses == 1:
            for client in _CLIENTS:
                if client in sys.modules:
                    _patch(client)
            sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Restores the clients when the last block ends."""
    global _uses
    from annals.lanes import restore

    with _lock:
        _uses -= 1
        if _uses == 0:
            sys.meta_path.remove(_FINDER)
            for originals in _installed.values():
                restore(originals)
            _installed.clear()


def _patch(client: str) -> None:
    if client in _installed:
        return
    hooks = importlib.import_module(f"annals.http_hooks.{_CLIENTS[client]}")
    _installed[client] = hooks.patch(sys.modules[client])


class _Finder:
    """Patches a client right after the program imports it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _CLIENTS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module: Any) -> None:
                    execute(module)
                    with _lock:
                        if _uses:
                            _patch(name)

                spec.loader.exec_module = exec_module
                return spec
        return None


_FINDER = _Finder()
