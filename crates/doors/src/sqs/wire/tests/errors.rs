//! Every error, as both protocols write it.

use crate::sqs::wire::error::{ErrorKind, SqsError, TABLE};
use crate::sqs::wire::protocol::{Format, Protocol};

/// Type in JSON, code in Query, status, fault.
pub(super) const ROWS: &[(ErrorKind, &str, &str, u16, &str)] = &[
    (ErrorKind::QueueDoesNotExist, SQS, "AWS.SimpleQueueService.NonExistentQueue", 400, "Sender"),
    (ErrorKind::QueueNameExists, SQS, "QueueAlreadyExists", 400, "Sender"),
    (ErrorKind::QueueDeletedRecently, SQS, "AWS.SimpleQueueService.QueueDeletedRecently", 400, "Sender"),
    (ErrorKind::PurgeQueueInProgress, SQS, "AWS.SimpleQueueService.PurgeQueueInProgress", 403, "Sender"),
    (ErrorKind::OverLimit, SQS, "OverLimit", 403, "Sender"),
    (ErrorKind::EmptyBatchRequest, SQS, "AWS.SimpleQueueService.EmptyBatchRequest", 400, "Sender"),
    (
        ErrorKind::TooManyEntriesInBatchRequest,
        SQS,
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        400,
        "Sender",
    ),
    (
        ErrorKind::BatchEntryIdsNotDistinct,
        SQS,
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
        400,
        "Sender",
    ),
    (ErrorKind::InvalidBatchEntryId, SQS, "AWS.SimpleQueueService.InvalidBatchEntryId", 400, "Sender"),
    (ErrorKind::BatchRequestTooLong, SQS, "AWS.SimpleQueueService.BatchRequestTooLong", 400, "Sender"),
    (ErrorKind::MessageNotInflight, SQS, "AWS.SimpleQueueService.MessageNotInflight", 400, "Sender"),
    (ErrorKind::UnsupportedOperation, SQS, "AWS.SimpleQueueService.UnsupportedOperation", 400, "Sender"),
    (
        ErrorKind::ResourceNotFound,
        "com.amazonaws.sqs#ResourceNotFoundException",
        "ResourceNotFoundException",
        404,
        "Sender",
    ),
    (ErrorKind::InvalidAttributeName, SQS, "InvalidAttributeName", 400, "Sender"),
    (ErrorKind::InvalidAttributeValue, SQS, "InvalidAttributeValue", 400, "Sender"),
    (ErrorKind::InvalidMessageContents, SQS, "InvalidMessageContents", 400, "Sender"),
    (ErrorKind::ReceiptHandleIsInvalid, SQS, "ReceiptHandleIsInvalid", 400, "Sender"),
    (ErrorKind::InvalidIdFormat, SQS, "InvalidIdFormat", 400, "Sender"),
    (ErrorKind::InvalidAddress, SQS, "InvalidAddress", 404, "Sender"),
    (ErrorKind::InvalidSecurity, SQS, "InvalidSecurity", 403, "Sender"),
    (ErrorKind::RequestThrottled, SQS, "RequestThrottled", 403, "Sender"),
    (ErrorKind::KmsAccessDenied, SQS, "KMS.AccessDeniedException", 400, "Sender"),
    (ErrorKind::KmsDisabled, SQS, "KMS.DisabledException", 400, "Sender"),
    (ErrorKind::KmsInvalidKeyUsage, SQS, "KMS.InvalidKeyUsageException", 400, "Sender"),
    (ErrorKind::KmsInvalidState, SQS, "KMS.InvalidStateException", 400, "Sender"),
    (ErrorKind::KmsNotFound, SQS, "KMS.NotFoundException", 400, "Sender"),
    (ErrorKind::KmsOptInRequired, SQS, "KMS.OptInRequired", 403, "Sender"),
    (ErrorKind::KmsThrottled, SQS, "KMS.ThrottlingException", 400, "Sender"),
    (
        ErrorKind::InvalidParameterValue,
        "com.amazon.coral.service#InvalidParameterValueException",
        "InvalidParameterValue",
        400,
        "Sender",
    ),
    (
        ErrorKind::MissingParameter,
        "com.amazon.coral.service#MissingRequiredParameterException",
        "MissingParameter",
        400,
        "Sender",
    ),
    (ErrorKind::InvalidAction, FRAMEWORK, "InvalidAction", 400, "Sender"),
    (
        ErrorKind::Malformed,
        "com.amazon.coral.service#SerializationException",
        "MalformedInput",
        400,
        "Sender",
    ),
    (
        ErrorKind::InvalidClientTokenId,
        "com.amazon.coral.service#UnrecognizedClientException",
        "InvalidClientTokenId",
        403,
        "Sender",
    ),
    (ErrorKind::SignatureDoesNotMatch, FRAMEWORK, "SignatureDoesNotMatch", 403, "Sender"),
    (ErrorKind::MissingAuthenticationToken, FRAMEWORK, "MissingAuthenticationToken", 403, "Sender"),
    (ErrorKind::ExpiredToken, FRAMEWORK, "ExpiredToken", 403, "Sender"),
    (
        ErrorKind::AccessDenied,
        "com.amazon.coral.service#AccessDeniedException",
        "AccessDenied",
        403,
        "Sender",
    ),
    (ErrorKind::IncompleteSignature, FRAMEWORK, "IncompleteSignature", 400, "Sender"),
    (ErrorKind::InternalFailure, FRAMEWORK, "InternalFailure", 500, "Receiver"),
    (ErrorKind::ServiceUnavailable, FRAMEWORK, "ServiceUnavailable", 503, "Receiver"),
];

/// The type is the kind's own name, in the service's model or in that of the framework.
const SQS: &str = "com.amazonaws.sqs#";
const FRAMEWORK: &str = "com.amazon.coral.service#";

#[test]
fn every_error_has_its_names_status_and_fault_in_both_protocols() {
    for &(kind, json_type, code, status, fault) in ROWS {
        let error = SqsError::new(kind, "a < \"b\"\u{1}");
        let own_name = if json_type.ends_with('#') { format!("{kind:?}") } else { String::new() };
        let json = error.render(Protocol::Json, "id-1");
        assert_eq!(json.status().as_u16(), status, "{kind:?}");
        assert_eq!(json.headers()["content-type"], "application/x-amz-json-1.0");
        assert_eq!(json.headers()["x-amzn-requestid"], "id-1");
        assert_eq!(json.headers()["x-amzn-query-error"], format!("{code};{fault}"), "{kind:?}");
        let full = format!("{json_type}{own_name}");
        assert_eq!(json.headers()["x-amzn-errortype"], full.split('#').next_back().expect("a shape"));
        let text = error.message(Protocol::Json);
        let expected = serde_json::json!({ "__type": full, "message": text });
        let body: serde_json::Value = serde_json::from_slice(json.body()).expect("JSON");
        assert_eq!(body, expected);

        let xml = error.render(Protocol::Query(Format::Xml), "id-1");
        assert_eq!(xml.status().as_u16(), status, "{kind:?}");
        assert_eq!(xml.headers()["content-type"], "text/xml");
        assert!(!xml.headers().contains_key("x-amzn-query-error"));
        let message = match kind {
            ErrorKind::QueueDoesNotExist => "The specified queue does not exist for this wsdl version.",
            _ => "a &lt; &quot;b&quot;\u{fffd}",
        };
        let expected = format!(
            "<ErrorResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error><Type>{fault}</Type>\
             <Code>{code}</Code><Message>{message}</Message><Detail/></Error><RequestId>id-1</RequestId>\
             </ErrorResponse>"
        );
        assert_eq!(xml.body(), &expected, "{kind:?}");
    }
}

#[test]
fn every_error_is_a_row() {
    let listed: Vec<ErrorKind> = ROWS.iter().map(|row| row.0).collect();
    let known: Vec<ErrorKind> = TABLE.iter().map(|row| row.kind).collect();
    assert_eq!(listed, known);
}

#[test]
fn a_queue_that_is_not_there_is_told_in_the_words_of_each_protocol() {
    let error = SqsError::no_such_queue();
    assert_eq!(error.message(Protocol::Json), "The specified queue does not exist.");
    for format in [Format::Xml, Format::Json] {
        let message = error.message(Protocol::Query(format));
        assert_eq!(message, "The specified queue does not exist for this wsdl version.");
    }
}

#[test]
fn an_error_can_be_had_as_json_by_query() {
    let reply = SqsError::missing("X").render(Protocol::Query(Format::Json), "id-1");
    assert_eq!(reply.headers()["content-type"], "application/json");
    assert_eq!(
        reply.body(),
        concat!(
            r#"{"Error":{"Code":"MissingParameter","Message":"The request must contain the parameter X.","#,
            r#""Type":"Sender"},"RequestId":"id-1"}"#
        )
    );
}

#[test]
fn sentences_that_the_door_needs_are_those_of_sqs() {
    for (error, expected) in [
        (
            SqsError::bad_receipt("X"),
            "ReceiptHandleIsInvalid: The input receipt handle \"X\" is not a valid receipt handle.",
        ),
        (
            SqsError::no_such_resource("SourceArn"),
            "ResourceNotFoundException: The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
        (SqsError::invalid_action("X"), "InvalidAction: The action X is not valid for this endpoint."),
        (SqsError::missing("X"), "MissingParameter: The request must contain the parameter X."),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}
