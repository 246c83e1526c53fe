"""Section 2, about queues: 2.1 to 2.6, and 2.14 to 2.18. And what holds for every action."""

from __future__ import annotations

from support.errors import NO_SUCH_QUEUE
from support.row import Refused, Row, containing, missing, parameter, value

ACCOUNT = "123456789012"
ARN = "arn:aws:sqs:us-east-1:000000000000:"

# A request that each action understands.
WHOLE = {
    "AddPermission": {
        "QueueUrl": "$queue",
        "Label": "l",
        "AWSAccountIds": [ACCOUNT],
        "Actions": ["SendMessage"],
    },
    "CancelMessageMoveTask": {"TaskHandle": "t"},
    "ChangeMessageVisibility": {"QueueUrl": "$queue", "ReceiptHandle": "r", "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {
        "QueueUrl": "$queue",
        "Entries": [{"Id": "1", "ReceiptHandle": "r", "VisibilityTimeout": 1}],
    },
    "CreateQueue": {"QueueName": "$unique"},
    "DeleteMessage": {"QueueUrl": "$queue", "ReceiptHandle": "r"},
    "DeleteMessageBatch": {"QueueUrl": "$queue", "Entries": [{"Id": "1", "ReceiptHandle": "r"}]},
    "DeleteQueue": {"QueueUrl": "$queue"},
    "GetQueueAttributes": {"QueueUrl": "$queue"},
    "GetQueueUrl": {"QueueName": "$unique"},
    "ListDeadLetterSourceQueues": {"QueueUrl": "$queue"},
    "ListMessageMoveTasks": {"SourceArn": "$arn"},
    "ListQueueTags": {"QueueUrl": "$queue"},
    "PurgeQueue": {"QueueUrl": "$queue"},
    "ReceiveMessage": {"QueueUrl": "$queue"},
    "RemovePermission": {"QueueUrl": "$queue", "Label": "l"},
    "SendMessage": {"QueueUrl": "$queue", "MessageBody": "b"},
    "SendMessageBatch": {"QueueUrl": "$queue", "Entries": [{"Id": "1", "MessageBody": "b"}]},
    "SetQueueAttributes": {"QueueUrl": "$queue", "Attributes": {"DelaySeconds": "0"}},
    "StartMessageMoveTask": {"SourceArn": "$arn"},
    "TagQueue": {"QueueUrl": "$queue", "Tags": {"k": "v"}},
    "UntagQueue": {"QueueUrl": "$queue", "TagKeys": ["k"]},
}


def required() -> list[Row]:
    """What must be there and is not. A batch without entries has an error of its own."""
    rows = []
    for action, arguments in WHOLE.items():
        for name in arguments:
            if name != "Entries":
                rest = {key: given for key, given in arguments.items() if key != name}
                rows.append(Row(f"2-missing-{action}-{name}", action, rest, missing(name)))
    return rows


def unknown_queues() -> list[Row]:
    rows = [
        Row(f"2-no-queue-{action}", action, {**arguments, "QueueUrl": "$nowhere"}, Refused(NO_SUCH_QUEUE))
        for action, arguments in WHOLE.items()
        if "QueueUrl" in arguments
    ]
    order = [
        Row(
            "2-order-members-before-queue",
            "SendMessage",
            {"QueueUrl": "$nowhere"},
            missing("MessageBody"),
        ),
        Row(
            "2-order-queue-before-ranges",
            "SendMessage",
            {"QueueUrl": "$nowhere", "MessageBody": "b", "DelaySeconds": 901},
            Refused(NO_SUCH_QUEUE),
        ),
        Row(
            "2-order-queue-before-ranges-receive",
            "ReceiveMessage",
            {"QueueUrl": "$nowhere", "MaxNumberOfMessages": 11},
            Refused(NO_SUCH_QUEUE),
        ),
        Row(
            "2-order-queue-before-names",
            "GetQueueAttributes",
            {"QueueUrl": "$nowhere", "AttributeNames": ["Nothing"]},
            Refused(NO_SUCH_QUEUE),
        ),
        Row(
            "2-order-ranges-before-receipt",
            "ChangeMessageVisibility",
            {"QueueUrl": "$queue", "ReceiptHandle": "r", "VisibilityTimeout": 43201},
            value(
                43201, "VisibilityTimeout", "VisibilityTimeout must be an integer between 0 and 43200."
            ),
        ),
    ]
    return rows + order


BAD_NAME = containing("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
FIFO = {"FifoQueue": "true"}


def creations() -> list[Row]:
    def create(name: str, queue: str, expected: Refused | None = None, **attributes: str) -> Row:
        arguments = {"QueueName": queue, **({"Attributes": attributes} if attributes else {})}
        return Row(f"2.1-{name}", "CreateQueue", arguments, expected)

    def unknown(name: str) -> Refused:
        return Refused("InvalidAttributeName", f"Unknown Attribute {name}.")

    bad = Refused("InvalidParameterValue", BAD_NAME)
    # `$unique` is 23 characters long.
    rows = [
        create("name", "$unique"),
        create("name-all-characters", "$unique_AZaz09-"),
        create("name-80", "$unique" + "a" * 57),
        create("name-81", "$unique" + "a" * 58, bad),
        create("name-empty", "", bad),
        create("name-dot", "$unique.b", bad),
        create("name-space", "$unique b", bad),
        create("name-accent", "$uniqueé", bad),
        create("name-slash", "$unique/b", bad),
        create("fifo", "$unique.fifo", **FIFO),
        create("fifo-true-in-any-case", "$unique.fifo", FifoQueue="True"),
        create("fifo-name-80", "$unique" + "a" * 52 + ".fifo", **FIFO),
        create("fifo-name-81", "$unique" + "a" * 53 + ".fifo", parameter(), **FIFO),
        create("fifo-suffix-alone", "$unique.fifo", parameter()),
        create("fifo-attribute-alone", "$unique", parameter(), **FIFO),
        create("fifo-nothing-but-suffix", ".fifo", parameter(), **FIFO),
        create("fifo-false", "$unique", unknown("FifoQueue"), FifoQueue="false"),
        create("fifo-false-with-suffix", "$unique.fifo", unknown("FifoQueue"), FifoQueue="false"),
        create(
            "content-based-on-standard",
            "$unique",
            unknown("ContentBasedDeduplication"),
            ContentBasedDeduplication="true",
        ),
        create("unknown-attribute", "$unique", unknown("Nothing"), Nothing="1"),
        create(
            "range", "$unique", Refused("InvalidAttributeValue", containing("VisibilityTimeout")),
            VisibilityTimeout="43201",
        ),
    ]
    for name, given in (("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")):
        text = f"You can specify the {name} only when FifoQueue is set to true."
        rows.append(
            create(f"{name}-on-standard", "$unique", Refused("InvalidAttributeName", text), **{name: given})
        )
    for name in READ_ONLY:
        rows.append(create(f"read-only-{name}", "$unique", Refused("InvalidAttributeName"), **{name: "1"}))
    return rows


READ_ONLY = [
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
]


def lists() -> list[Row]:
    unknown = Refused("InvalidAttributeName", "Unknown Attribute Nothing.")
    rows = [
        Row("2.2-unknown", "GetQueueUrl", {"QueueName": "$unique"}, Refused(NO_SUCH_QUEUE)),
        Row("2.3-max-1", "ListQueues", {"MaxResults": 1}),
        Row("2.3-max-1000", "ListQueues", {"MaxResults": 1000}),
        Row("2.3-bad-token", "ListQueues", {"MaxResults": 1, "NextToken": "?"}, parameter()),
        Row(
            "2.5-unknown",
            "GetQueueAttributes",
            {"QueueUrl": "$queue", "AttributeNames": ["Nothing"]},
            unknown,
        ),
        Row(
            "2.5-unknown-beside-all",
            "GetQueueAttributes",
            {"QueueUrl": "$queue", "AttributeNames": ["All", "Nothing"]},
            unknown,
        ),
        Row(
            "2.5-case",
            "GetQueueAttributes",
            {"QueueUrl": "$queue", "AttributeNames": ["queuearn"]},
            Refused("InvalidAttributeName", "Unknown Attribute queuearn."),
        ),
        Row("2.15-max-1000", "ListDeadLetterSourceQueues", {"QueueUrl": "$queue", "MaxResults": 1000}),
    ]
    for wrong in (0, 1001, -1):
        rows.append(Row(f"2.3-max-{wrong}", "ListQueues", {"MaxResults": wrong}, value(wrong, "MaxResults")))
        arguments = {"QueueUrl": "$queue", "MaxResults": wrong}
        rows.append(
            Row(f"2.15-max-{wrong}", "ListDeadLetterSourceQueues", arguments, value(wrong, "MaxResults"))
        )
    return rows


def changes() -> list[Row]:
    def change(name: str, queue: str, expected: Refused | None = None, **attributes: str) -> Row:
        arguments = {"QueueUrl": "$queue", "Attributes": attributes}
        return Row(f"2.6-{name}", "SetQueueAttributes", arguments, expected, queue)

    def unknown(name: str) -> Refused:
        return Refused("InvalidAttributeName", f"Unknown Attribute {name}.")

    two = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
    rows = [
        change("unknown", "standard", unknown("Nothing"), Nothing="1"),
        change("fifo-true-on-fifo", "fifo", FifoQueue="true"),
        change(
            "fifo-false-on-fifo",
            "fifo",
            Refused(
                "InvalidAttributeValue",
                "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
            ),
            FifoQueue="false",
        ),
        change("fifo-true-on-standard", "standard", Refused("InvalidAttributeName"), FifoQueue="true"),
        change("fifo-false-on-standard", "standard", Refused("InvalidAttributeName"), FifoQueue="false"),
        change(
            "both-encryptions",
            "standard",
            Refused("InvalidAttributeName", two),
            KmsMasterKeyId="k",
            SqsManagedSseEnabled="true",
        ),
    ]
    return rows + [change(f"read-only-{name}", "standard", unknown(name), **{name: "1"}) for name in READ_ONLY]


def tags() -> list[Row]:
    def tag(name: str, given: dict[str, str], expected: Refused | None = None) -> Row:
        return Row(f"2.16-{name}", "TagQueue", {"QueueUrl": "$queue", "Tags": given}, expected)

    def create(name: str, given: dict[str, str], expected: Refused | None = None) -> Row:
        return Row(f"2.16-create-{name}", "CreateQueue", {"QueueName": "$unique", "tags": given}, expected)

    allowed = "Ünï 0_.:/=+-@"
    return [
        tag("tags-empty", {}, missing("Tags")),
        tag("key-128", {"k" * 128: "v"}),
        tag("key-129", {"k" * 129: "v"}, parameter()),
        tag("key-empty", {"": "v"}, parameter()),
        tag("key-of-aws", {"aws:k": "v"}, parameter()),
        tag("key-characters", {allowed: "v"}),
        tag("key-other-characters", {"a#": "v"}, parameter()),
        tag("value-empty", {"k": ""}),
        tag("value-256", {"k": "v" * 256}),
        tag("value-257", {"k": "v" * 257}, parameter()),
        tag("value-characters", {"k": allowed}),
        tag("51", {str(n): "v" for n in range(51)}, parameter()),
        create("50", {str(n): "v" for n in range(50)}),
        create("51", {str(n): "v" for n in range(51)}, parameter()),
        create("key-of-aws", {"aws:k": "v"}, parameter()),
        Row("2.16-keys-empty", "UntagQueue", {"QueueUrl": "$queue", "TagKeys": []}, parameter()),
        Row("2.16-key-missing", "UntagQueue", {"QueueUrl": "$queue", "TagKeys": ["nothing"]}),
    ]


def permissions() -> list[Row]:
    def add(
        name: str,
        expected: Refused | None = None,
        label: str = "$unique",
        accounts: tuple[str, ...] = (ACCOUNT,),
        actions: tuple[str, ...] = ("SendMessage",),
    ) -> Row:
        arguments = {
            "QueueUrl": "$queue",
            "Label": label,
            "AWSAccountIds": list(accounts),
            "Actions": list(actions),
        }
        return Row(f"2.17-{name}", "AddPermission", arguments, expected)

    def action(name: str, reason: str) -> Refused:
        return value(f"SQS:{name}", "ActionName", reason)

    owner = "Only the queue owner is allowed to invoke this action."
    wsdl = "Please refer to the appropriate WSDL for a list of valid actions."
    seven = (
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
    )
    return [
        add("one-of-each"),
        add("every-action", actions=("*",)),
        add("label-80", label="$unique" + "l" * 57),
        add("label-81", parameter(), label="$unique" + "l" * 58),
        add("label-empty", parameter(), label=""),
        add("label-space", parameter(), label="a b"),
        add("actions-7", actions=seven),
        add(
            "actions-8",
            Refused("OverLimit", "8 Actions were found, maximum allowed is 7."),
            actions=(*seven, "PurgeQueue"),
        ),
        add("action-unknown", action("Nothing", wsdl), actions=("Nothing",)),
        add("action-of-owner", action("RemovePermission", owner), actions=("RemovePermission",)),
        add("action-of-owner-add", action("AddPermission", owner), actions=("AddPermission",)),
        add("actions-empty", missing("Actions"), actions=()),
        add("accounts-empty", value("[]", "PrincipalId", "Unable to verify."), accounts=()),
        Row(
            "2.17-remove-missing",
            "RemovePermission",
            {"QueueUrl": "$queue", "Label": "nothing"},
            value("nothing", "Label", "can't find label."),
        ),
    ]


def moves() -> list[Row]:
    def none(name: str) -> Refused:
        text = f"The resource that you specified for the {name} parameter doesn't exist."
        return Refused("ResourceNotFoundException", text)

    def start(name: str, expected: Refused | None, **arguments: object) -> Row:
        return Row(f"2.18-start-{name}", "StartMessageMoveTask", arguments, expected)

    handle = parameter("Value for parameter TaskHandle is invalid.")
    rows = [
        start("no-arn", parameter(), SourceArn="nothing"),
        start("destination-no-arn", parameter(), SourceArn="$dead", DestinationArn="nothing"),
        start("source-missing", none("SourceArn"), SourceArn="$arn-nothing"),
        start(
            "source-no-dead-letter-queue",
            parameter("Source queue must be configured as a Dead Letter Queue."),
            SourceArn="$arn",
        ),
        Row("2.18-list-no-arn", "ListMessageMoveTasks", {"SourceArn": "nothing"}, parameter()),
        Row("2.18-list-source-missing", "ListMessageMoveTasks", {"SourceArn": "$arn-nothing"}, none("SourceArn")),
        Row("2.18-list-max-10", "ListMessageMoveTasks", {"SourceArn": "$arn", "MaxResults": 10}),
        # `?`, then `hello`, then `{}`, in base64.
        Row("2.18-cancel-not-base64", "CancelMessageMoveTask", {"TaskHandle": "?"}, handle),
        Row("2.18-cancel-not-json", "CancelMessageMoveTask", {"TaskHandle": "aGVsbG8="}, handle),
        Row("2.18-cancel-other-json", "CancelMessageMoveTask", {"TaskHandle": "e30="}, handle),
    ]
    for wrong in (0, 501):
        name = "MaxNumberOfMessagesPerSecond"
        rows.append(start(f"rate-{wrong}", value(wrong, name), SourceArn="$dead", MaxNumberOfMessagesPerSecond=wrong))
    for wrong in (0, 11):
        arguments = {"SourceArn": "$arn", "MaxResults": wrong}
        rows.append(
            Row(f"2.18-list-max-{wrong}", "ListMessageMoveTasks", arguments, value(wrong, "MaxResults"))
        )
    return rows


ROWS = [
    *required(),
    *unknown_queues(),
    *creations(),
    *lists(),
    *changes(),
    *tags(),
    *permissions(),
    *moves(),
]
