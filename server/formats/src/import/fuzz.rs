//! Fuzz targets for imports.

use super::{ChatOptions, ChatRuns, Expansion, FrameOptions, FrameRuns};

/// Reads the input as chats.
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

/// Reads the input as frames.
pub fn frames(data: &[u8]) {
    for run in FrameRuns::new(data, FrameOptions { run_bytes_max: 1 << 20, ..FrameOptions::default() }) {
        let Ok(run) = run else { break };
        assert_eq!(run.frames().count(), run.frame_count());
    }
}
