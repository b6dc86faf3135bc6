//! A progress bar on standard error, if that is a terminal.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::input::OpenInput;
use crate::output::count;

/// The progress of an import.
pub(crate) struct ImportProgress {
    bar: ProgressBar,
    bytes_read: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl ImportProgress {
    /// Shows the progress of reading `input`.
    pub(crate) fn new(input: &OpenInput) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(input.file_bytes, target);
        let template = match input.file_bytes {
            Some(_) => "{wide_bar} {bytes}/{total_bytes} {msg}",
            None => "{spinner} {bytes} {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, bytes_read: input.bytes_read.clone() }
    }

    /// Shows the numbers of recorded runs and frames.
    pub(crate) fn update(&self, runs: u64, frames: u64) {
        self.bar.set_position(self.bytes_read.load(Ordering::Relaxed));
        self.bar.set_message(format!("{} runs, {} frames", count(runs), count(frames)));
    }

    /// Removes the bar, so that later output is not mixed with it.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
