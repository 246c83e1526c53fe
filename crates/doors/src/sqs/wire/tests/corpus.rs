//! What botocore sends, in either protocol: version 1.44.0 for JSON and 1.31.80 for Query, from the same parameters.

use super::{by_json, by_query, flatten};
use crate::sqs::wire::protocol::Action;

/// Action, JSON, form.
pub(super) const ROWS: &[(&str, &str, &str)] = &[
    (
        "CreateQueue",
        concat!(
            r#"{"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true", "VisibilityTimeout": "60"}, "#,
            r#""tags": {"team": "a", "empty": ""}}"#,
        ),
        concat!(
            r"Action=CreateQueue&Version=2012-11-05&QueueName=q.fifo&Attribute.1.Name=FifoQueue&Attrib",
            r"ute.1.Value=true&Attribute.2.Name=VisibilityTimeout&Attribute.2.Value=60&Tag.1.Key=team&",
            r"Tag.1.Value=a&Tag.2.Key=empty&Tag.2.Value=",
        ),
    ),
    (
        "GetQueueUrl",
        r#"{"QueueName": "q", "QueueOwnerAWSAccountId": "123456789012"}"#,
        r"Action=GetQueueUrl&Version=2012-11-05&QueueName=q&QueueOwnerAWSAccountId=123456789012",
    ),
    (
        "ListQueues",
        r#"{"QueueNamePrefix": "a-", "MaxResults": 5, "NextToken": "t+/="}"#,
        concat!(
            r"Action=ListQueues&Version=2012-11-05&QueueNamePrefix=a-&MaxResults=5&NextToken=t%2B%2F%3",
            r"D",
        ),
    ),
    (
        "DeleteQueue",
        r#"{"QueueUrl": "http://h/000000000000/q"}"#,
        r"Action=DeleteQueue&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq",
    ),
    (
        "PurgeQueue",
        r#"{"QueueUrl": "http://h/000000000000/q"}"#,
        r"Action=PurgeQueue&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq",
    ),
    (
        "GetQueueAttributes",
        r#"{"QueueUrl": "http://h/000000000000/q", "AttributeNames": ["All", "QueueArn"]}"#,
        concat!(
            r"Action=GetQueueAttributes&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&",
            r"AttributeName.1=All&AttributeName.2=QueueArn",
        ),
    ),
    (
        "SetQueueAttributes",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "Attributes": {"Policy": "", "RedrivePolicy": "{"#,
            r#"\"maxReceiveCount\": 3}"}}"#,
        ),
        concat!(
            r"Action=SetQueueAttributes&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&",
            r"Attribute.1.Name=Policy&Attribute.1.Value=&Attribute.2.Name=RedrivePolicy&Attribute.2.Va",
            r"lue=%7B%22maxReceiveCount%22%3A+3%7D",
        ),
    ),
    (
        "SendMessage",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "MessageBody": "h\u00e9 <&>\r\n+%", "DelaySecond"#,
            r#"s": 5, "MessageAttributes": {"a": {"DataType": "String.x", "StringValue": "v"}, "b": {"D"#,
            r#"ataType": "Binary", "BinaryValue": "AAH/"}, "n": {"DataType": "Number", "StringValue": ""#,
            r#"1.5"}}, "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValu"#,
            r#"e": "Root=1"}}, "MessageDeduplicationId": "d", "MessageGroupId": "g"}"#,
        ),
        concat!(
            r"Action=SendMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&Message",
            r"Body=h%C3%A9+%3C%26%3E%0D%0A%2B%25&DelaySeconds=5&MessageAttribute.1.Name=a&MessageAttri",
            r"bute.1.Value.DataType=String.x&MessageAttribute.1.Value.StringValue=v&MessageAttribute.2",
            r".Name=b&MessageAttribute.2.Value.DataType=Binary&MessageAttribute.2.Value.BinaryValue=AA",
            r"H%2F&MessageAttribute.3.Name=n&MessageAttribute.3.Value.DataType=Number&MessageAttribute",
            r".3.Value.StringValue=1.5&MessageSystemAttribute.1.Name=AWSTraceHeader&MessageSystemAttri",
            r"bute.1.Value.DataType=String&MessageSystemAttribute.1.Value.StringValue=Root%3D1&Message",
            r"DeduplicationId=d&MessageGroupId=g",
        ),
    ),
    (
        "SendMessageBatch",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "Entries": [{"Id": "1", "MessageBody": "one", "M"#,
            r#"essageAttributes": {"a": {"DataType": "String", "StringValue": "v"}}}, {"Id": "2", "Mess"#,
            r#"ageBody": "two", "DelaySeconds": 0, "MessageGroupId": "g", "MessageDeduplicationId": "d""#,
            r"}]}",
        ),
        concat!(
            r"Action=SendMessageBatch&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&Se",
            r"ndMessageBatchRequestEntry.1.Id=1&SendMessageBatchRequestEntry.1.MessageBody=one&SendMes",
            r"sageBatchRequestEntry.1.MessageAttribute.1.Name=a&SendMessageBatchRequestEntry.1.Message",
            r"Attribute.1.Value.DataType=String&SendMessageBatchRequestEntry.1.MessageAttribute.1.Valu",
            r"e.StringValue=v&SendMessageBatchRequestEntry.2.Id=2&SendMessageBatchRequestEntry.2.Messa",
            r"geBody=two&SendMessageBatchRequestEntry.2.DelaySeconds=0&SendMessageBatchRequestEntry.2.",
            r"MessageGroupId=g&SendMessageBatchRequestEntry.2.MessageDeduplicationId=d",
        ),
    ),
    (
        "ReceiveMessage",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "AttributeNames": ["SenderId"], "MessageAttribut"#,
            r#"eNames": ["a.*", "b"], "MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "WaitTimeSecon"#,
            r#"ds": 20, "ReceiveRequestAttemptId": "r"}"#,
        ),
        concat!(
            r"Action=ReceiveMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&Attr",
            r"ibuteName.1=SenderId&MessageAttributeName.1=a.%2A&MessageAttributeName.2=b&MaxNumberOfMe",
            r"ssages=10&VisibilityTimeout=0&WaitTimeSeconds=20&ReceiveRequestAttemptId=r",
        ),
    ),
    (
        "DeleteMessage",
        r#"{"QueueUrl": "http://h/000000000000/q", "ReceiptHandle": "r+/="}"#,
        concat!(
            r"Action=DeleteMessage&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&Recei",
            r"ptHandle=r%2B%2F%3D",
        ),
    ),
    (
        "DeleteMessageBatch",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "Entries": [{"Id": "1", "ReceiptHandle": "r1"}, "#,
            r#"{"Id": "2", "ReceiptHandle": "r2"}]}"#,
        ),
        concat!(
            r"Action=DeleteMessageBatch&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&",
            r"DeleteMessageBatchRequestEntry.1.Id=1&DeleteMessageBatchRequestEntry.1.ReceiptHandle=r1&",
            r"DeleteMessageBatchRequestEntry.2.Id=2&DeleteMessageBatchRequestEntry.2.ReceiptHandle=r2",
        ),
    ),
    (
        "ChangeMessageVisibility",
        r#"{"QueueUrl": "http://h/000000000000/q", "ReceiptHandle": "r", "VisibilityTimeout": 0}"#,
        concat!(
            r"Action=ChangeMessageVisibility&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000",
            r"%2Fq&ReceiptHandle=r&VisibilityTimeout=0",
        ),
    ),
    (
        "ChangeMessageVisibilityBatch",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "Entries": [{"Id": "1", "ReceiptHandle": "r1", ""#,
            r#"VisibilityTimeout": 7}, {"Id": "2", "ReceiptHandle": "r2"}]}"#,
        ),
        concat!(
            r"Action=ChangeMessageVisibilityBatch&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F0000000",
            r"00000%2Fq&ChangeMessageVisibilityBatchRequestEntry.1.Id=1&ChangeMessageVisibilityBatchRe",
            r"questEntry.1.ReceiptHandle=r1&ChangeMessageVisibilityBatchRequestEntry.1.VisibilityTimeo",
            r"ut=7&ChangeMessageVisibilityBatchRequestEntry.2.Id=2&ChangeMessageVisibilityBatchRequest",
            r"Entry.2.ReceiptHandle=r2",
        ),
    ),
    (
        "ListDeadLetterSourceQueues",
        r#"{"QueueUrl": "http://h/000000000000/q", "MaxResults": 3}"#,
        concat!(
            r"Action=ListDeadLetterSourceQueues&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000",
            r"000%2Fq&MaxResults=3",
        ),
    ),
    (
        "TagQueue",
        r#"{"QueueUrl": "http://h/000000000000/q", "Tags": {"a": "1", "b": ""}}"#,
        concat!(
            r"Action=TagQueue&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&Tag.1.Key=",
            r"a&Tag.1.Value=1&Tag.2.Key=b&Tag.2.Value=",
        ),
    ),
    (
        "UntagQueue",
        r#"{"QueueUrl": "http://h/000000000000/q", "TagKeys": ["a", "b"]}"#,
        concat!(
            r"Action=UntagQueue&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&TagKey.1",
            r"=a&TagKey.2=b",
        ),
    ),
    (
        "UntagQueue",
        r#"{"QueueUrl": "http://h/000000000000/q", "TagKeys": []}"#,
        r"Action=UntagQueue&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&TagKeys=",
    ),
    (
        "ListQueueTags",
        r#"{"QueueUrl": "http://h/000000000000/q"}"#,
        r"Action=ListQueueTags&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq",
    ),
    (
        "AddPermission",
        concat!(
            r#"{"QueueUrl": "http://h/000000000000/q", "Label": "l", "AWSAccountIds": ["123456789012"],"#,
            r#" "Actions": ["SendMessage", "*"]}"#,
        ),
        concat!(
            r"Action=AddPermission&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&Label",
            r"=l&AWSAccountId.1=123456789012&ActionName.1=SendMessage&ActionName.2=%2A",
        ),
    ),
    (
        "RemovePermission",
        r#"{"QueueUrl": "http://h/000000000000/q", "Label": "l"}"#,
        concat!(
            r"Action=RemovePermission&Version=2012-11-05&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&La",
            r"bel=l",
        ),
    ),
    (
        "StartMessageMoveTask",
        concat!(
            r#"{"SourceArn": "arn:aws:sqs:us-east-1:000000000000:d", "DestinationArn": "arn:aws:sqs:us-"#,
            r#"east-1:000000000000:q", "MaxNumberOfMessagesPerSecond": 5}"#,
        ),
        concat!(
            r"Action=StartMessageMoveTask&Version=2012-11-05&SourceArn=arn%3Aaws%3Asqs%3Aus-east-1%3A0",
            r"00000000000%3Ad&DestinationArn=arn%3Aaws%3Asqs%3Aus-east-1%3A000000000000%3Aq&MaxNumberO",
            r"fMessagesPerSecond=5",
        ),
    ),
    (
        "ListMessageMoveTasks",
        r#"{"SourceArn": "arn:aws:sqs:us-east-1:000000000000:d", "MaxResults": 10}"#,
        concat!(
            r"Action=ListMessageMoveTasks&Version=2012-11-05&SourceArn=arn%3Aaws%3Asqs%3Aus-east-1%3A0",
            r"00000000000%3Ad&MaxResults=10",
        ),
    ),
    (
        "CancelMessageMoveTask",
        r#"{"TaskHandle": "aGFuZGxl"}"#,
        r"Action=CancelMessageMoveTask&Version=2012-11-05&TaskHandle=aGFuZGxl",
    ),
];

#[test]
fn both_protocols_say_the_same() {
    for (action, json, form) in ROWS {
        let request = by_json(action, json).expect(action);
        assert_eq!(request.action().name(), *action);
        assert_eq!(by_query("/", form), Ok(request), "{action}");
    }
}

/// The other tables are flattened by this, so it must flatten as botocore does.
#[test]
fn the_tests_flatten_as_botocore_does() {
    for (action, json, form) in ROWS {
        assert_eq!(by_query("/", &flatten(action, json)), by_query("/", form), "{action}");
    }
}

#[test]
fn every_action_is_among_them() {
    for action in Action::ALL {
        assert!(ROWS.iter().any(|(name, ..)| *name == action.name()), "{}", action.name());
    }
    assert_eq!(Action::ALL.len(), 23);
}
