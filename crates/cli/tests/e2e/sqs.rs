//! The SQS door as a client meets it, where that takes a server that is restarted, a clock that is moved, or another
//! door. What the real clients of SQS say to it is in `compat/sqs`.

mod doors;
mod keys;
mod restart;
pub(crate) mod rig;
mod time;
