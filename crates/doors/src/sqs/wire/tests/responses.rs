//! Every response, in its three forms.

use std::collections::BTreeMap;

use super::map;
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::message::{AttributeValue, MessageAttribute};
use crate::sqs::wire::protocol::{Action, Format, Protocol};
use crate::sqs::wire::response::{
    Batch, Changed, MoveStatus, MoveTask, Received, Response, Sent, SentEntry, uuid,
};

/// A response, its JSON, and what its result is in XML.
pub(super) type Row = (Response, &'static str, &'static str);

fn sent() -> Sent {
    Sent {
        message_id: "m".to_owned(),
        md5_of_body: "b".to_owned(),
        md5_of_attributes: None,
        md5_of_system_attributes: None,
        sequence_number: None,
    }
}

fn message() -> Received {
    Received {
        message_id: "m".to_owned(),
        receipt_handle: "r".to_owned(),
        md5_of_body: "b".to_owned(),
        body: "a<b>&\"c\"\r\n\té'".to_owned(),
        system_attributes: Vec::new(),
        md5_of_attributes: None,
        attributes: BTreeMap::new(),
    }
}

fn task(status: MoveStatus) -> MoveTask {
    MoveTask {
        task_handle: "h".to_owned(),
        status,
        source_arn: "s".to_owned(),
        destination_arn: None,
        rate: None,
        moved: 1,
        to_move: 2,
        failure: None,
        started: 1_700_000_000_123,
    }
}

pub(super) fn rows() -> Vec<Row> {
    let text = |text: &str| text.to_owned();
    let urls = || vec![text("http://h/1/a"), text("http://h/1/b")];
    let attribute = |data_type: &str, value| MessageAttribute { data_type: data_type.to_owned(), value };
    vec![
        (Response::AddPermission, "", ""),
        (Response::ChangeMessageVisibility, "", ""),
        (Response::DeleteMessage, "", ""),
        (Response::DeleteQueue, "", ""),
        (Response::PurgeQueue, "", ""),
        (Response::RemovePermission, "", ""),
        (Response::SetQueueAttributes, "", ""),
        (Response::TagQueue, "", ""),
        (Response::UntagQueue, "", ""),
        (
            Response::CreateQueue { queue_url: text("http://h/1/a") },
            r#"{"QueueUrl":"http://h/1/a"}"#,
            "<CreateQueueResult><QueueUrl>http://h/1/a</QueueUrl></CreateQueueResult>",
        ),
        (
            Response::GetQueueUrl { queue_url: text("http://h/1/a") },
            r#"{"QueueUrl":"http://h/1/a"}"#,
            "<GetQueueUrlResult><QueueUrl>http://h/1/a</QueueUrl></GetQueueUrlResult>",
        ),
        (Response::ListQueues { queue_urls: vec![], next_token: None }, "{}", "<ListQueuesResult/>"),
        (
            Response::ListQueues { queue_urls: urls(), next_token: Some(text("t")) },
            r#"{"QueueUrls":["http://h/1/a","http://h/1/b"],"NextToken":"t"}"#,
            "<ListQueuesResult><QueueUrl>http://h/1/a</QueueUrl><QueueUrl>http://h/1/b</QueueUrl>\
             <NextToken>t</NextToken></ListQueuesResult>",
        ),
        (
            Response::ListDeadLetterSourceQueues { queue_urls: vec![], next_token: None },
            r#"{"queueUrls":[]}"#,
            "<ListDeadLetterSourceQueuesResult/>",
        ),
        (
            Response::ListDeadLetterSourceQueues { queue_urls: urls(), next_token: None },
            r#"{"queueUrls":["http://h/1/a","http://h/1/b"]}"#,
            "<ListDeadLetterSourceQueuesResult><QueueUrl>http://h/1/a</QueueUrl><QueueUrl>http://h/1/b</QueueUrl>\
             </ListDeadLetterSourceQueuesResult>",
        ),
        (Response::GetQueueAttributes { attributes: vec![] }, "{}", "<GetQueueAttributesResult/>"),
        (
            Response::GetQueueAttributes {
                attributes: vec![("QueueArn", text("a")), ("DelaySeconds", text("0"))],
            },
            r#"{"Attributes":{"QueueArn":"a","DelaySeconds":"0"}}"#,
            "<GetQueueAttributesResult><Attribute><Name>QueueArn</Name><Value>a</Value></Attribute>\
             <Attribute><Name>DelaySeconds</Name><Value>0</Value></Attribute></GetQueueAttributesResult>",
        ),
        (Response::ListQueueTags { tags: BTreeMap::new() }, "{}", "<ListQueueTagsResult/>"),
        (
            Response::ListQueueTags { tags: map(&[("a", "1"), ("b", "")]) },
            r#"{"Tags":{"a":"1","b":""}}"#,
            "<ListQueueTagsResult><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Key>b</Key><Value></Value></Tag>\
             </ListQueueTagsResult>",
        ),
        (
            Response::SendMessage(sent()),
            r#"{"MessageId":"m","MD5OfMessageBody":"b"}"#,
            "<SendMessageResult><MessageId>m</MessageId><MD5OfMessageBody>b</MD5OfMessageBody></SendMessageResult>",
        ),
        (
            Response::SendMessage(Sent {
                md5_of_attributes: Some(text("a")),
                md5_of_system_attributes: Some(text("s")),
                sequence_number: Some(text("00000000000000000001")),
                ..sent()
            }),
            concat!(
                r#"{"MessageId":"m","MD5OfMessageBody":"b","MD5OfMessageAttributes":"a","#,
                r#""MD5OfMessageSystemAttributes":"s","SequenceNumber":"00000000000000000001"}"#
            ),
            "<SendMessageResult><MessageId>m</MessageId><MD5OfMessageBody>b</MD5OfMessageBody>\
             <MD5OfMessageAttributes>a</MD5OfMessageAttributes>\
             <MD5OfMessageSystemAttributes>s</MD5OfMessageSystemAttributes>\
             <SequenceNumber>00000000000000000001</SequenceNumber></SendMessageResult>",
        ),
        (
            Response::SendMessageBatch(Batch {
                successful: vec![SentEntry { id: text("1"), sent: sent() }],
                failed: vec![(text("2"), SqsError::missing("MessageBody"))],
            }),
            concat!(
                r#"{"Successful":[{"Id":"1","MessageId":"m","MD5OfMessageBody":"b"}],"Failed":[{"Id":"2","#,
                r#""Code":"MissingParameter","Message":"The request must contain the parameter MessageBody.","#,
                r#""SenderFault":true}]}"#
            ),
            "<SendMessageBatchResult><SendMessageBatchResultEntry><Id>1</Id><MessageId>m</MessageId>\
             <MD5OfMessageBody>b</MD5OfMessageBody></SendMessageBatchResultEntry><BatchResultErrorEntry><Id>2</Id>\
             <Code>MissingParameter</Code><Message>The request must contain the parameter MessageBody.</Message>\
             <SenderFault>true</SenderFault></BatchResultErrorEntry></SendMessageBatchResult>",
        ),
        (
            Response::DeleteMessageBatch(Batch {
                successful: vec![Changed { id: text("1") }],
                failed: vec![],
            }),
            r#"{"Successful":[{"Id":"1"}]}"#,
            "<DeleteMessageBatchResult><DeleteMessageBatchResultEntry><Id>1</Id></DeleteMessageBatchResultEntry>\
             </DeleteMessageBatchResult>",
        ),
        (
            Response::ChangeMessageVisibilityBatch(Batch {
                successful: vec![],
                failed: vec![(text("1"), SqsError::bad_receipt("x"))],
            }),
            concat!(
                r#"{"Failed":[{"Id":"1","Code":"ReceiptHandleIsInvalid","Message":"The input receipt handle \"x\" "#,
                r#"is not a valid receipt handle.","SenderFault":true}]}"#
            ),
            "<ChangeMessageVisibilityBatchResult><BatchResultErrorEntry><Id>1</Id>\
             <Code>ReceiptHandleIsInvalid</Code><Message>The input receipt handle &quot;x&quot; is not a valid receipt \
             handle.</Message><SenderFault>true</SenderFault></BatchResultErrorEntry>\
             </ChangeMessageVisibilityBatchResult>",
        ),
        (
            Response::ChangeMessageVisibilityBatch(Batch {
                successful: vec![Changed { id: text("1") }],
                failed: vec![],
            }),
            r#"{"Successful":[{"Id":"1"}]}"#,
            "<ChangeMessageVisibilityBatchResult><ChangeMessageVisibilityBatchResultEntry><Id>1</Id>\
             </ChangeMessageVisibilityBatchResultEntry></ChangeMessageVisibilityBatchResult>",
        ),
        (Response::ReceiveMessage { messages: vec![] }, "{}", "<ReceiveMessageResult/>"),
        (
            Response::ReceiveMessage { messages: vec![message()] },
            concat!(
                r#"{"Messages":[{"MessageId":"m","ReceiptHandle":"r","MD5OfBody":"b","#,
                r#""Body":"a<b>&\"c\"\r\n\té'"}]}"#
            ),
            "<ReceiveMessageResult><Message><MessageId>m</MessageId><ReceiptHandle>r</ReceiptHandle>\
             <MD5OfBody>b</MD5OfBody><Body>a&lt;b&gt;&amp;&quot;c&quot;&#xD;\n\té'</Body></Message>\
             </ReceiveMessageResult>",
        ),
        (
            Response::ReceiveMessage {
                messages: vec![Received {
                    body: text("x"),
                    system_attributes: vec![("SenderId", text("i")), ("SentTimestamp", text("1"))],
                    md5_of_attributes: Some(text("a")),
                    attributes: BTreeMap::from([
                        (text("t"), attribute("String.x", AttributeValue::Text(text("v")))),
                        (text("y"), attribute("Binary", AttributeValue::Bytes(vec![0, 1, 255]))),
                    ]),
                    ..message()
                }],
            },
            concat!(
                r#"{"Messages":[{"MessageId":"m","ReceiptHandle":"r","MD5OfBody":"b","Body":"x","#,
                r#""Attributes":{"SenderId":"i","SentTimestamp":"1"},"MD5OfMessageAttributes":"a","#,
                r#""MessageAttributes":{"t":{"StringValue":"v","DataType":"String.x"},"#,
                r#""y":{"BinaryValue":"AAH/","DataType":"Binary"}}}]}"#
            ),
            "<ReceiveMessageResult><Message><MessageId>m</MessageId><ReceiptHandle>r</ReceiptHandle>\
             <MD5OfBody>b</MD5OfBody><Body>x</Body><Attribute><Name>SenderId</Name><Value>i</Value></Attribute>\
             <Attribute><Name>SentTimestamp</Name><Value>1</Value></Attribute>\
             <MD5OfMessageAttributes>a</MD5OfMessageAttributes><MessageAttribute><Name>t</Name><Value>\
             <StringValue>v</StringValue><DataType>String.x</DataType></Value></MessageAttribute><MessageAttribute>\
             <Name>y</Name><Value><BinaryValue>AAH/</BinaryValue><DataType>Binary</DataType></Value>\
             </MessageAttribute></Message></ReceiveMessageResult>",
        ),
        (
            Response::StartMessageMoveTask { task_handle: text("h") },
            r#"{"TaskHandle":"h"}"#,
            "<StartMessageMoveTaskResult><TaskHandle>h</TaskHandle></StartMessageMoveTaskResult>",
        ),
        (
            Response::CancelMessageMoveTask { moved: 7 },
            r#"{"ApproximateNumberOfMessagesMoved":7}"#,
            "<CancelMessageMoveTaskResult><ApproximateNumberOfMessagesMoved>7</ApproximateNumberOfMessagesMoved>\
             </CancelMessageMoveTaskResult>",
        ),
        (Response::ListMessageMoveTasks { tasks: vec![] }, "{}", "<ListMessageMoveTasksResult/>"),
        (
            Response::ListMessageMoveTasks {
                tasks: vec![
                    MoveTask { destination_arn: Some(text("d")), rate: Some(5), ..task(MoveStatus::Running) },
                    MoveTask { failure: Some(text("f")), ..task(MoveStatus::Failed) },
                ],
            },
            concat!(
                r#"{"Results":[{"TaskHandle":"h","Status":"RUNNING","SourceArn":"s","DestinationArn":"d","#,
                r#""MaxNumberOfMessagesPerSecond":5,"ApproximateNumberOfMessagesMoved":1,"#,
                r#""ApproximateNumberOfMessagesToMove":2,"StartedTimestamp":1700000000123},"#,
                r#"{"Status":"FAILED","SourceArn":"s","ApproximateNumberOfMessagesMoved":1,"#,
                r#""ApproximateNumberOfMessagesToMove":2,"FailureReason":"f","StartedTimestamp":1700000000123}]}"#
            ),
            "<ListMessageMoveTasksResult><ListMessageMoveTasksResultEntry><TaskHandle>h</TaskHandle>\
             <Status>RUNNING</Status><SourceArn>s</SourceArn><DestinationArn>d</DestinationArn>\
             <MaxNumberOfMessagesPerSecond>5</MaxNumberOfMessagesPerSecond>\
             <ApproximateNumberOfMessagesMoved>1</ApproximateNumberOfMessagesMoved>\
             <ApproximateNumberOfMessagesToMove>2</ApproximateNumberOfMessagesToMove>\
             <StartedTimestamp>1700000000123</StartedTimestamp></ListMessageMoveTasksResultEntry>\
             <ListMessageMoveTasksResultEntry><Status>FAILED</Status><SourceArn>s</SourceArn>\
             <ApproximateNumberOfMessagesMoved>1</ApproximateNumberOfMessagesMoved>\
             <ApproximateNumberOfMessagesToMove>2</ApproximateNumberOfMessagesToMove><FailureReason>f</FailureReason>\
             <StartedTimestamp>1700000000123</StartedTimestamp></ListMessageMoveTasksResultEntry>\
             </ListMessageMoveTasksResult>",
        ),
    ]
}

#[test]
fn every_response_is_written_in_json_and_xml() {
    for (response, json, xml) in rows() {
        let name = response.action().name();
        let reply = response.clone().render(Protocol::Json, "id-1");
        assert_eq!(reply.status().as_u16(), 200);
        assert_eq!(reply.headers()["content-type"], "application/x-amz-json-1.0");
        assert_eq!(reply.headers()["x-amzn-requestid"], "id-1");
        assert_eq!(reply.body(), json, "{name}");
        let reply = response.render(Protocol::Query(Format::Xml), "id-1");
        assert_eq!(reply.status().as_u16(), 200);
        assert_eq!(reply.headers()["content-type"], "text/xml");
        assert_eq!(reply.headers()["x-amzn-requestid"], "id-1");
        let expected = format!(
            "<{name}Response xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">{xml}<ResponseMetadata>\
             <RequestId>id-1</RequestId></ResponseMetadata></{name}Response>"
        );
        assert_eq!(reply.body(), &expected, "{name}");
    }
}

#[test]
fn every_action_has_a_response() {
    for action in Action::ALL {
        assert!(rows().iter().any(|(response, ..)| response.action() == *action), "{}", action.name());
    }
}

#[test]
fn query_can_be_answered_in_json_that_looks_like_the_xml() {
    let written = |response: Response| {
        let reply = response.render(Protocol::Query(Format::Json), "id-1");
        assert_eq!(reply.headers()["content-type"], "application/json");
        String::from_utf8(reply.body().to_vec()).expect("text")
    };
    for (response, expected) in [
        (
            Response::ListQueues { queue_urls: vec!["u".to_owned()], next_token: None },
            concat!(
                r#"{"ListQueuesResponse":{"ListQueuesResult":{"queueUrls":["u"],"NextToken":null},"#,
                r#""ResponseMetadata":{"RequestId":"id-1"}}}"#
            ),
        ),
        (
            Response::ReceiveMessage { messages: vec![] },
            concat!(
                r#"{"ReceiveMessageResponse":{"ReceiveMessageResult":{"messages":null},"#,
                r#""ResponseMetadata":{"RequestId":"id-1"}}}"#
            ),
        ),
        (
            Response::ReceiveMessage {
                messages: vec![Received {
                    body: "x".to_owned(),
                    system_attributes: vec![("SenderId", "i".to_owned())],
                    ..message()
                }],
            },
            concat!(
                r#"{"ReceiveMessageResponse":{"ReceiveMessageResult":{"messages":[{"MessageId":"m","#,
                r#""ReceiptHandle":"r","MD5OfBody":"b","Body":"x","Attributes":[{"Name":"SenderId","Value":"i"}]}]},"#,
                r#""ResponseMetadata":{"RequestId":"id-1"}}}"#
            ),
        ),
        (
            Response::GetQueueAttributes { attributes: vec![("QueueArn", "a".to_owned())] },
            concat!(
                r#"{"GetQueueAttributesResponse":{"GetQueueAttributesResult":{"Attributes":[{"Name":"QueueArn","#,
                r#""Value":"a"}]},"ResponseMetadata":{"RequestId":"id-1"}}}"#
            ),
        ),
        (Response::DeleteMessage, r#"{"DeleteMessageResponse":{"ResponseMetadata":{"RequestId":"id-1"}}}"#),
    ] {
        assert_eq!(written(response), expected);
    }
}

#[test]
fn ids_look_like_ids() {
    assert_eq!(uuid([0; 16]), "00000000-0000-4000-8000-000000000000");
    assert_eq!(uuid([255; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
}
