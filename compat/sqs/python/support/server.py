"""The server under test, called through both protocols and compared."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

from support import errors, http, query

JSON_TYPE = "application/x-amz-json-1.0"
FORM_TYPE = "application/x-www-form-urlencoded; charset=utf-8"

Message = str | re.Pattern[str] | None


@dataclass(frozen=True)
class Outcome:
    """An answer, in one form for both protocols."""

    status: int
    result: dict[str, Any] = field(default_factory=dict)
    code: str | None = None
    message: str | None = None
    shape: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.code is None

    @property
    def said(self) -> str:
        return "ok" if self.is_ok else f"{self.status} {self.code}: {self.message}"


def client(endpoint: str, *, validates: bool = True, key: str = http.ACCESS_KEY, secret: str = http.SECRET_KEY) -> Any:
    """A client as an application has it; or one that lets wrong requests pass, so that the server refuses them."""
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name=http.REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(
            parameter_validation=validates,
            retries={"total_max_attempts": 1},
            max_pool_connections=20,
            read_timeout=40,
        ),
    )


class Server:
    def __init__(self, endpoint: str, key: str = http.ACCESS_KEY, secret: str = http.SECRET_KEY) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.client = client(endpoint, key=key, secret=secret)
        self.loose = client(endpoint, validates=False, key=key, secret=secret)
        self.key, self.secret = key, secret

    def json(self, action: str, **arguments: Any) -> Outcome:
        try:
            result = getattr(self.loose, botocore.xform_name(action))(**arguments)
        except ClientError as error:
            said = error.response["Error"]
            return Outcome(
                status=error.response["ResponseMetadata"]["HTTPStatusCode"],
                code=said["Code"],
                message=said.get("Message", ""),
                shape=said.get("QueryErrorCode", said["Code"]),
            )
        about = result.pop("ResponseMetadata")
        return Outcome(status=about["HTTPStatusCode"], result=result)

    def query(self, action: str, *, path: str = "/", **arguments: Any) -> Outcome:
        reply = self.form(query.encode(action, arguments), path)
        if reply.status == 200:
            return Outcome(status=200, result=query.parse_result(action, reply.text))
        said = query.parse_error(reply.text)
        return Outcome(status=reply.status, code=said["Code"], message=said["Message"])

    def form(self, body: bytes, path: str = "/", **headers: str) -> http.Reply:
        """A Query request as bytes."""
        return self._post(path, {"Content-Type": FORM_TYPE, **headers}, body)

    def raw(self, action: str, body: Any, path: str = "/", **headers: str) -> http.Reply:
        """A JSON request that no SDK made."""
        told = {"Content-Type": JSON_TYPE, "X-Amz-Target": f"AmazonSQS.{action}"}
        told.update({name.replace("_", "-"): value for name, value in headers.items()})
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._post(path, told, data)

    def _post(self, path: str, headers: dict[str, str], body: bytes) -> http.Reply:
        return http.post(self.endpoint + path, headers, body, key=self.key, secret=self.secret)

    def refuses(
        self, action: str, arguments: dict[str, Any], code: str | tuple[str, ...], message: Message = None
    ) -> None:
        """Both protocols refuse a request, and say the same about it."""
        by_json, by_query = self.json(action, **arguments), self.query(action, **arguments)
        codes = (code,) if isinstance(code, str) else code
        for protocol, outcome in (("JSON", by_json), ("Query", by_query)):
            assert outcome.code in codes, f"{protocol}: {outcome.said}"
            kind = errors.KINDS[outcome.code]
            assert outcome.status == kind.status, f"{protocol}: {outcome.said}"
            expected = message
            if outcome.code == errors.NO_SUCH_QUEUE:
                expected = errors.NO_SUCH_QUEUE_JSON if protocol == "JSON" else errors.NO_SUCH_QUEUE_QUERY
            check_message(outcome.message or "", expected, protocol)
        assert by_json.shape in errors.shapes(by_json.code or ""), by_json.shape
        if by_json.code != errors.NO_SUCH_QUEUE:
            assert by_json.said == by_query.said, "the protocols say different things"

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        return self.client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ["All"])).get(
            "Attributes", {}
        )

    def arn(self, url: str) -> str:
        return self.attributes(url, "QueueArn")["QueueArn"]

    def counts(self, url: str) -> tuple[int, int, int]:
        """Visible, not visible, delayed."""
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        found = self.attributes(url, *names)
        return tuple(int(found[name]) for name in names)  # type: ignore[return-value]


def check_message(said: str, expected: Message, protocol: str) -> None:
    if isinstance(expected, str):
        assert said == expected, protocol
    elif expected is not None:
        assert expected.search(said), f"{protocol}: {said!r} is not {expected.pattern!r}"


def unique(suffix: str = "") -> str:
    return f"compat-{uuid.uuid4().hex[:16]}{suffix}"
