"""Section 3: every attribute of a queue, with its default, what it may be, and what it may not be."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from support.row import Refused, Row, containing, parameter


@dataclass(frozen=True)
class Attribute:
    name: str
    # What a fresh queue shows. None is nothing at all.
    default: str | None
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    fifo: bool = False
    # Beside the attribute, where it needs another one.
    along: dict[str, str] = field(default_factory=dict)


# Read-only ones are rows of 2.1 and 2.6 as well, where they are refused.
ATTRIBUTES = [
    Attribute("VisibilityTimeout", "30", ("0", "43200"), ("-1", "43201", "x")),
    Attribute("DelaySeconds", "0", ("0", "900"), ("-1", "901", "x")),
    Attribute("ReceiveMessageWaitTimeSeconds", "0", ("0", "20"), ("-1", "21", "x")),
    Attribute("MessageRetentionPeriod", "345600", ("60", "1209600"), ("59", "1209601", "x")),
    Attribute("MaximumMessageSize", "1048576", ("1024", "262144", "1048576"), ("1023", "1048577", "x")),
    Attribute("Policy", None, ('{"Version":"2012-10-17","Statement":[]}',), ("x",)),
    Attribute("FifoQueue", "true", ("true", "True"), ("false",), fifo=True),
    Attribute("ContentBasedDeduplication", "false", ("true", "FALSE"), ("x",), fifo=True),
    Attribute("DeduplicationScope", "queue", ("queue", "messageGroup"), ("x",), fifo=True),
    Attribute("FifoThroughputLimit", "perQueue", ("perQueue",), ("x", "perMessageGroupId"), fifo=True),
    Attribute(
        "FifoThroughputLimit",
        "perQueue",
        ("perMessageGroupId",),
        fifo=True,
        along={"DeduplicationScope": "messageGroup"},
    ),
    Attribute("KmsMasterKeyId", None, ("alias/anything",)),
    Attribute(
        "KmsDataKeyReusePeriodSeconds",
        None,
        ("60", "86400"),
        ("59", "86401", "x"),
        along={"KmsMasterKeyId": "alias/anything"},
    ),
    Attribute("SqsManagedSseEnabled", "true", ("true", "False"), ("x",)),
    Attribute("RedrivePolicy", None),
    Attribute("RedriveAllowPolicy", None),
    Attribute("FifoQueue", None),
    Attribute("ContentBasedDeduplication", None),
    Attribute("DeduplicationScope", None),
    Attribute("FifoThroughputLimit", None),
]

# What `All` gives on a fresh queue, exactly.
LISTED_STANDARD = {
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "DelaySeconds",
    "LastModifiedTimestamp",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "QueueArn",
    "ReceiveMessageWaitTimeSeconds",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
}
LISTED_FIFO = LISTED_STANDARD | {
    "ContentBasedDeduplication",
    "DeduplicationScope",
    "FifoQueue",
    "FifoThroughputLimit",
}


def set_row(name: str, attribute: str, given: str, expected: Refused | None, queue: str = "standard") -> Row:
    arguments = {"QueueUrl": "$queue", "Attributes": {attribute: given}}
    return Row(f"3-{attribute}-{name}", "SetQueueAttributes", arguments, expected, queue)


def redrive_policies() -> list[Row]:
    def redrive(name: str, policy: object, expected: Refused | None, queue: str = "standard") -> Row:
        return set_row(name, "RedrivePolicy", json.dumps(policy), expected, queue)

    def refused(reason: str) -> Refused:
        text = f" for parameter RedrivePolicy is invalid. Reason: {reason}"
        return Refused("InvalidParameterValue", containing(text))

    def count(given: object) -> Refused:
        reason = f"Invalid value for maxReceiveCount: {given}, valid values are from 1 to 1000 both inclusive."
        return refused(reason)

    def policy(count: object, target: str = "$dead") -> dict[str, object]:
        return {"deadLetterTargetArn": target, "maxReceiveCount": count}

    elsewhere = "arn:aws:sqs:eu-central-1:000000000000:nothing"
    return [
        redrive("count-1", policy(1), None),
        redrive("count-1000", policy(1000), None),
        redrive("count-as-text", policy("5"), None),
        redrive("count-absent", {"deadLetterTargetArn": "$dead"}, None),
        redrive("count-0", policy(0), count(0)),
        redrive("count-1001", policy(1001), count(1001)),
        redrive("count-text-1001", policy("1001"), count(1001)),
        redrive("count-no-number", policy("x"), count("x")),
        redrive("target-missing", policy(1, "$dead-nothing"), refused("Dead letter target does not exist.")),
        redrive("target-in-another-region", policy(1, elsewhere), parameter()),
        redrive("target-absent", {"maxReceiveCount": 1}, parameter()),
        redrive("target-no-arn", policy(1, "nothing"), parameter()),
        redrive("target-of-fifo-is-standard", policy(1), parameter(), "fifo"),
        redrive("target-of-standard-is-fifo", policy(1, "$deadfifo"), parameter()),
        redrive("fifo", policy(1, "$deadfifo"), None, "fifo"),
        redrive("target-is-the-queue", policy(1, "$arn"), None),
        redrive("no-object", [1], parameter()),
        set_row("cleared", "RedrivePolicy", "", None),
    ]


def redrive_allow_policies() -> list[Row]:
    def allow(name: str, policy: object, is_right: bool) -> Row:
        # Which of the two is not known for this attribute.
        wrong = Refused(("InvalidParameterValue", "InvalidAttributeValue"), containing("RedriveAllowPolicy"))
        return set_row(name, "RedriveAllowPolicy", json.dumps(policy), None if is_right else wrong)

    by_queue = {"redrivePermission": "byQueue"}
    return [
        allow("allowAll", {"redrivePermission": "allowAll"}, True),
        allow("denyAll", {"redrivePermission": "denyAll"}, True),
        allow("byQueue", {**by_queue, "sourceQueueArns": ["$arn"]}, True),
        allow("byQueue-10", {**by_queue, "sourceQueueArns": [f"$arn{n}" for n in range(10)]}, True),
        allow("byQueue-11", {**by_queue, "sourceQueueArns": [f"$arn{n}" for n in range(11)]}, False),
        allow("allowAll-with-sources", {"redrivePermission": "allowAll", "sourceQueueArns": ["$arn"]}, False),
        allow("denyAll-with-sources", {"redrivePermission": "denyAll", "sourceQueueArns": ["$arn"]}, False),
        allow("another-word", {"redrivePermission": "some"}, False),
        set_row("cleared", "RedriveAllowPolicy", "", None),
    ]


ROWS = [*redrive_policies(), *redrive_allow_policies()]
