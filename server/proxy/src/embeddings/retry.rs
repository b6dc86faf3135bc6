//! Decides whether to retry a request, and when.

use hyper::StatusCode;

use super::options::EmbeddingsOptions;

/// Why a request gave no vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EmbeddingFailure {
    /// A status other than success, the error's message, and the wait in seconds that the server asked for.
    Status { status: StatusCode, said: String, retry_after_s: Option<u64> },
    /// The server could not be reached, or the connection broke.
    Transport(String),
    /// The answer is malformed or does not match the request.
    Malformed(String),
}

/// What to do after a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RetryDecision {
    Wait(u64),
    GiveUp,
    /// The server asks for a longer wait than the options allow.
    TooLong(u64),
}

impl EmbeddingFailure {
    /// Whether a retry may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => {
                *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
                    || *status == StatusCode::CONFLICT
                    || status.is_server_error()
            }
            Self::Transport(_) => true,
            Self::Malformed(_) => false,
        }
    }
}

impl std::fmt::Display for EmbeddingFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status { status, said, .. } if said.is_empty() => write!(f, "it answered {status}"),
            Self::Status { status, said, .. } => write!(f, "it answered {status}: {said}"),
            Self::Transport(why) | Self::Malformed(why) => f.write_str(why),
        }
    }
}

/// Decides after attempt number `attempt`, counted from 1. If the server names no wait, the wait doubles with
/// each attempt. A random part of up to half is subtracted, so that clients that failed together do not
/// return together.
pub(super) fn retry_decision(
    failed: &EmbeddingFailure,
    attempt: u32,
    options: &EmbeddingsOptions,
    random: u64,
) -> RetryDecision {
    if !failed.is_transient() || attempt >= options.attempts {
        return RetryDecision::GiveUp;
    }
    if let EmbeddingFailure::Status { retry_after_s: Some(seconds), .. } = failed {
        let ms = seconds.saturating_mul(1000);
        return if ms > options.wait_ms_max {
            RetryDecision::TooLong(*seconds)
        } else {
            RetryDecision::Wait(ms)
        };
    }
    let doubled = options.wait_first_ms.saturating_mul(1u64.checked_shl(attempt - 1).unwrap_or(u64::MAX));
    let most = doubled.min(options.wait_ms_max);
    RetryDecision::Wait(most - random % (most / 2 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16, retry_after_s: Option<u64>) -> EmbeddingFailure {
        EmbeddingFailure::Status {
            status: StatusCode::from_u16(status).unwrap(),
            said: String::new(),
            retry_after_s,
        }
    }

    #[test]
    fn only_transient_failures_are_retried() {
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
            assert_eq!(
                retry_decision(&status(code, None), 1, &options, 0) == RetryDecision::Wait(250),
                passing,
                "{code}"
            );
        }
        assert_eq!(
            retry_decision(&EmbeddingFailure::Transport(String::new()), 1, &options, 0),
            RetryDecision::Wait(250)
        );
        assert_eq!(
            retry_decision(&EmbeddingFailure::Malformed(String::new()), 1, &options, 0),
            RetryDecision::GiveUp
        );
    }

    #[test]
    fn wait_doubles_to_bound_and_retry_after_is_honoured() {
        let options = EmbeddingsOptions { attempts: 100, ..EmbeddingsOptions::new("http://localhost", "m") };
        let after = |attempt, random| retry_decision(&status(503, None), attempt, &options, random);
        assert_eq!(
            [1, 2, 3, 7, 8, 99].map(|attempt| after(attempt, 0)),
            [250, 500, 1000, 16_000, 20_000, 20_000].map(RetryDecision::Wait)
        );
        assert_eq!(after(2, 250), RetryDecision::Wait(250), "at least half of the wait");
        assert!((0..1000).all(|random| matches!(after(2, random), RetryDecision::Wait(250..=500))));
        assert_eq!(after(100, 0), RetryDecision::GiveUp);
        assert_eq!(retry_decision(&status(429, Some(0)), 1, &options, 7), RetryDecision::Wait(0));
        assert_eq!(retry_decision(&status(429, Some(20)), 1, &options, 7), RetryDecision::Wait(20_000));
        assert_eq!(retry_decision(&status(429, Some(21)), 1, &options, 7), RetryDecision::TooLong(21));
        assert_eq!(retry_decision(&status(400, Some(1)), 1, &options, 7), RetryDecision::GiveUp);
        assert_eq!(
            retry_decision(&status(429, Some(u64::MAX)), 1, &options, 7),
            RetryDecision::TooLong(u64::MAX)
        );
    }
}
