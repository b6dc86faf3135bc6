//! Bytes of a rewritten segment that nobody wrote.
