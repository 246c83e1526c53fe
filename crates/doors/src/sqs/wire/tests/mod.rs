//! What the wire does, as tables of rows.
