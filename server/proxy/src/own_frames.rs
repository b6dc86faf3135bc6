//! The frames of a run that hold its program: standard input, command and standard output, standard error.

use annals::RunReader;

/// The component of the program's own frame.
pub(crate) const PROGRAM: &str = "program";

/// Maximum number of frames of the program itself: `stdin`, `program`, `stderr`.
const OWN_FRAMES: usize = 3;

/// The component of the frame that holds the program's input.
pub(crate) const STDIN: &str = "stdin";

/// The last frame with this component among the program's own frames.
pub(crate) fn own_frame(reader: &RunReader, component: &str) -> annals::Result<Option<u32>> {
    for seq in (1..=reader.info().frames).rev().take(OWN_FRAMES) {
        if reader.frame_info(seq)?.component.name() == component {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}
