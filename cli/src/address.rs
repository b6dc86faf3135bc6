//! `RUN` and `RUN@SEQ` on the command line.

use crate::failure::{CliResult, Failure};

/// The address of a run, or of one of its frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunAddress {
    pub(crate) run: String,
    pub(crate) seq: Option<u32>,
}

impl RunAddress {
    /// Parses an address. Digits after the last `@` are the number of a frame. If a run's own name ends with
    /// `@` and digits, an additional `@` follows it: `a@1@` is the run `a@1`.
    pub(crate) fn parse(text: &str) -> CliResult<Self> {
        let whole = |run: &str| Self { run: run.to_owned(), seq: None };
        let Some((run, seq)) = text.rsplit_once('@') else { return Ok(whole(text)) };
        if seq.is_empty() {
            return Ok(whole(run));
        }
        if !seq.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(whole(text));
        }
        match seq.parse() {
            Ok(number) if number > 0 => Ok(Self { run: run.to_owned(), seq: Some(number) }),
            _ => Err(Failure::usage(
                format!("`{seq}` is not a frame number"),
                format!("frames are numbered from 1; the run named `{text}` itself is written `{text}@`"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RunAddress;

    #[test]
    fn run_addresses_parse() {
        let parse = |text| RunAddress::parse(text).map(|address| (address.run, address.seq)).ok();
        assert_eq!(parse("7-0"), Some(("7-0".to_owned(), None)));
        assert_eq!(parse("7-0@12"), Some(("7-0".to_owned(), Some(12))));
        assert_eq!(parse("a@b@3"), Some(("a@b".to_owned(), Some(3))));
        assert_eq!(parse("me@home"), Some(("me@home".to_owned(), None)));
        assert_eq!(parse("a@1@"), Some(("a@1".to_owned(), None)));
        assert_eq!(parse("a@0"), None);
        assert_eq!(parse("a@99999999999"), None);
    }
}
