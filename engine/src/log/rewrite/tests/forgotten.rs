//! Runs that are forgotten: everything else of the store says what it said.
