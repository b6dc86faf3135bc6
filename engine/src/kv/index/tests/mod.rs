//! Tests of the index, by behaviour.
#![expect(clippy::disallowed_methods, reason = "tests reach for clocks and threads themselves")]

mod bounds;
mod measure;
