//! Every error that clients of SQS know, as one table: its shape in JSON, its code in Query, its status, and
//! whose fault it is.
//!
//! JSON clients choose an exception by the shape and show the code that the header `x-amzn-query-error` carries;
//! Query clients know only the code. Both names of an error must therefore be exact.

use std::fmt;

use axum::http::StatusCode;

use super::protocol::Protocol;

/// Whose fault an error is. Clients try again by themselves only where it is the receiver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Sender,
    Receiver,
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Fault::Sender => "Sender",
            Fault::Receiver => "Receiver",
        }
    }
}

/// Where the name of a shape lives. Clients cut off everything before `#`; people who read a trace do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// The service's own model.
    Sqs,
    /// The framework that AWS puts around every service.
    Framework,
}

impl Namespace {
    fn prefix(self) -> &'static str {
        match self {
            Namespace::Sqs => "com.amazonaws.sqs#",
            Namespace::Framework => "com.amazon.coral.service#",
        }
    }
}

/// The properties of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub kind: ErrorKind,
    /// The JSON name.
    pub shape: &'static str,
    /// The Query name, which JSON has in a header.
    pub code: &'static str,
    pub status: u16,
    pub fault: Fault,
    pub namespace: Namespace,
}

macro_rules! errors {
    ($($kind:ident $shape:literal $code:literal $status:literal $fault:ident $namespace:ident;)*) => {
        /// What went wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $($kind,)*
        }

        /// Every error, in the order of [`ErrorKind`].
        pub const TABLE: &[Row] = &[
            $(Row {
                kind: ErrorKind::$kind,
                shape: $shape,
                code: $code,
                status: $status,
                fault: Fault::$fault,
                namespace: Namespace::$namespace,
            },)*
        ];
    };
}

errors! {
    QueueDoesNotExist "QueueDoesNotExist" "AWS.SimpleQueueService.NonExistentQueue" 400 Sender Sqs;
    QueueNameExists "QueueNameExists" "QueueAlreadyExists" 400 Sender Sqs;
    QueueDeletedRecently "QueueDeletedRecently" "AWS.SimpleQueueService.QueueDeletedRecently" 400 Sender Sqs;
    PurgeQueueInProgress "PurgeQueueInProgress" "AWS.SimpleQueueService.PurgeQueueInProgress" 403 Sender Sqs;
    OverLimit "OverLimit" "OverLimit" 403 Sender Sqs;
    EmptyBatchRequest "EmptyBatchRequest" "AWS.SimpleQueueService.EmptyBatchRequest" 400 Sender Sqs;
    TooManyEntriesInBatchRequest "TooManyEntriesInBatchRequest"
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest" 400 Sender Sqs;
    BatchEntryIdsNotDistinct "BatchEntryIdsNotDistinct"
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct" 400 Sender Sqs;
    InvalidBatchEntryId "InvalidBatchEntryId" "AWS.SimpleQueueService.InvalidBatchEntryId" 400 Sender Sqs;
    BatchRequestTooLong "BatchRequestTooLong" "AWS.SimpleQueueService.BatchRequestTooLong" 400 Sender Sqs;
    MessageNotInflight "MessageNotInflight" "AWS.SimpleQueueService.MessageNotInflight" 400 Sender Sqs;
    UnsupportedOperation "UnsupportedOperation" "AWS.SimpleQueueService.UnsupportedOperation" 400 Sender Sqs;
    ResourceNotFound "ResourceNotFoundException" "ResourceNotFoundException" 404 Sender Sqs;
    InvalidAttributeName "InvalidAttributeName" "InvalidAttributeName" 400 Sender Sqs;
    InvalidAttributeValue "InvalidAttributeValue" "InvalidAttributeValue" 400 Sender Sqs;
    InvalidMessageContents "InvalidMessageContents" "InvalidMessageContents" 400 Sender Sqs;
    ReceiptHandleIsInvalid "ReceiptHandleIsInvalid" "ReceiptHandleIsInvalid" 400 Sender Sqs;
    InvalidIdFormat "InvalidIdFormat" "InvalidIdFormat" 400 Sender Sqs;
    InvalidAddress "InvalidAddress" "InvalidAddress" 404 Sender Sqs;
    InvalidSecurity "InvalidSecurity" "InvalidSecurity" 403 Sender Sqs;
    RequestThrottled "RequestThrottled" "RequestThrottled" 403 Sender Sqs;
    KmsAccessDenied "KmsAccessDenied" "KMS.AccessDeniedException" 400 Sender Sqs;
    KmsDisabled "KmsDisabled" "KMS.DisabledException" 400 Sender Sqs;
    KmsInvalidKeyUsage "KmsInvalidKeyUsage" "KMS.InvalidKeyUsageException" 400 Sender Sqs;
    KmsInvalidState "KmsInvalidState" "KMS.InvalidStateException" 400 Sender Sqs;
    KmsNotFound "KmsNotFound" "KMS.NotFoundException" 400 Sender Sqs;
    KmsOptInRequired "KmsOptInRequired" "KMS.OptInRequired" 403 Sender Sqs;
    KmsThrottled "KmsThrottled" "KMS.ThrottlingException" 400 Sender Sqs;
    // These two have a suffix in JSON that the header lacks.
    InvalidParameterValue "InvalidParameterValueException" "InvalidParameterValue" 400 Sender Framework;
    MissingParameter "MissingRequiredParameterException" "MissingParameter" 400 Sender Framework;
    InvalidAction "InvalidAction" "InvalidAction" 400 Sender Framework;
    Malformed "SerializationException" "MalformedInput" 400 Sender Framework;
    InvalidClientTokenId "UnrecognizedClientException" "InvalidClientTokenId" 403 Sender Framework;
    SignatureDoesNotMatch "SignatureDoesNotMatch" "SignatureDoesNotMatch" 403 Sender Framework;
    MissingAuthenticationToken "MissingAuthenticationToken" "MissingAuthenticationToken" 403 Sender Framework;
    ExpiredToken "ExpiredToken" "ExpiredToken" 403 Sender Framework;
    AccessDenied "AccessDeniedException" "AccessDenied" 403 Sender Framework;
    IncompleteSignature "IncompleteSignature" "IncompleteSignature" 400 Sender Framework;
    InternalFailure "InternalFailure" "InternalFailure" 500 Receiver Framework;
    ServiceUnavailable "ServiceUnavailable" "ServiceUnavailable" 503 Receiver Framework;
}

impl ErrorKind {
    pub fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The value of `__type` in JSON.
    pub fn json_type(self) -> String {
        let row = self.row();
        format!("{}{}", row.namespace.prefix(), row.shape)
    }
}

/// An error, as a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqsError {
    kind: ErrorKind,
    message: String,
}

impl SqsError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> SqsError {
        SqsError { kind, message: message.into() }
    }

    /// The one error whose text depends on the protocol.
    pub fn no_such_queue() -> SqsError {
        SqsError::new(ErrorKind::QueueDoesNotExist, "The specified queue does not exist.")
    }

    pub fn missing(parameter: &str) -> SqsError {
        let message = format!("The request must contain the parameter {parameter}.");
        SqsError::new(ErrorKind::MissingParameter, message)
    }

    /// A parameter has a value that it cannot have.
    pub fn value(value: impl fmt::Display, parameter: &str, reason: impl fmt::Display) -> SqsError {
        let message = format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}");
        SqsError::new(ErrorKind::InvalidParameterValue, message)
    }

    /// As [`SqsError::value`], where SQS has a sentence of its own.
    pub fn parameter(message: impl Into<String>) -> SqsError {
        SqsError::new(ErrorKind::InvalidParameterValue, message)
    }

    pub fn unknown_attribute(name: &str) -> SqsError {
        SqsError::new(ErrorKind::InvalidAttributeName, format!("Unknown Attribute {name}."))
    }

    pub fn attribute_value(name: &str) -> SqsError {
        SqsError::new(ErrorKind::InvalidAttributeValue, format!("Invalid value for the parameter {name}."))
    }

    pub fn bad_receipt(handle: &str) -> SqsError {
        let message = format!("The input receipt handle \"{handle}\" is not a valid receipt handle.");
        SqsError::new(ErrorKind::ReceiptHandleIsInvalid, message)
    }

    pub fn invalid_action(action: &str) -> SqsError {
        let message = format!("The action {action} is not valid for this endpoint.");
        SqsError::new(ErrorKind::InvalidAction, message)
    }

    pub fn malformed(message: impl Into<String>) -> SqsError {
        SqsError::new(ErrorKind::Malformed, message)
    }

    /// `parameter` is `SourceArn` or `DestinationArn`.
    pub fn no_such_resource(parameter: &str) -> SqsError {
        let message = format!("The resource that you specified for the {parameter} parameter doesn't exist.");
        SqsError::new(ErrorKind::ResourceNotFound, message)
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The code, as Query has it and as the failed entries of a batch have it in both protocols.
    pub fn code(&self) -> &'static str {
        self.kind.row().code
    }

    pub fn fault(&self) -> Fault {
        self.kind.row().fault
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.row().status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The text, as a client of this protocol knows it.
    pub fn message(&self, protocol: Protocol) -> &str {
        match (self.kind, protocol) {
            (ErrorKind::QueueDoesNotExist, Protocol::Query(_)) => {
                "The specified queue does not exist for this wsdl version."
            }
            _ => &self.message,
        }
    }
}

impl fmt::Display for SqsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code(), self.message)
    }
}

impl std::error::Error for SqsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_finds_its_own_row() {
        for row in TABLE {
            assert_eq!(row.kind.row(), row);
            assert_eq!(SqsError::new(row.kind, "").status().as_u16(), row.status);
        }
    }
}
