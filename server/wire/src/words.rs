//! Runs and frames as words of a command, and back. Required words come first; optional words follow, each
//! after the name of its option.
//!
//! ```text
//! RUN.BEGIN name [AGENT a] [MODEL m] [SEVERITY s] [META json] [STARTED ns] [TAG key value]... [REPLACE]
//! FRAME.BEGIN run component input [OPTIONS]             the output is still to come
//! FRAME.ADD run component input output [BLOB name] [OPTIONS]    with BLOB, the streamed body is the output
//! FRAME.END run seq [ERROR] [SEVERITY s] [META json] [DURATION ns]
//! OPTIONS: [PARENT seq] [STARTED ns] [DURATION ns] [META json] [SEVERITY s] [ERROR]
//! ```

use std::borrow::Cow;
use std::str::FromStr;

use annals::{Component, ErrorKind, Frame, RunSpec, Severity, kv::Content, runs::Ending};
use annals_memory::Identity;

use crate::schema::recorder::RecorderCommand;

/// Builds the words of a command.
pub struct CommandWriter<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> CommandWriter<'a> {
    pub fn new(command: RecorderCommand) -> Self {
        Self(vec![command.name().as_bytes().into()])
    }

    pub fn word(mut self, word: impl Into<Cow<'a, [u8]>>) -> Self {
        self.0.push(word.into());
        self
    }

    fn option<T: ToString>(self, name: &'a str, value: Option<T>) -> Self {
        match value {
            Some(value) => self.word(name.as_bytes()).word(value.to_string().into_bytes()),
            None => self,
        }
    }

    fn flag(self, name: &'a str, set: bool) -> Self {
        if set { self.word(name.as_bytes()) } else { self }
    }

    fn severity(self, severity: Severity) -> Self {
        self.option("SEVERITY", Some(severity).filter(|severity| *severity != Severity::Normal))
    }

    fn metadata(self, metadata: Option<&'a [u8]>) -> Self {
        match metadata {
            Some(metadata) => self.word(b"META".as_slice()).word(metadata),
            None => self,
        }
    }

    /// The options of a run.
    ///
    /// # Errors
    /// The metadata is already stored in a store.
    pub fn run(self, spec: &'a RunSpec) -> annals::Result<Self> {
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let words = self.word(spec.name.as_bytes()).option("AGENT", given(&spec.agent));
        let words = words.option("MODEL", given(&spec.model)).option("STARTED", spec.started_ns);
        let words = words.severity(spec.severity).metadata(Some(bytes(&spec.metadata)?));
        let tag = |words: Self, (key, value): &'a (String, String)| {
            words.word(b"TAG".as_slice()).word(key.as_bytes()).word(value.as_bytes())
        };
        Ok(spec.tags.iter().fold(words, tag).flag("REPLACE", spec.replace))
    }

    /// The options of a frame, without its bodies.
    pub fn frame(self, frame: &'a Frame) -> Self {
        let duration = Some(frame.duration_ns).filter(|ns| *ns != 0);
        let words = self.option("PARENT", frame.parent).option("STARTED", frame.started_ns);
        let words = words.option("DURATION", duration).severity(frame.severity);
        words.metadata(Some(frame.metadata.as_slice())).flag("ERROR", frame.error)
    }

    /// The options of a frame's end.
    pub fn ending(self, ending: &'a Ending) -> Self {
        let words = self.option("DURATION", ending.duration_ns).severity(ending.severity);
        words.metadata(ending.metadata.as_deref()).flag("ERROR", ending.error)
    }

    /// The words, independent of what they were made from.
    pub fn into_words(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(Cow::into_owned).collect()
    }

    pub fn as_slices(&self) -> Vec<&[u8]> {
        self.0.iter().map(AsRef::as_ref).collect()
    }
}

/// The arguments of MEM.PUT.
pub struct MemoryPut {
    pub entry: String,
    pub identity: Identity,
    pub namespace: String,
    /// The embedder that must have made its vector.
    pub embedder: Option<String>,
}

/// The bytes of a body that is not in a store yet.
///
/// # Errors
/// `Invalid` if the body is already in a store.
pub fn bytes(content: &Content) -> annals::Result<&[u8]> {
    content.bytes().ok_or_else(|| invalid("a blob of another store cannot be sent".to_owned()))
}

pub fn invalid(what: String) -> annals::Error {
    annals::Error::new(ErrorKind::Invalid, what)
}

/// The words of a received command after its name.
#[derive(Debug)]
pub struct CommandArguments(std::vec::IntoIter<Vec<u8>>);

impl CommandArguments {
    /// The command's name in capitals, and its arguments.
    pub fn of(command: Vec<Vec<u8>>) -> (String, Self) {
        let mut words = command.into_iter();
        let name = words.next().unwrap_or_default().to_ascii_uppercase();
        (String::from_utf8_lossy(&name).into_owned(), Self(words))
    }

    /// The next word; `what` names it in errors.
    ///
    /// # Errors
    /// `Invalid` if there are no more words.
    pub fn bytes(&mut self, what: &str) -> annals::Result<Vec<u8>> {
        self.0.next().ok_or_else(|| invalid(format!("{what} is missing")))
    }

    /// The next word as text.
    ///
    /// # Errors
    /// `Invalid` if there are no more words, or the word is not UTF-8.
    pub fn text(&mut self, what: &str) -> annals::Result<String> {
        String::from_utf8(self.bytes(what)?).map_err(|_| invalid(format!("{what} is not UTF-8")))
    }

    /// The next word, parsed.
    ///
    /// # Errors
    /// `Invalid` if there are no more words, or parsing fails.
    pub fn parsed<T: FromStr>(&mut self, what: &str) -> annals::Result<T> {
        let text = self.text(what)?;
        text.parse().map_err(|_| invalid(format!("{what} is malformed: {text:?}")))
    }

    /// Whether there are more words.
    pub fn has_more(&self) -> bool {
        self.0.len() > 0
    }

    /// Expects the end of the command.
    ///
    /// # Errors
    /// `Invalid` if there are more words.
    pub fn end(&mut self) -> annals::Result<()> {
        match self.0.next() {
            None => Ok(()),
            Some(word) => {
                Err(invalid(format!("there is no option {:?} here", String::from_utf8_lossy(&word))))
            }
        }
    }

    /// The name of the next option, in capitals.
    pub fn option(&mut self) -> Option<String> {
        let word = self.0.next()?.to_ascii_uppercase();
        Some(String::from_utf8_lossy(&word).into_owned())
    }

    /// The arguments of RUN.BEGIN.
    ///
    /// # Errors
    /// `Invalid` for an unknown option or a malformed value.
    pub fn run(&mut self) -> annals::Result<RunSpec> {
        let spec = RunSpec::new(self.text("a run's name")?);
        self.run_options(spec, &["REPLACE"])
    }

    /// Reads the options of a run. Of NAME and REPLACE, only those in `others` are allowed.
    ///
    /// # Errors
    /// `Invalid` for an unknown option or a malformed value.
    pub fn run_options(&mut self, mut spec: RunSpec, others: &[&str]) -> annals::Result<RunSpec> {
        while let Some(option) = self.option() {
            match option.as_str() {
                other if ["NAME", "REPLACE"].contains(&other) && !others.contains(&other) => {
                    return Err(unknown_option(other));
                }
                "NAME" => spec.name = self.text(&option)?,
                "AGENT" => spec.agent = self.text(&option)?,
                "MODEL" => spec.model = self.text(&option)?,
                "SEVERITY" => spec.severity = self.parsed(&option)?,
                "META" | "METADATA" => spec.metadata = self.bytes(&option)?.into(),
                "STARTED" => spec.started_ns = Some(self.parsed(&option)?),
                "TAG" => spec.tags.push((self.text("a tag's key")?, self.text("a tag's value")?)),
                "REPLACE" => spec.replace = true,
                _ => return Err(unknown_option(&option)),
            }
        }
        Ok(spec)
    }

    /// A frame, and the name of the blob that is its output. With `begins`, the frame has no output yet.
    ///
    /// # Errors
    /// `Invalid` for an unknown option or a malformed value.
    pub fn frame(&mut self, begins: bool) -> annals::Result<(Frame, Option<Vec<u8>>)> {
        let component: Component = self.text("a component's name")?.parse()?;
        let input = self.bytes("an input")?;
        let output = if begins { Vec::new() } else { self.bytes("an output")? };
        let (mut frame, mut blob) = (Frame::new(component, input, output), None);
        while let Some(option) = self.option() {
            match option.as_str() {
                "PARENT" => frame.parent = Some(self.parsed(&option)?),
                "STARTED" => frame.started_ns = Some(self.parsed(&option)?),
                "DURATION" => frame.duration_ns = self.parsed(&option)?,
                "META" | "METADATA" => frame.metadata = self.bytes(&option)?,
                "SEVERITY" => frame.severity = self.parsed(&option)?,
                "ERROR" => frame.error = true,
                "BLOB" if !begins => blob = Some(self.bytes(&option)?),
                _ => return Err(unknown_option(&option)),
            }
        }
        Ok((frame, blob))
    }

    /// The arguments of MEM.PUT.
    ///
    /// # Errors
    /// `Invalid` for an unknown option or a malformed value.
    pub fn memory(&mut self) -> annals::Result<MemoryPut> {
        let (entry, identity) = (self.text("a memory")?, Identity::default());
        let mut brought = MemoryPut { entry, identity, namespace: String::new(), embedder: None };
        while let Some(option) = self.option() {
            match option.as_str() {
                "EMBED" => {}
                "NAMESPACE" => brought.namespace = self.text(&option)?,
                "EMBEDDER" => brought.embedder = Some(self.text(&option)?),
                "TENANT" => brought.identity.tenant = Some(self.text(&option)?),
                "PRINCIPAL" => brought.identity.principal = Some(self.text(&option)?),
                "CONVERSATION" => brought.identity.conversation = Some(self.text(&option)?),
                _ => return Err(unknown_option(&option)),
            }
        }
        Ok(brought)
    }

    /// A memory definition, and the name of its namespace.
    ///
    /// # Errors
    /// `Invalid` if NAMESPACE is missing, or for more words.
    pub fn definition(&mut self) -> annals::Result<(String, String)> {
        let definition = self.text("a definition")?;
        match self.option().as_deref() {
            Some("NAMESPACE") => {}
            other => return Err(unknown_option(other.unwrap_or_default())),
        }
        let namespace = self.text("NAMESPACE")?;
        self.end()?;
        Ok((definition, namespace))
    }

    /// The name of the namespace whose runs are indexed, and whether the index is made anew.
    ///
    /// # Errors
    /// `Invalid` for an unknown option, or if NAMESPACE is missing.
    pub fn index_runs(&mut self) -> annals::Result<(String, bool)> {
        let (mut namespace, mut rebuilds) = (None, false);
        while let Some(option) = self.option() {
            match option.as_str() {
                "NAMESPACE" if namespace.is_none() => namespace = Some(self.text("NAMESPACE")?),
                "REBUILD" if !rebuilds => rebuilds = true,
                _ => return Err(unknown_option(&option)),
            }
        }
        let namespace = namespace.ok_or_else(|| annals::Error::invalid("NAMESPACE is missing"))?;
        Ok((namespace, rebuilds))
    }

    /// A session's report as JSON, the name of its namespace, and the lifetime of its row in milliseconds.
    ///
    /// # Errors
    /// `Invalid` for an unknown option or a malformed value, or if NAMESPACE is missing.
    pub fn session(&mut self) -> annals::Result<(String, String, Option<u64>)> {
        let (report, mut namespace, mut keep_ms) = (self.text("a session's report")?, None, None);
        while let Some(option) = self.option() {
            match option.as_str() {
                "STRICT" => {}
                "NAMESPACE" => namespace = Some(self.text(&option)?),
                "TTL" => keep_ms = Some(self.parsed(&option)?),
                _ => return Err(unknown_option(&option)),
            }
        }
        let namespace = namespace.ok_or_else(|| annals::Error::invalid("NAMESPACE is missing"))?;
        Ok((report, namespace, keep_ms))
    }

    /// The options of a frame's end.
    ///
    /// # Errors
    /// `Invalid` for an unknown option or a malformed value.
    pub fn ending(&mut self) -> annals::Result<Ending> {
        let mut ending = Ending::default();
        while let Some(option) = self.option() {
            match option.as_str() {
                "DURATION" => ending.duration_ns = Some(self.parsed(&option)?),
                "META" | "METADATA" => ending.metadata = Some(self.bytes(&option)?),
                "SEVERITY" => ending.severity = self.parsed(&option)?,
                "ERROR" => ending.error = true,
                _ => return Err(unknown_option(&option)),
            }
        }
        Ok(ending)
    }
}

fn unknown_option(option: &str) -> annals::Error {
    invalid(format!("there is no option {option:?} here"))
}

/// Error kinds and their codes on the wire.
const KINDS: [(ErrorKind, &str); 11] = [
    (ErrorKind::Invalid, "INVALID"),
    (ErrorKind::NotFound, "NOTFOUND"),
    (ErrorKind::Conflict, "CONFLICT"),
    (ErrorKind::Locked, "LOCKED"),
    (ErrorKind::Damaged, "DAMAGED"),
    (ErrorKind::Unsupported, "UNSUPPORTED"),
    (ErrorKind::Diverged, "DIVERGED"),
    (ErrorKind::Gone, "GONE"),
    (ErrorKind::Unavailable, "UNAVAILABLE"),
    (ErrorKind::Poisoned, "POISONED"),
    (ErrorKind::Bug, "BUG"),
];

/// The code with which an error of this kind begins.
pub fn error_code(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("ERR", |(_, code)| *code)
}

/// Parses an error reply of the other process.
pub fn parse_error(error: &str) -> annals::Error {
    let (code, message) = error.split_once(' ').unwrap_or(("ERR", error));
    match KINDS.iter().find(|(_, known)| *known == code) {
        Some((kind, _)) => annals::Error::new(*kind, message),
        None if code == "ERR" => annals::Error::new(ErrorKind::Invalid, message),
        None => annals::Error::new(ErrorKind::Unavailable, error),
    }
}

#[cfg(test)]
mod tests {
    use annals::{Component, Frame, RunSpec, Severity, runs::Ending};

    use super::{CommandArguments, CommandWriter, RecorderCommand};

    fn received(words: &CommandWriter<'_>) -> CommandArguments {
        CommandArguments::of(words.as_slices().into_iter().map(<[u8]>::to_vec).collect()).1
    }

    #[test]
    fn runs_frames_and_endings_round_trip() {
        let plain = RunSpec::new("r");
        let full = RunSpec::new("r").agent("a").model("m").severity(Severity::Flagged).started_ns(7);
        let full = full.tag("TAG", "REPLACE").tag("k", "").metadata(b"{\"a\":1}").replace(true);
        for spec in [plain, full] {
            let back =
                received(&CommandWriter::new(RecorderCommand::BeginRun).run(&spec).unwrap()).run().unwrap();
            assert_eq!(format!("{back:?}"), format!("{spec:?}"));
        }
        let plain = Frame::new(Component::Llm, "in", "out");
        let mut full = Frame::new(Component::Other("http".to_owned()), vec![0, 255, 13, 10], "").parent(3);
        full = full.metadata("ERROR");
        (full.started_ns, full.duration_ns, full.severity, full.error) = (Some(1), 2, Severity::Debug, true);
        for frame in [plain, full] {
            let words = CommandWriter::new(RecorderCommand::AddFrame).word(frame.component.name().as_bytes());
            let words =
                words.word(super::bytes(&frame.input).unwrap()).word(super::bytes(&frame.output).unwrap());
            let (back, blob) = received(&words.frame(&frame)).frame(false).unwrap();
            assert_eq!((format!("{back:?}"), blob), (format!("{frame:?}"), None));
        }
        let full = Ending {
            error: true,
            severity: Severity::Escalated,
            metadata: Some(Vec::new()),
            duration_ns: Some(9),
        };
        for ending in [Ending::default(), full] {
            let back =
                received(&CommandWriter::new(RecorderCommand::EndFrame).ending(&ending)).ending().unwrap();
            assert_eq!(format!("{back:?}"), format!("{ending:?}"));
        }
    }

    #[test]
    fn invalid_words_are_refused() {
        let of = |words: &[&[u8]]| CommandArguments::of(words.iter().map(|word| word.to_vec()).collect()).1;
        assert!(of(&[b"RUN.BEGIN"]).run().is_err());
        assert!(of(&[b"RUN.BEGIN", b"\xff"]).run().is_err());
        assert!(of(&[b"RUN.BEGIN", b"r", b"STARTED"]).run().is_err());
        assert!(of(&[b"RUN.BEGIN", b"r", b"STARTED", b"-1"]).run().is_err());
        assert!(of(&[b"RUN.BEGIN", b"r", b"COLOUR", b"red"]).run().is_err());
        assert!(of(&[b"FRAME.BEGIN", b"llm", b"in", b"BLOB", b"b"]).frame(true).is_err());
        assert!(of(&[b"FRAME.ADD", b"llm", b"in"]).frame(false).is_err());
        assert!(of(&[b"FRAME.END", b"DURATION", b"99999999999999999999999"]).ending().is_err());
    }
}
