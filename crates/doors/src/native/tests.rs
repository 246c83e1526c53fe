//! Tests of both protocols together.

mod parity;
