//! The recorder protocol: the commands with which a process records into a store that another process holds.
//! Both sides take the names from here, and the arguments from [`crate::words`].
//!
//! A daemon has commands of the same names with more arguments. `STORE.USE` selects the recorder protocol.

/// A command of the recorder protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecorderCommand {
    /// `PING`: +PONG.
    Ping,
    /// `STORE.USE namespace`: +OK; makes the namespace where there is none. First of all, and once.
    UseStore,
    /// `RUN.BEGIN name [AGENT a] [MODEL m] [SEVERITY s] [META json] [STARTED ns] [TAG key value]... [REPLACE]`: +OK.
    BeginRun,
    /// `RUN.RESUME name token`: takes up a run again that this recorder began, where its connection ended. A text with spaces: the
    /// number of its frames, its status, and of each frame that is not finished its number and the length of the output that the store holds.
    ResumeRun,
    /// `RUN.END run status`: the number of its frames, once all of it is on disk.
    EndRun,
    /// `RUN.REMEMBER run`: the id of what is remembered of a run that has just ended; nil where there is nothing.
    RememberRun,
    /// `FRAME.BEGIN run component input [OPTIONS]`: the frame's number; its output is still to come.
    BeginFrame,
    /// `FRAME.APPEND run seq bytes`: the length of the output so far, once the system has it; adds to an output that is still to come.
    AppendFrame,
    /// `FRAME.END run seq [ERROR] [SEVERITY s] [META json] [DURATION ns]`: the frame's number.
    EndFrame,
    /// `FRAME.ADD run component input output [BLOB name] [OPTIONS]`: the frame's number.
    AddFrame,
    /// `BLOB.APPEND name bytes`: +OK; streams a body under a name of the connection's own.
    AppendBlob,
    /// `BLOB.END name`: its length; a frame may hold it from then on.
    EndBlob,
    /// `MEM.PUT entry EMBED NAMESPACE namespace [EMBEDDER id] [TENANT t] [PRINCIPAL p] [CONVERSATION c]`: the id of the entry, once it is on disk; needs no STORE.USE.
    PutMemory,
    /// `MEM.DEFINE definition NAMESPACE namespace`: +OK; needs no STORE.USE.
    DefineMemory,
}

impl RecorderCommand {
    const NAMES: [(&'static str, Self); 14] = [
        ("PING", Self::Ping),
        ("STORE.USE", Self::UseStore),
        ("RUN.BEGIN", Self::BeginRun),
        ("RUN.RESUME", Self::ResumeRun),
        ("RUN.END", Self::EndRun),
        ("RUN.REMEMBER", Self::RememberRun),
        ("FRAME.BEGIN", Self::BeginFrame),
        ("FRAME.APPEND", Self::AppendFrame),
        ("FRAME.END", Self::EndFrame),
        ("FRAME.ADD", Self::AddFrame),
        ("BLOB.APPEND", Self::AppendBlob),
        ("BLOB.END", Self::EndBlob),
        ("MEM.PUT", Self::PutMemory),
        ("MEM.DEFINE", Self::DefineMemory),
    ];

    /// Its name, in capitals.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, command)| *command == self).map_or("", |(name, _)| name)
    }

    /// The command of this name, which is in capitals.
    pub fn find(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, command)| *command)
    }
}

#[cfg(test)]
mod tests {
    use super::RecorderCommand;

    #[test]
    fn every_command_is_found_by_its_name() {
        for (name, command) in RecorderCommand::NAMES {
            assert_eq!((command.name(), RecorderCommand::find(name)), (name, Some(command)));
        }
        assert_eq!(RecorderCommand::find("run.begin"), None);
    }
}
