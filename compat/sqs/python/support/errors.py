"""The errors of SQS: the shape by which JSON clients choose a class, the code of Query, and the status."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "AWS.SimpleQueueService."


@dataclass(frozen=True)
class Kind:
    shape: str
    code: str
    status: int


KINDS = {
    kind.code: kind
    for kind in [
        Kind("QueueDoesNotExist", PREFIX + "NonExistentQueue", 400),
        Kind("QueueNameExists", "QueueAlreadyExists", 400),
        Kind("QueueDeletedRecently", PREFIX + "QueueDeletedRecently", 400),
        Kind("PurgeQueueInProgress", PREFIX + "PurgeQueueInProgress", 403),
        Kind("OverLimit", "OverLimit", 403),
        Kind("EmptyBatchRequest", PREFIX + "EmptyBatchRequest", 400),
        Kind("TooManyEntriesInBatchRequest", PREFIX + "TooManyEntriesInBatchRequest", 400),
        Kind("BatchEntryIdsNotDistinct", PREFIX + "BatchEntryIdsNotDistinct", 400),
        Kind("InvalidBatchEntryId", PREFIX + "InvalidBatchEntryId", 400),
        Kind("BatchRequestTooLong", PREFIX + "BatchRequestTooLong", 400),
        Kind("MessageNotInflight", PREFIX + "MessageNotInflight", 400),
        Kind("UnsupportedOperation", PREFIX + "UnsupportedOperation", 400),
        Kind("ResourceNotFoundException", "ResourceNotFoundException", 404),
        Kind("InvalidAttributeName", "InvalidAttributeName", 400),
        Kind("InvalidAttributeValue", "InvalidAttributeValue", 400),
        Kind("InvalidMessageContents", "InvalidMessageContents", 400),
        Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 400),
        # The framework around the service names these two with a suffix, which the code lacks.
        Kind("InvalidParameterValueException", "InvalidParameterValue", 400),
        Kind("MissingRequiredParameterException", "MissingParameter", 400),
        Kind("UnrecognizedClientException", "InvalidClientTokenId", 403),
        Kind("SignatureDoesNotMatch", "SignatureDoesNotMatch", 403),
        Kind("MissingAuthenticationToken", "MissingAuthenticationToken", 403),
        Kind("ExpiredToken", "ExpiredToken", 403),
        Kind("AccessDeniedException", "AccessDenied", 403),
        Kind("IncompleteSignature", "IncompleteSignature", 400),
        Kind("InternalFailure", "InternalFailure", 500),
        Kind("ServiceUnavailable", "ServiceUnavailable", 503),
    ]
}

# Both names are in use for these.
OTHER_SHAPES = {
    "InvalidClientTokenId": {"UnrecognizedClientException", "InvalidClientTokenId"},
    "AccessDenied": {"AccessDeniedException", "AccessDenied"},
    "InternalFailure": {"InternalFailure", "InternalError"},
}


def shapes(code: str) -> set[str]:
    return OTHER_SHAPES.get(code, {KINDS[code].shape})


NO_SUCH_QUEUE = PREFIX + "NonExistentQueue"
# The one text that depends on the protocol.
NO_SUCH_QUEUE_JSON = "The specified queue does not exist."
NO_SUCH_QUEUE_QUERY = "The specified queue does not exist for this wsdl version."
