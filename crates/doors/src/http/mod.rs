//! What every door that speaks HTTP needs.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `accept` | Taking connections, no more than there may be, and letting them end. |
//! | `connection` | Bytes in and out, with deadlines for those who are silent or slow. |
//! | `body` | Reading bodies within limits. |
//! | `hosts` | Which names the server answers to, and pages of which sites may ask. |

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod hosts;
