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
#: The codes of OpenSSL for a certificate of which no known authority is the issuer.
UNKNOWN_ISSUER = (2, 18, 19, 20, 21)


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
            tls = _context(os.environ.get("FOREBAY_CA"))
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


def _context(ca: str | None) -> ssl.SSLContext:
    """Trusts the certificates of this file, or the authorities that the system trusts."""
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as error:  # Also a file without certificates.
        raise ValueError(f"FOREBAY_CA must name a file with certificates in PEM. value=`{ca}`") from error


def cannot_connect(at: Address, error: BaseException) -> errors.ConnectionFailed:
    """The error for a connection that could not be made."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return errors.ConnectionFailed(f"cannot reach {at}: {error}")
    advice = ""
    if error.verify_code in UNKNOWN_ISSUER:
        advice = ". FOREBAY_CA names a file with the certificates by which the server is recognised"
    why = error.verify_message.rstrip(".")
    return errors.CertificateRejected(f"cannot reach {at}: invalid certificate: {why}{advice}")


def result(at: Address, call: Call[T], status: int, body: bytes) -> T:
    """What a reply means: the result of the call, or the problem that is raised."""
    try:
        document: Any = json.loads(body) if body else None
        is_json = True
    except ValueError:
        document, is_json = None, False
    if 200 <= status < 300 and is_json:
        return call.read(document)
    if isinstance(document, dict) and "type" in document:
        raise errors.problem(status, document)
    shown = body[:200].decode(errors="replace").strip()
    if status >= 500 or status == 429:
        # Perhaps a proxy that does not reach the server.
        raise errors.problem(status, {"detail": f"unexpected reply of {at}: {shown!r}"})
    detail = (
        f"the server at {at} is not the HTTP API of Forebay, which is on port {PORT} unless `listen` says otherwise. "
        f"status=`{status}` answer=`{shown}`"
    )
    # Not `NotFound`, because that says that a stream or a group does not exist.
    raise errors.Problem(status, {"detail": detail})


def pause_before_retry(call: Call[Any], error: errors.ForebayError, tries: int) -> float | None:
    """For how long to wait before the call is sent again; `None` if it must not be."""
    backoff = min(PAUSE_MAX, PAUSE_MIN * 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0)
    if isinstance(error, errors.Problem):
        if error.retry == "later":
            return max(backoff, error.retry_after or 0.0)
        return backoff if error.retry == "same_id" and call.is_safe else None
    if isinstance(error, errors.CertificateRejected):
        return None
    if isinstance(error, errors.ConnectionFailed):
        return backoff
    return backoff if isinstance(error, errors.OutcomeUnknown) and call.is_safe else None
