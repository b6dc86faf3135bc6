//! What the keys do.

/// Keys and what they do, by screen.
pub(crate) const KEYS: &[(&str, &str)] = &[
    ("j k, arrows", "down, up; in a frame: scroll"),
    ("space, b", "a page of the frame down, up"),
    ("enter", "open the run; read the frame"),
    ("esc, h", "back"),
    ("n p", "next, previous frame while reading"),
    ("g N enter", "jump to frame N, or to a run's number in the list"),
    ("G", "the last one: follow a run that is recorded"),
    ("e", "the frame to read first: where the run failed"),
    ("/ TEXT", "runs: filter by text; a run: find text in its frames"),
    ("*", "find again"),
    ("f", "filter: statuses of runs, kinds of frames, differences"),
    ("r", "the recorded bytes: request, response, metadata"),
    ("d", "what the request changed"),
    ("a", "all messages of the request, or only the new ones"),
    ("s", "state after the frame"),
    ("x", "command that forks from the frame"),
    ("P", "play with the recorded times, at most 2 s each; stop"),
    ("c", "compare with another run"),
    ("?", "these keys"),
    ("q", "quit"),
];

#[cfg(test)]
mod tests {
    #[test]
    fn keys_fit_the_smallest_screen() {
        for (keys, text) in super::KEYS {
            assert!(keys.len() <= 14 && text.len() <= 60, "{keys}");
        }
        assert!(super::KEYS.len() <= 20);
    }
}
