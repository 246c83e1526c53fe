"""The digests that SQS gives out, computed apart from any SDK."""

from __future__ import annotations

import hashlib
from typing import Any

TEXT, BYTES = b"\x01", b"\x02"


def of_body(body: str) -> str:
    return hashlib.md5(body.encode()).hexdigest()


def of_attributes(attributes: dict[str, dict[str, Any]]) -> str:
    """Of message attributes as boto3 takes and gives them."""
    digest = hashlib.md5()
    for name in sorted(attributes):
        attribute = attributes[name]
        digest.update(_counted(name.encode()))
        digest.update(_counted(attribute["DataType"].encode()))
        if attribute["DataType"].startswith("Binary"):
            digest.update(BYTES + _counted(attribute["BinaryValue"]))
        else:
            digest.update(TEXT + _counted(attribute["StringValue"].encode()))
    return digest.hexdigest()


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
