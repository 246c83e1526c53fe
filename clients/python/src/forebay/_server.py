"""What both clients know of the server: its address, how a reply becomes a result, and when to send again."""

from __future__ import annotations

import json
import os
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from . import errors
from ._calls import Call

T = TypeVar("T")

DEFAULT = "http://127.0.0.1:7070"
PORT = 7070
#: Beside the time that a call may take on purpose.
REPLY_WITHIN = 30.0
CONNECT_WITHIN = 5.0
#: A server closes a connection after 75 idle seconds; a client that stops using it earlier meets no closed one.
IDLE_MAX = 60.0
PAUSE_MIN, PAUSE_MAX = 0.05, 2.0


@dataclass(frozen=True)
class Address:
    """Where the server is, and what every request says of the client."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]

    @staticmethod
    def parse(server: str | None, token: str | None, tls: ssl.SSLContext | None) -> Address:
        text = server or os.environ.get("FOREBAY_SERVER") or DEFAULT
        url = urlsplit(text if "://" in text else f"http://{text}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"a server is HOST, HOST:PORT or a URL of http or https. value=`{text}`")
        if url.scheme == "https" and tls is None:
            tls = ssl.create_default_context()
        if url.scheme == "http" and tls is not None:
            raise ValueError(f"a TLS context needs a URL of https. value=`{text}`")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        headers = {
            "host": f"{host}:{url.port or PORT}",
            "content-type": "application/json",
            "user-agent": "forebay-python",
        }
        if secret := token or os.environ.get("FOREBAY_TOKEN"):
            headers["authorization"] = f"Bearer {secret}"
        return Address(url.hostname, url.port or PORT, url.path.rstrip("/"), tls, headers)

    def __str__(self) -> str:
        return self.headers["host"]


def result(call: Call[T], status: int, body: bytes) -> T:
    """What a reply means: the result of the call, or the problem that is raised."""
    try:
        document: Any = json.loads(body) if body else None
    except ValueError:
        document = None
    if 200 <= status < 300:
        return call.read(document)
    if not isinstance(document, dict):
        # No Forebay: perhaps a proxy between.
        document = {"detail": f"unexpected reply: {body[:200].decode(errors='replace')!r}"}
    raise errors.problem(status, document)


def pause_before_retry(call: Call[Any], error: errors.ForebayError, tries: int) -> float | None:
    """For how long to wait before the call is sent again; `None` if it must not be."""
    backoff = min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)
    if isinstance(error, errors.Problem):
        if error.retry == "later":
            return max(backoff, error.retry_after or 0.0)
        return backoff if error.retry == "same_id" and call.is_safe else None
    if isinstance(error, errors.ConnectionFailed):
        return backoff
    return backoff if isinstance(error, errors.OutcomeUnknown) and call.is_safe else None
