//! Tests of the index, by behaviour.

mod measure;
