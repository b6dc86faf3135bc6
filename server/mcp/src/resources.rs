//! Runs and frames by address: `annals://run/NAME` and `annals://run/NAME/frame/N`. Names are
//! percent-encoded.

use annals_text::percent;
use serde_json::{Map, Value};

/// The address of a run, or of one of its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceAddress {
    pub(crate) run: String,
    pub(crate) seq: Option<u32>,
}

pub(crate) const RUN_TEMPLATE: &str = "annals://run/{name}";
pub(crate) const FRAME_TEMPLATE: &str = "annals://run/{name}/frame/{seq}";

impl ResourceAddress {
    /// Reads an address; `None` if it is another one.
    pub(crate) fn parse(address: &str) -> Option<Self> {
        let rest = address.strip_prefix("annals://run/")?;
        let (name, seq) = match rest.split_once('/') {
            None => (rest, None),
            Some((name, frame)) => (name, Some(frame.strip_prefix("frame/")?.parse().ok()?)),
        };
        let run = percent::decode_exactly(name)?;
        (!run.is_empty()).then_some(Self { run, seq })
    }

    /// The tool that reads it, and the tool's arguments.
    pub(crate) fn tool_call(&self) -> (&'static str, Map<String, Value>) {
        let mut arguments = Map::new();
        arguments.insert("run".to_owned(), self.run.as_str().into());
        match self.seq {
            None => ("get_run", arguments),
            Some(seq) => {
                arguments.insert("seq".to_owned(), seq.into());
                ("get_frame", arguments)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ResourceAddress;

    #[test]
    fn addresses_are_read_and_others_refused() {
        let of = |address: &str| ResourceAddress::parse(address);
        let run = |run: &str, seq| Some(ResourceAddress { run: run.to_owned(), seq });
        assert_eq!(of("annals://run/agent%2F1"), run("agent/1", None));
        assert_eq!(of("annals://run/a/frame/7"), run("a", Some(7)));
        for other in [
            "annals://run/",
            "annals://run/a/frame/x",
            "annals://run/a/7",
            "file:///etc/passwd",
            "annals://key/a",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
