"""Plain HTTP to the server: signed or not, and with whatever headers a test wants."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.message import Message

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

REGION = "us-east-1"
ACCESS_KEY = "test"
SECRET_KEY = "test"
TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Message
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def signed(
    method: str,
    url: str,
    headers: dict[str, str],
    body: bytes,
    key: str = ACCESS_KEY,
    secret: str = SECRET_KEY,
    region: str = REGION,
) -> dict[str, str]:
    """The headers, and those of a signature."""
    request = AWSRequest(method=method, url=url, data=body, headers=headers)
    SigV4Auth(Credentials(key, secret), "sqs", region).add_auth(request)
    return dict(request.headers.items())


def send(method: str, url: str, headers: dict[str, str], body: bytes = b"") -> Reply:
    request = urllib.request.Request(url, data=body if method == "POST" else None, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
            return Reply(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, error.headers, error.read())


def post(url: str, headers: dict[str, str], body: bytes, **credentials: str) -> Reply:
    return send("POST", url, signed("POST", url, headers, body, **credentials), body)


def get(url: str, headers: dict[str, str] | None = None) -> Reply:
    return send("GET", url, headers or {})
