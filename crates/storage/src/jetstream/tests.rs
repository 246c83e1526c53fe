//! The rules of writer and reader on a model of JetStream.

mod format;
mod protocol;
mod takeovers;
