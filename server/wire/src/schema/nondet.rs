//! The schema of the commands of the group `nondet`.

use super::{CommandSchema, command};

pub(super) const COMMANDS: &[CommandSchema] = &[command("nondet", "nondet.draw", -3, &["write", "both"])
    .keys(1, 1, 1)
    .arguments("run CLOCK|UUID|RANDOM|FILL [length]")
    .summary(
        "Draws for a run: CLOCK (nanoseconds since 1970), UUID, RANDOM (a 64-bit number as text) or FILL \
         (`length` random bytes). An open run gets a new value, which is recorded; for an ended run, this \
         connection gets the recorded values in order. An error DIVERGED if the kind differs from the \
         recording.",
    )];
