//! Doors for fuzzers: what people import.

use super::{ChatOptions, ChatRuns, Expansion, FrameOptions, FrameRuns};

/// Runs of messages.
pub fn chat(data: &[u8]) {
    for expansion in [Expansion::Turns, Expansion::Calls] {
        let status_from = Some("reward".into());
        let options =
            ChatOptions { run_bytes_max: 1 << 20, status_from, expansion, ..ChatOptions::default() };
        for run in ChatRuns::new(data, options) {
            let Ok(run) = run else { break };
            assert_eq!(run.frames().count(), run.frame_count());
        }
    }
}

/// Frames.
pub fn frames(data: &[u8]) {
    for run in FrameRuns::new(data, FrameOptions { run_bytes_max: 1 << 20, ..FrameOptions::default() }) {
        let Ok(run) = run else { break };
        assert_eq!(run.frames().count(), run.frame_count());
    }
}
