//! The recorder protocol: the commands with which a process records into a store that another process holds.
//! Both sides take the names from here, and the arguments from [`crate::words`].
//!
//! A daemon has commands of the same names with more arguments. `STORE.USE` selects the recorder protocol.

/// A command of the recorder protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecorderCommand {
    /// `PING`: +PONG.
    Ping,
    /// `STORE.USE namespace`: +OK; creates the namespace if it does not exist. It must be the first command, and
    /// comes once.
    UseStore,
    /// `RUN.BEGIN name [AGENT a] [MODEL m] [SEVERITY s] [META json] [STARTED ns] [TAG key value]... [REPLACE]`: +OK.
    BeginRun,
    /// `RUN.FORK run@seq BEGIN | EDIT name OPTIONS`: +OK; begins a run that shares the frames of another one up to and
    /// with frame `seq` (BEGIN) or up to the frame before it (EDIT). The options are those of RUN.BEGIN without REPLACE.
    /// `RUN.FORK run@seq END NAMESPACE namespace NAME name OPTIONS`: +OK; the run ends at once; needs no `STORE.USE`.
    ForkRun,
    /// `RUN.RESUME name [token]`: resumes a run that this recorder began before its connection ended; without the
    /// token, a run of any recorder, if no connection records it. Replies with a text with spaces: the number of
    /// frames, the status, and for each unfinished frame its number and the length of its output in the store.
    ResumeRun,
    /// `RUN.SNAPSHOT run state`: stores a state after the last frame; replies with that frame's number.
    SnapshotRun,
    /// `RUN.END run status`: replies with the number of frames after all of the run is on disk.
    EndRun,
    /// `RUN.REMEMBER run`: stores the outcome of an ended run in memory; replies with the number of entries,
    /// which is 0 if the run has no answered question or is a what-if.
    RememberRun,
    /// `RUN.INDEX NAMESPACE namespace [REBUILD]`: indexes some frames for a search; replies with 1 if all are indexed,
    /// else 0; needs no `STORE.USE`.
    IndexRuns,
    /// `FRAME.BEGIN run component input [OPTIONS]`: replies with the frame's number; its output follows later.
    BeginFrame,
    /// `FRAME.APPEND run seq bytes`: adds to the output of an unfinished frame; replies with the length so far after
    /// the write.
    AppendFrame,
    /// `FRAME.END run seq [ERROR] [SEVERITY s] [META json] [DURATION ns]`: replies with the frame's number.
    EndFrame,
    /// `FRAME.ADD run component input output [BLOB name] [OPTIONS]`: replies with the frame's number.
    AddFrame,
    /// `BLOB.APPEND name bytes`: +OK; streams a body under a name that only this connection knows.
    AppendBlob,
    /// `BLOB.END name`: replies with the body's length; from now on a frame may use it.
    EndBlob,
    /// `MEM.PUT entry EMBED NAMESPACE namespace [EMBEDDER id] [TENANT t] [PRINCIPAL p] [CONVERSATION c]`: replies
    /// with the entry's id after it is on disk; needs no `STORE.USE`.
    PutMemory,
    /// `MEM.DEFINE definition NAMESPACE namespace`: +OK; needs no `STORE.USE`.
    DefineMemory,
    /// `DIAG.RECORD session STRICT NAMESPACE namespace [TTL ms]`: records a session; replies with the report as
    /// JSON after it is on disk; needs no `STORE.USE`.
    RecordSession,
    /// `KEYS.WRITE (PUT keyspace key value [EMBED embedder vector]... | DELETE keyspace key | NOTE run id metadata
    /// output | FORK run id fork | DROP run)...`: +OK after all of it is on disk. The changes of keys happen together.
    WriteKeys,
    /// `KEYS.GET keyspace key`: the value, or null.
    GetKey,
    /// `KEYS.SCAN keyspace from to count [REVERSE] [KEYS]`: at most `count` keys from `from` up to and without `to`,
    /// which is open if empty. Replies with 1 if there may be more, else 0; then keys and values in turn, or keys.
    ScanKeys,
}

impl RecorderCommand {
    const NAMES: [(&'static str, Self); 21] = [
        ("PING", Self::Ping),
        ("STORE.USE", Self::UseStore),
        ("RUN.BEGIN", Self::BeginRun),
        ("RUN.FORK", Self::ForkRun),
        ("RUN.RESUME", Self::ResumeRun),
        ("RUN.SNAPSHOT", Self::SnapshotRun),
        ("RUN.END", Self::EndRun),
        ("RUN.REMEMBER", Self::RememberRun),
        ("RUN.INDEX", Self::IndexRuns),
        ("FRAME.BEGIN", Self::BeginFrame),
        ("FRAME.APPEND", Self::AppendFrame),
        ("FRAME.END", Self::EndFrame),
        ("FRAME.ADD", Self::AddFrame),
        ("BLOB.APPEND", Self::AppendBlob),
        ("BLOB.END", Self::EndBlob),
        ("MEM.PUT", Self::PutMemory),
        ("MEM.DEFINE", Self::DefineMemory),
        ("DIAG.RECORD", Self::RecordSession),
        ("KEYS.WRITE", Self::WriteKeys),
        ("KEYS.GET", Self::GetKey),
        ("KEYS.SCAN", Self::ScanKeys),
    ];

    /// The name, in capitals.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, command)| *command == self).map_or("", |(name, _)| name)
    }

    /// Finds the command with this name, which is in capitals.
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
