//! Tests of the index, by behaviour.

mod bounds;
mod measure;
