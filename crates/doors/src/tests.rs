//! Tests of all doors together.

mod matrix;
