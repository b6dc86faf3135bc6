//! The schema of the commands of the group `nondet`.

use super::CommandSchema;

pub(super) const COMMANDS: &[CommandSchema] = &[CommandSchema {
    name: "nondet.draw",
    arity: -3,
    flags: &["write", "both"],
    keys: (1, 1, 1),
    group: "nondet",
    since: super::ANNALS,
    summary: "Draws for a run: CLOCK (nanoseconds since 1970), UUID, RANDOM (a number of 64 bits as text) or FILL (so many random bytes). A run that is being recorded gets a new \
     value, which is recorded; of one that has ended this connection gets what was recorded, in order. An error DIVERGED where something else was drawn.",
    arguments: "run CLOCK|UUID|RANDOM|FILL [length]",
}];
