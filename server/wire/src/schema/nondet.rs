//! The schema of the commands of the group `nondet`.

use super::CommandSchema;

pub(super) const COMMANDS: &[CommandSchema] = &[CommandSchema {
    name: "nondet.draw",
    arity: -3,
    flags: &["write", "both"],
    keys: (1, 1, 1),
    group: "nondet",
    since: super::ANNALS,
    summary: "Draws for a run: CLOCK (nanoseconds since 1970), UUID, RANDOM (a 64-bit number as text) or FILL (`length` random bytes). An open run gets a new value, which is recorded; for an ended run, this connection gets the recorded values in order. An error DIVERGED if the kind differs from the recording.",
    arguments: "run CLOCK|UUID|RANDOM|FILL [length]",
}];
