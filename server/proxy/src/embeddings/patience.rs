//! Decides whether to retry a request, and when.

use hyper::StatusCode;

use super::options::EmbeddingsOptions;

/// Why a request gave no vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// A status other than success, the error's message, and the wait in seconds that the server asked for.
    Status { status: StatusCode, said: String, retry_after_s: Option<u64> },
    /// The server could not be reached, or the connection broke.
    Transport(String),
    /// The answer is malformed or does not match the request.
    Nonsense(String),
}

/// What to do after a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait(u64),
    GiveUp,
    /// The server asks for a longer wait than the options allow.
    TooLong(u64),
}

impl Failed {
    /// Whether a retry may succeed.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Status { status, .. } => {
                *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
                    || *status == StatusCode::CONFLICT
                    || status.is_server_error()
            }
            Self::Transport(_) => true,
            Self::Nonsense(_) => false,
        }
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status { status, said, .. } if said.is_empty() => write!(f, "it answered {status}"),
            Self::Status { status, said, .. } => write!(f, "it answered {status}: {said}"),
            Self::Transport(why) | Self::Nonsense(why) => f.write_str(why),
        }
    }
}

/// Decides after attempt number `attempt`, counted from 1. If the server names no wait, the wait doubles with
/// each attempt. A random part of up to half is subtracted, so that clients that failed together do not
/// return together.
pub(super) fn next(failed: &Failed, attempt: u32, options: &EmbeddingsOptions, random: u64) -> Next {
    if !failed.is_passing() || attempt >= options.attempts {
        return Next::GiveUp;
    }
    if let Failed::Status { retry_after_s: Some(seconds), .. } = failed {
        let ms = seconds.saturating_mul(1000);
        return if ms > options.wait_ms_max { Next::TooLong(*seconds) } else { Next::Wait(ms) };
    }
    let doubled = options.wait_first_ms.saturating_mul(1u64.checked_shl(attempt - 1).unwrap_or(u64::MAX));
    let most = doubled.min(options.wait_ms_max);
    Next::Wait(most - random % (most / 2 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, retry_after_s: Option<u64>) -> Failed {
        Failed::Status { status: StatusCode::from_u16(status).unwrap(), said: String::new(), retry_after_s }
    }

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        let options = EmbeddingsOptions::new("http://localhost", "m");
        for (code, passing) in [
            (400, false),
            (401, false),
            (404, false),
            (408, true),
            (409, true),
            (422, false),
            (429, true),
            (500, true),
            (503, true),
            (529, true),
        ] {
            assert_eq!(next(&status(code, None), 1, &options, 0) == Next::Wait(250), passing, "{code}");
        }
        assert_eq!(next(&Failed::Transport(String::new()), 1, &options, 0), Next::Wait(250));
        assert_eq!(next(&Failed::Nonsense(String::new()), 1, &options, 0), Next::GiveUp);
    }

    #[test]
    fn waits_double_up_to_a_bound_and_those_asked_for_are_kept_or_refused() {
        let options = EmbeddingsOptions { attempts: 100, ..EmbeddingsOptions::new("http://localhost", "m") };
        let after = |attempt, random| next(&status(503, None), attempt, &options, random);
        assert_eq!(
            [1, 2, 3, 7, 8, 99].map(|attempt| after(attempt, 0)),
            [250, 500, 1000, 16_000, 20_000, 20_000].map(Next::Wait)
        );
        assert_eq!(after(2, 250), Next::Wait(250), "at least half of the wait");
        assert!((0..1000).all(|random| matches!(after(2, random), Next::Wait(250..=500))));
        assert_eq!(after(100, 0), Next::GiveUp);
        assert_eq!(next(&status(429, Some(0)), 1, &options, 7), Next::Wait(0));
        assert_eq!(next(&status(429, Some(20)), 1, &options, 7), Next::Wait(20_000));
        assert_eq!(next(&status(429, Some(21)), 1, &options, 7), Next::TooLong(21));
        assert_eq!(next(&status(400, Some(1)), 1, &options, 7), Next::GiveUp);
        assert_eq!(next(&status(429, Some(u64::MAX)), 1, &options, 7), Next::TooLong(u64::MAX));
    }
}
