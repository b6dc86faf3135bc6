//! Bytes with right checksums and wrong contents.

use super::*;
