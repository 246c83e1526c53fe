//! The SQS door: what clients of Amazon SQS say, and what they expect to hear.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `wire` | The protocol, without a queue behind it: requests, responses, errors, signatures, addresses. |

pub mod wire;
