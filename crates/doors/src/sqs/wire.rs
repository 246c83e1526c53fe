//! SQS on the wire. Two protocols, AWS JSON 1.0 and Query with XML, become one [`Request`](request::Request) and
//! one [`Response`](response::Response), so the service that answers does not know which one was spoken. Nothing
//! here knows a queue, reads a clock or opens a socket.
//!
//! SQS checks in an order that clients can see: who asks, then whether everything needed is there, then whether
//! the queue exists, and only then whether values are in range. Reading a request therefore checks presence and
//! types; each request has a method that checks the rest, to be called once the queue is found.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `protocol` | Which protocol a request speaks, and which action it asks for. |
//! | `request` | From the bytes of either protocol to a typed request. |
//! | `message` | What a message may hold: body, attributes, delays, groups. |
//! | `batch` | Checks of a batch as a whole. |
//! | `attributes` | A queue's attributes: names, defaults, ranges, redrive policies. |
//! | `tags`, `policy` | A queue's tags and permissions. |
//! | `response` | From a typed response to the bytes of either protocol. |
//! | `error` | Every error, with its name in each protocol, its status and whose fault it is. |
//! | `digest` | The MD5s that clients verify. |
//! | `signature` | Signature version 4. |
//! | `address` | Queue names, queue URLs, ARNs, accounts and regions. |

pub mod address;
pub mod attributes;
pub mod batch;
pub mod digest;
pub mod error;
pub mod message;
pub mod policy;
pub mod protocol;
pub mod request;
pub mod response;
pub mod signature;
pub mod tags;

#[cfg(test)]
mod tests;
