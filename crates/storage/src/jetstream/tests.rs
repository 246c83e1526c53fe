//! The rules of writer and reader on a model of JetStream, and a rule that is left out on a real server.

mod fenced;
mod format;
mod protocol;
mod takeovers;
