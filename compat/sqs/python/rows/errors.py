"""Section 1.4: each error, with a request that brings it about."""

from __future__ import annotations

from support.errors import KINDS, PREFIX

# The row of section 2 or 3 whose request is refused with this error.
BY_ROW = {
    PREFIX + "NonExistentQueue": "2-no-queue-SendMessage",
    "OverLimit": "2.17-actions-8",
    PREFIX + "EmptyBatchRequest": "2.8-empty",
    PREFIX + "TooManyEntriesInBatchRequest": "2.8-eleven",
    PREFIX + "BatchEntryIdsNotDistinct": "2.8-id-twice",
    PREFIX + "InvalidBatchEntryId": "2.8-id-dot",
    PREFIX + "BatchRequestTooLong": "2.8-size-over",
    PREFIX + "UnsupportedOperation": "2.7-attribute-string-list",
    "ResourceNotFoundException": "2.18-start-source-missing",
    "InvalidAttributeName": "2.6-unknown",
    "InvalidAttributeValue": "2.6-fifo-false-on-fifo",
    "InvalidMessageContents": "2.7-body-0",
    "ReceiptHandleIsInvalid": "2.10-malformed",
    "InvalidParameterValue": "2.7-delay-901",
    "MissingParameter": "2.7-body-empty",
}

# The others that a client can bring about take more than one request, or a server of another kind: see stories.py.

# What no client can bring about.
UNREACHABLE = {
    "MessageNotInflight": "rarely seen: a receipt is invalid, expired or current before it is this",
    "ExpiredToken": "needs a session token that has come of age",
    "InternalFailure": "needs a server that fails",
    "ServiceUnavailable": "needs a server that is stopping",
    "Kms*": "needs a key service",
}

assert all(code in KINDS for code in BY_ROW)
