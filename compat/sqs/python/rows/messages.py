"""Section 2, about messages: 2.7 to 2.13."""

from __future__ import annotations

from typing import Any

from support.errors import PREFIX
from support.row import Entries, Refused, Row, containing, missing, parameter, value

NOT_FOR_TYPE = "The request include parameter that is not valid for this queue type."
NO_DEDUPLICATION = parameter(
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)
TOO_LONG = parameter("One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.")
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ9"
CONTENTS = Refused("InvalidMessageContents")
DELAY_RANGE = "DelaySeconds must be >= 0 and <= 900."
VISIBILITY_RANGE = "VisibilityTimeout must be an integer between 0 and 43200."


def send(name: str, expected: Refused | None = None, queue: str = "standard", **more: Any) -> Row:
    arguments = {"QueueUrl": "$queue", "MessageBody": "b", **more}
    return Row(f"2.7-{name}", "SendMessage", arguments, expected, queue)


def token(given: str, name: str) -> Refused:
    reason = f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length."
    return value(given, name, reason)


def text(given: str = "v", data_type: str = "String") -> dict[str, Any]:
    return {"DataType": data_type, "StringValue": given}


def sends() -> list[Row]:
    fits, long = "x" * 128, "x" * 129
    both = {"MessageGroupId": "g", "MessageDeduplicationId": "$unique"}
    rows = [
        send("body-empty", missing("MessageBody"), MessageBody=""),
        send("size-equal", queue="small", MessageBody="b" * 1024),
        send("size-over", TOO_LONG, "small", MessageBody="b" * 1025),
        send("size-in-bytes", TOO_LONG, "small", MessageBody="é" * 513),
        send("size-attributes-equal", None, "small", MessageBody="b" * 1014, MessageAttributes={"abc": text("v")}),
        send("size-attributes-over", TOO_LONG, "small", MessageBody="b" * 1014, MessageAttributes={"abc": text("vv")}),
        send(
            "size-without-system-attributes",
            None,
            "small",
            MessageBody="b" * 1024,
            MessageSystemAttributes={"AWSTraceHeader": text()},
        ),
        send("size-a-mebibyte", MessageBody="b" * 1_048_576),
        send("delay-0", DelaySeconds=0),
        send("delay-900", DelaySeconds=900),
        send("delay-901", value(901, "DelaySeconds", DELAY_RANGE), DelaySeconds=901),
        send("delay-negative", value(-1, "DelaySeconds", DELAY_RANGE), DelaySeconds=-1),
        send("delay-0-on-fifo", None, "fifo", DelaySeconds=0, **both),
        send("delay-on-fifo", value(5, "DelaySeconds", NOT_FOR_TYPE), "fifo", DelaySeconds=5, **both),
        send("group-missing-on-fifo", missing("MessageGroupId"), "fifo", MessageDeduplicationId="d"),
        send("deduplication-missing", NO_DEDUPLICATION, "fifo", MessageGroupId="g"),
        send("deduplication-by-content", None, "content", MessageGroupId="g"),
        send("deduplication-explicit", None, "fifo", **both),
        send("group-on-standard", MessageGroupId="g"),
        send("group-128", MessageGroupId=fits),
        send("group-punctuation", MessageGroupId=PUNCTUATION),
        send("deduplication-128", None, "fifo", MessageGroupId="g", MessageDeduplicationId=fits),
        send("deduplication-punctuation", None, "fifo", MessageGroupId="g", MessageDeduplicationId=PUNCTUATION),
        send(
            "deduplication-on-standard",
            Refused("InvalidParameterValue", containing(NOT_FOR_TYPE)),
            MessageDeduplicationId="d",
        ),
        send("group-empty-on-standard", token("", "MessageGroupId"), MessageGroupId=""),
    ]
    for name, wrong in (("129", long), ("space", "a b"), ("accent", "é"), ("newline", "a\n")):
        for queue in ("standard", "content"):
            row = send(f"group-{name}-on-{queue}", token(wrong, "MessageGroupId"), queue, MessageGroupId=wrong)
            rows.append(row)
        refused = token(wrong, "MessageDeduplicationId")
        rows.append(
            send(f"deduplication-{name}", refused, "fifo", MessageGroupId="g", MessageDeduplicationId=wrong)
        )
    for wrong in ("\0", "\b", "\v", "\f", "\x0e", "\x1f", "\ufffe", "\uffff"):
        rows.append(send(f"body-{ord(wrong):x}", CONTENTS, MessageBody=f"a{wrong}b"))
    for right in ("\t", "\n", "\r", " ", "\x7f", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff"):
        rows.append(send(f"body-{ord(right):x}", MessageBody=f"a{right}b"))
    return rows


def attributes() -> list[Row]:
    def attribute(name: str, expected: Refused | None, given: dict[str, Any], called: str = "a") -> Row:
        return send(f"attribute-{name}", expected, MessageAttributes={called: given})

    def empty(data_type: str) -> Refused:
        text = f"Message (user) attribute 'a' must contain a non-empty value of type '{data_type}'."
        return parameter(text)

    many = {f"a{n}": text() for n in range(11)}
    number = parameter("Can't cast the value of message (user) attribute 'a' to a number.")
    lists = Refused(PREFIX + "UnsupportedOperation")
    rows = [
        send("attributes-10", MessageAttributes={name: many[name] for name in list(many)[:10]}),
        send(
            "attributes-11",
            parameter("Number of message attributes [11] exceeds the allowed maximum [10]."),
            MessageAttributes=many,
        ),
        attribute("type-missing", parameter(), {"StringValue": "v"}),
        attribute("type-256", None, text(data_type="String." + "x" * 249)),
        attribute("type-257", parameter(), text(data_type="String." + "x" * 250)),
        attribute("empty-string", empty("String"), text("")),
        attribute("empty-number", empty("Number"), text("", "Number")),
        attribute("empty-label", empty("String.x"), text("", "String.x")),
        attribute("empty-binary", empty("Binary"), {"DataType": "Binary", "BinaryValue": b""}),
        attribute("control-character", parameter(), text("a\x01")),
        attribute("binary", None, {"DataType": "Binary", "BinaryValue": bytes(range(256))}),
        attribute("string-list", lists, {"DataType": "String", "StringListValues": ["v"]}),
        attribute("binary-list", lists, {"DataType": "Binary", "BinaryListValues": [b"v"]}),
        send("system-attribute", MessageSystemAttributes={"AWSTraceHeader": text()}),
        send("system-attribute-other", parameter(), MessageSystemAttributes={"SenderId": text()}),
        send(
            "system-attribute-binary",
            parameter(),
            MessageSystemAttributes={"AWSTraceHeader": {"DataType": "Binary", "BinaryValue": b"v"}},
        ),
    ]
    wrong_names = {
        "empty": "",
        "257": "a" * 257,
        "space": "a b",
        "dollar": "a$",
        "aws": "AWS.a",
        "aws-lower": "aws.a",
        "amazon": "Amazon.a",
        "amazon-upper": "AMAZON.a",
        "starts-with-dot": ".a",
        "ends-with-dot": "a.",
        "two-dots": "a..b",
    }
    rows += [attribute(f"name-{name}", parameter(), text(), called) for name, called in wrong_names.items()]
    right_names = {"256": "a" * 256, "all": "a-b_c.D9", "aws-without-dot": "AWSa", "accent": "Ünï"}
    rows += [attribute(f"name-{name}", None, text(), called) for name, called in right_names.items()]
    for wrong in ("string", "Text", "Binaryx", ".String"):
        rows.append(attribute(f"type-{wrong}", parameter(), text("1", wrong)))
    for right in ("String", "Number", "String.x", "Number.int.32"):
        rows.append(attribute(f"type-{right}", None, text("1", right)))
    rows.append(attribute("type-Binary.png", None, {"DataType": "Binary.png", "BinaryValue": b"v"}))
    for wrong in ("one", "1,5", "1.2.3", "-", "0x1", "NaN", "1e127", "1e-129", "9" * 39):
        rows.append(attribute(f"number-{wrong}", number, text(wrong, "Number")))
    for right in ("0", "-1.50", ".5", "1e125", "1E-128", "9" * 38):
        rows.append(attribute(f"number-{right}", None, text(right, "Number")))
    return rows


BAD_ID = Refused(
    PREFIX + "InvalidBatchEntryId",
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long.",
)


def whole_batches(section: str, action: str, entry: dict[str, Any]) -> list[Row]:
    """What is wrong with a batch, whatever its entries are."""

    def batch(name: str, expected: Refused | Entries, ids: list[str]) -> Row:
        entries = [{"Id": one, **entry} for one in ids]
        return Row(f"{section}-{name}", action, {"QueueUrl": "$queue", "Entries": entries}, expected)

    eleven = [str(n) for n in range(11)]
    empty = f"There should be at least one {action}RequestEntry in the request."
    many = Refused(
        PREFIX + "TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent 11."
    )
    return [
        batch("empty", Refused(PREFIX + "EmptyBatchRequest", empty), []),
        batch("eleven", many, eleven),
        batch("id-empty", BAD_ID, [""]),
        batch("id-81", BAD_ID, ["i" * 81]),
        batch("id-dot", BAD_ID, ["1", "a.b"]),
        batch("id-twice", Refused(PREFIX + "BatchEntryIdsNotDistinct", "Id a repeated."), ["a", "b", "a"]),
        batch("order-eleven-before-id", many, ["?", *eleven[1:]]),
        batch("order-id-before-twice", BAD_ID, ["a", "a", "?"]),
    ]


def send_batches() -> list[Row]:
    def batch(name: str, expected: Refused | Entries, queue: str, *entries: dict[str, Any]) -> Row:
        numbered = [{"Id": str(index), "MessageBody": "b", **entry} for index, entry in enumerate(entries, 1)]
        arguments = {"QueueUrl": "$queue", "Entries": numbered}
        return Row(f"2.8-{name}", "SendMessageBatch", arguments, expected, queue)

    half = "b" * 524_288
    too_long = Refused(
        PREFIX + "BatchRequestTooLong",
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
    )
    twice = Refused(PREFIX + "BatchEntryIdsNotDistinct", "Id 1 repeated.")
    own_size = parameter(
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    )
    first = {"MessageGroupId": "g", "MessageDeduplicationId": "$unique"}
    return [
        batch("ten", Entries({str(n): None for n in range(1, 11)}), "standard", *[{} for _ in range(10)]),
        batch("id-80", Entries({"i" * 80: None}), "standard", {"Id": "i" * 80}),
        batch("size-equal", Entries({"1": None, "2": None}), "standard", {"MessageBody": half}, {"MessageBody": half}),
        batch("size-over", too_long, "standard", {"MessageBody": half}, {"MessageBody": half + "b"}),
        # The fixed limit, whatever the queue takes.
        batch("size-over-on-small", too_long, "small", {"MessageBody": half}, {"MessageBody": half + "b"}),
        batch(
            "order-twice-before-size",
            twice,
            "standard",
            {"MessageBody": half},
            {"Id": "1", "MessageBody": half + "b"},
        ),
        batch(
            "group-missing",
            parameter("The request must contain the parameter MessageGroupId."),
            "fifo",
            first,
            {"MessageDeduplicationId": "$unique-2"},
        ),
        batch("deduplication-missing", NO_DEDUPLICATION, "fifo", first, {"MessageGroupId": "g"}),
        batch("entry-contents", Entries({"1": CONTENTS, "2": None}), "standard", {"MessageBody": "\x01"}, {}),
        batch("entry-all-fail", Entries({"1": CONTENTS}), "standard", {"MessageBody": "\x01"}),
        batch("entry-size", Entries({"1": None, "2": own_size}), "small", {}, {"MessageBody": "b" * 1025}),
        batch(
            "entry-delay",
            Entries({"1": value(901, "DelaySeconds", DELAY_RANGE), "2": None}),
            "standard",
            {"DelaySeconds": 901},
            {},
        ),
        batch(
            "entry-attribute",
            Entries({"1": parameter(), "2": None}),
            "standard",
            {"MessageAttributes": {"a b": text()}},
            {},
        ),
        batch(
            "entry-group",
            Entries({"1": token("a b", "MessageGroupId"), "2": None}),
            "standard",
            {"MessageGroupId": "a b"},
            {},
        ),
    ]


def receives() -> list[Row]:
    def receive(name: str, expected: Refused | None = None, queue: str = "standard", **more: Any) -> Row:
        # Nothing is held back from the other rows.
        arguments = {"QueueUrl": "$queue", "VisibilityTimeout": 0, **more}
        return Row(f"2.9-{name}", "ReceiveMessage", arguments, expected, queue)

    attempt = "ReceiveRequestAttemptId"
    how_many = "Must be between 1 and 10, if provided."
    how_long = "Must be >= 0 and <= 20, if provided."
    wrong_type = Refused("InvalidParameterValue", containing("not valid for this queue type"))
    rows = [
        receive("attempt-on-standard", wrong_type, **{attempt: "r"}),
        receive("attempt-128", None, "fifo", **{attempt: "r" * 128}),
        receive("attempt-129", parameter(), "fifo", **{attempt: "r" * 129}),
        receive("unknown-system-attribute", AttributeNames=["Nothing"]),
        receive("unknown-message-system-attribute", MessageSystemAttributeNames=["Nothing"]),
        receive("illegal-attribute-names", MessageAttributeNames=["AWS.", "a b", "a..b"]),
        receive("visibility-lowest"),
        receive("visibility-43200", None, "small", VisibilityTimeout=43200),
    ]
    for right in (1, 10):
        rows.append(receive(f"max-{right}", MaxNumberOfMessages=right))
    for wrong in (0, 11, -1):
        refused = value(wrong, "MaxNumberOfMessages", how_many)
        rows.append(receive(f"max-{wrong}", refused, MaxNumberOfMessages=wrong))
    for wrong in (-1, 21):
        rows.append(receive(f"wait-{wrong}", value(wrong, "WaitTimeSeconds", how_long), WaitTimeSeconds=wrong))
    for wrong in (-1, 43201):
        rows.append(receive(f"visibility-{wrong}", value(wrong, "VisibilityTimeout"), VisibilityTimeout=wrong))
    return rows


def receipts() -> list[Row]:
    invalid = Refused(
        "ReceiptHandleIsInvalid", 'The input receipt handle "nothing" is not a valid receipt handle.'
    )
    rows = [
        Row("2.10-malformed", "DeleteMessage", {"QueueUrl": "$queue", "ReceiptHandle": "nothing"}, invalid),
        Row(
            "2.10-malformed-on-fifo",
            "DeleteMessage",
            {"QueueUrl": "$queue", "ReceiptHandle": "nothing"},
            invalid,
            "fifo",
        ),
        Row(
            "2.11-entry-malformed",
            "DeleteMessageBatch",
            {"QueueUrl": "$queue", "Entries": [{"Id": "1", "ReceiptHandle": "nothing"}]},
            Entries({"1": Refused("ReceiptHandleIsInvalid")}),
        ),
        Row(
            "2.12-malformed",
            "ChangeMessageVisibility",
            {"QueueUrl": "$queue", "ReceiptHandle": "nothing", "VisibilityTimeout": 1},
            Refused("ReceiptHandleIsInvalid"),
        ),
        Row(
            "2.13-entries",
            "ChangeMessageVisibilityBatch",
            {
                "QueueUrl": "$queue",
                "Entries": [
                    {"Id": "1", "ReceiptHandle": "nothing", "VisibilityTimeout": 1},
                    {"Id": "2", "ReceiptHandle": "nothing", "VisibilityTimeout": 43201},
                ],
            },
            Entries(
                {
                    "1": Refused("ReceiptHandleIsInvalid"),
                    "2": value(43201, "VisibilityTimeout", VISIBILITY_RANGE),
                }
            ),
        ),
    ]
    for wrong in (-1, 43201):
        arguments = {"QueueUrl": "$queue", "ReceiptHandle": "nothing", "VisibilityTimeout": wrong}
        refused = value(wrong, "VisibilityTimeout", VISIBILITY_RANGE)
        rows.append(Row(f"2.12-range-{wrong}", "ChangeMessageVisibility", arguments, refused))
    return rows


ROWS = [
    *sends(),
    *attributes(),
    *whole_batches("2.8", "SendMessageBatch", {"MessageBody": "b"}),
    *send_batches(),
    *receives(),
    *receipts(),
    *whole_batches("2.11", "DeleteMessageBatch", {"ReceiptHandle": "r"}),
    *whole_batches("2.13", "ChangeMessageVisibilityBatch", {"ReceiptHandle": "r", "VisibilityTimeout": 1}),
]
