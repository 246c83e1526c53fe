//! Tests of the kit as a whole.

pub(crate) mod fuzz;
