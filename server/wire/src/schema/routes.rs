//! The routes: one table by which requests are matched, checked and described. A route is a command of the
//! daemon: it defines how the command's words are made from a path, a query and a body, and the form of its
//! response.

use super::schemas::ReplySchema;

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVerb {
    Get,
    Put,
    Post,
    Delete,
}

/// The type of a value in a query or in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// A text.
    Text,
    /// Any bytes: a text, or `{"base64": "..."}`.
    Bytes,
    /// JSON as it stands, or a text that holds it.
    Json,
    /// A non-negative integer.
    Number,
    /// An integer of at least 1.
    Count,
    /// A frame's number, or 0.
    Frame,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// `true` adds the word, `false` does not.
    Flag,
    /// Any number.
    Real,
    /// An array of strings; in a query, one string separated by commas.
    Names,
    /// An array of numbers, as f32 in little-endian bytes.
    Vector,
    /// A non-empty array: one word for each item, as raw JSON.
    JsonArray,
    /// An object of strings: an option name, a key and a value for each member.
    Texts,
    /// An object of arrays of numbers: an option name, a key and the numbers as f32 in little-endian bytes
    /// for each member.
    Vectors,
}

impl MemberKind {
    /// Whether it is written in digits.
    pub fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Count | Self::Frame)
    }
}

const ANY_STATUS: MemberKind = MemberKind::OneOf(&["open", "ok", "failed", "abandoned"]);
const LAST_STATUS: MemberKind = MemberKind::OneOf(&["ok", "failed", "abandoned"]);
/// Severities of a flag.
const RAISED: MemberKind = MemberKind::OneOf(&["flagged", "escalated"]);
const SEVERITY: MemberKind = MemberKind::OneOf(&["debug", "normal", "flagged", "escalated"]);
const TIERS: WordSource = Opt("tiers", "TIERS", Names);
const PROJECTION: MemberKind = MemberKind::OneOf(&["decisions", "commits", "narrative", "full"]);
/// The identity's parts, in JSON and in the query.
const TENANT: WordSource = Opt("tenant", "TENANT", Text);
const PRINCIPAL: WordSource = Opt("principal", "PRINCIPAL", Text);
const CONVERSATION: WordSource = Opt("conversation", "CONVERSATION", Text);
const OF_TENANT: WordSource = Query("tenant", "TENANT", Text);
const OF_PRINCIPAL: WordSource = Query("principal", "PRINCIPAL", Text);
const OF_CONVERSATION: WordSource = Query("conversation", "CONVERSATION", Text);
const OF_ORG: WordSource = Query("org", "ORG", Text);
const OF_PROJECT: WordSource = Query("project", "PROJECT", Text);
const SINCE_MS: WordSource = Query("since", "SINCE", Number);
const DRAWS: MemberKind = MemberKind::OneOf(&["clock", "uuid", "random", "fill"]);

/// The source of a command's words, in order.
#[derive(Debug, Clone, Copy)]
pub enum WordSource {
    /// A part of the path.
    Path(&'static str),
    /// A part of the path and a number of the JSON, as `part@number`.
    PathAt(&'static str, &'static str),
    /// A required member of the JSON.
    Field(&'static str, MemberKind),
    /// An optional member of the JSON, after an option name.
    Option(&'static str, &'static str, MemberKind),
    /// An optional member of the JSON, without an option name.
    OptionalValue(&'static str, MemberKind),
    /// An optional query parameter, after an option name.
    Query(&'static str, &'static str, MemberKind),
    /// A required query parameter.
    RequiredQuery(&'static str, MemberKind),
    /// A constant word.
    Constant(&'static str),
    /// The raw body.
    Body,
}

/// The response of a route without errors.
#[derive(Debug, Clone, Copy)]
pub enum ReplyShape {
    /// The reply as JSON; a null is `null`.
    Json(ReplySchema),
    /// The reply as JSON; a null is 404.
    Found(ReplySchema),
    /// The reply as JSON under this name.
    Named(&'static str, ReplySchema),
    /// A page: a cursor, and the items under this name.
    Page(&'static str, ReplySchema),
    /// The bytes of the reply; a null is 404.
    Bytes,
    /// Nothing: 204; a reply of zero is 404.
    Nothing,
}

/// A route.
#[derive(Debug, Clone, Copy)]
pub struct HttpRoute {
    pub verb: HttpVerb,
    pub path: &'static str,
    /// Its operation id in the API description.
    pub id: &'static str,
    pub summary: &'static str,
    pub command: &'static str,
    pub words: &'static [WordSource],
    pub gives: ReplyShape,
    /// 200, or 201 if the route creates something.
    pub status: u16,
}

impl HttpRoute {
    const fn new(verb: HttpVerb, path: &'static str, id: &'static str, command: &'static str) -> Self {
        Self { verb, path, id, summary: "", command, words: &[], gives: ReplyShape::Nothing, status: 200 }
    }

    const fn words(self, words: &'static [WordSource]) -> Self {
        Self { words, ..self }
    }

    const fn gives(self, gives: ReplyShape) -> Self {
        Self { gives, ..self }
    }

    const fn creates(self) -> Self {
        Self { status: 201, ..self }
    }

    const fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }
}

const fn get(path: &'static str, id: &'static str, command: &'static str) -> HttpRoute {
    HttpRoute::new(HttpVerb::Get, path, id, command)
}

const fn put(path: &'static str, id: &'static str, command: &'static str) -> HttpRoute {
    HttpRoute::new(HttpVerb::Put, path, id, command)
}

const fn post(path: &'static str, id: &'static str, command: &'static str) -> HttpRoute {
    HttpRoute::new(HttpVerb::Post, path, id, command)
}

const fn delete(path: &'static str, id: &'static str, command: &'static str) -> HttpRoute {
    HttpRoute::new(HttpVerb::Delete, path, id, command)
}

use MemberKind::{
    Bytes, Count, Flag, Frame, Json, JsonArray, Names, Number, Real, Text, Texts, Vector, Vectors,
};
use WordSource::{Body, Constant, Field, Option as Opt, OptionalValue, Path, PathAt, Query, RequiredQuery};

/// All routes except those of `super::bodies`, which stream.
pub const ROUTES: &[HttpRoute] = &[
    get("/v1/runs", "listRuns", "run.list")
        .words(&[
            Query("status", "STATUS", ANY_STATUS),
            Query("severity", "SEVERITY", SEVERITY),
            Query("agent", "AGENT", Text),
            Query("model", "MODEL", Text),
            Query("tag", "TAG", Text),
            Query("since", "SINCE", Number),
            Query("until", "UNTIL", Number),
            Query("order", "ORDER", MemberKind::OneOf(&["oldest", "newest"])),
            Query("count", "COUNT", Number),
            Query("from", "FROM", Number),
            Query("with", "WITH", MemberKind::OneOf(&["usage"])),
        ])
        .gives(ReplyShape::Page("runs", ReplySchema::Runs))
        .summary(
            "Runs that match, oldest first, and a cursor to continue; the cursor is 0 at the end. \
             A page may be short or empty before the end.",
        ),
    get("/v1/search", "searchRuns", "run.search")
        .words(&[
            RequiredQuery("q", Text),
            Query("by", "BY", MemberKind::OneOf(&["words", "meaning"])),
            Query("count", "COUNT", Count),
        ])
        .gives(ReplyShape::Json(ReplySchema::SearchAnswer))
        .summary(
            "The frames whose texts hold what a question asks for, the best first. `is_whole` is false while frames are \
             still to be indexed: ask again. With `by=meaning`, the runs with a question near to this one, in the \
             memories of all tenants.",
        ),
    post("/v1/runs", "beginRun", "run.begin")
        .words(&[
            Opt("name", "NAME", Text),
            Opt("agent", "AGENT", Text),
            Opt("model", "MODEL", Text),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("metadata", "METADATA", Json),
            Opt("started_ns", "STARTED", Number),
            Opt("tags", "TAG", Texts),
        ])
        .gives(ReplyShape::Json(ReplySchema::Begun))
        .creates()
        .summary("Begins a run. Without a name, the daemon chooses one."),
    get("/v1/runs/{run}", "getRun", "run.get")
        .words(&[Path("run")])
        .gives(ReplyShape::Json(ReplySchema::Run))
        .summary("The properties of a run."),
    get("/v1/runs/{run}/failure", "runFailure", "run.failure")
        .words(&[Path("run")])
        .gives(ReplyShape::Json(ReplySchema::ObjectOrNull))
        .summary("The frame of a run to read first, and why the run failed; null if the run has no frames."),
    get("/v1/runs/{run}/suspect", "suspectSteps", "run.suspect")
        .words(&[Path("run")])
        .gives(ReplyShape::Json(ReplySchema::Array))
        .summary("The steps of a run, the most suspect first: a heuristic from the record alone."),
    get("/v1/runs/{run}/blame", "runBlame", "run.blame")
        .words(&[Path("run")])
        .gives(ReplyShape::Json(ReplySchema::ObjectOrNull))
        .summary("The stored blame of a run: its rows, best first; null if there is none."),
    get("/v1/runs/{run}/diff", "diffRuns", "run.diff")
        .words(&[Path("run"), RequiredQuery("with", Text)])
        .gives(ReplyShape::Json(ReplySchema::Object))
        .summary("The frames of two runs in pairs: the same, changed, or in one of them only."),
    get("/v1/runs/{run}/forks", "runForks", "run.forks")
        .words(&[Path("run")])
        .gives(ReplyShape::Named("runs", ReplySchema::Runs))
        .summary("The first origin of a run, and all living forks that come from it, parents before forks."),
    post("/v1/runs/{run}/end", "endRun", "run.end")
        .words(&[Path("run"), OptionalValue("status", LAST_STATUS)])
        .summary("Ends a run that was begun here; the default status is `ok`."),
    post("/v1/runs/{run}/fork", "forkRun", "run.fork")
        .words(&[
            PathAt("run", "at"),
            Opt("edit", "EDIT", Flag),
            Opt("name", "NAME", Text),
            Opt("agent", "AGENT", Text),
            Opt("model", "MODEL", Text),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("metadata", "METADATA", Json),
            Opt("started_ns", "STARTED", Number),
            Opt("tags", "TAG", Texts),
        ])
        .gives(ReplyShape::Json(ReplySchema::Begun))
        .creates()
        .summary(
            "Begins a run that shares another run's frames up to this one; with `edit`, this \
             frame is excluded.",
        ),
    post("/v1/runs/{run}/verify", "verifyRun", "run.verify")
        .words(&[Path("run")])
        .gives(ReplyShape::Json(ReplySchema::Verified))
        .summary("Reads every frame of a run and verifies its hashes and links."),
    post("/v1/runs/{run}/pin", "pinRun", "run.pin")
        .words(&[Path("run"), Field("why", Text)])
        .summary("Keeps a run regardless of any policy, until it is unpinned."),
    delete("/v1/runs/{run}/pin", "unpinRun", "run.unpin")
        .words(&[Path("run")])
        .summary("Removes the pin of a run."),
    post("/v1/runs/{run}/flag", "flagRun", "run.flag")
        .words(&[Path("run"), Field("why", Text), Opt("severity", "SEVERITY", RAISED)])
        .summary("Flags a run, open or ended: lists and retention count it as at least this severe."),
    delete("/v1/runs/{run}/flag", "unflagRun", "run.unflag")
        .words(&[Path("run")])
        .summary("Removes the flag of a run. Its recorded severity stays."),
    post("/v1/runs/{run}/drop", "dropRun", "run.drop")
        .words(&[Path("run"), Field("why", Text), Constant("COMPACT")])
        .gives(ReplyShape::Bytes)
        .summary(
            "Drops a run now and rewrites the log files that hold its bytes; returns a report as \
             JSON, with what still holds bytes of it. The ledger keeps the reason.",
        ),
    get("/v1/runs/{run}/frames", "tailRun", "run.tail")
        .words(&[
            Path("run"),
            Query("from", "FROM", Frame),
            Query("count", "COUNT", Number),
            Query("wait_ms", "BLOCK", Number),
        ])
        .gives(ReplyShape::Json(ReplySchema::Frames))
        .summary(
            "Ended frames of a run, from `from` on. If there are none: an empty array if the run \
             has ended, else null, after waiting up to `wait_ms`.",
        ),
    post("/v1/runs/{run}/frames", "addFrame", "frame.add")
        .words(&[
            Path("run"),
            Field("component", Text),
            Field("request", Bytes),
            Field("response", Bytes),
            Opt("metadata", "METADATA", Json),
            Opt("parent", "PARENT", Frame),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("error", "ERROR", Flag),
            Opt("started_ns", "STARTED", Number),
            Opt("duration_ns", "DURATION", Number),
        ])
        .gives(ReplyShape::Named("seq", ReplySchema::Number))
        .creates()
        .summary("Adds a frame to a run and returns its number."),
    post("/v1/runs/{run}/frames/begin", "beginFrame", "frame.begin")
        .words(&[
            Path("run"),
            Field("component", Text),
            Field("request", Bytes),
            Opt("metadata", "METADATA", Json),
            Opt("parent", "PARENT", Frame),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("started_ns", "STARTED", Number),
        ])
        .gives(ReplyShape::Named("seq", ReplySchema::Number))
        .creates()
        .summary("Begins a frame whose response is still to come."),
    get("/v1/runs/{run}/frames/{seq}", "getFrame", "frame.get")
        .words(&[Path("run"), Path("seq")])
        .gives(ReplyShape::Json(ReplySchema::Frame))
        .summary("A frame of a run."),
    get("/v1/runs/{run}/frames/{seq}/view", "viewFrame", "run.view")
        .words(&[Path("run"), Path("seq"), Query("all", "ALL", Flag), Query("text_max", "TEXTMAX", Count)])
        .gives(ReplyShape::Json(ReplySchema::FrameView))
        .summary(
            "A frame as a person reads it: new messages, answer, tool calls. All texts are plain text. With \
             `all=true`, every message of the request.",
        ),
    get("/v1/runs/{run}/timeline", "timeline", "run.timeline")
        .words(&[Path("run"), Query("from", "FROM", Count), Query("limit", "LIMIT", Count)])
        .gives(ReplyShape::Json(ReplySchema::Timeline))
        .summary("The frames of a run without their bodies, from `from` on, and where to continue."),
    post("/v1/runs/{run}/frames/{seq}/end", "endFrame", "frame.end")
        .words(&[
            Path("run"),
            Path("seq"),
            Opt("error", "ERROR", Flag),
            Opt("metadata", "METADATA", Json),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("duration_ns", "DURATION", Number),
        ])
        .summary("Ends an open frame. Metadata replaces the metadata that it began with."),
    post("/v1/runs/{run}/draws", "draw", "nondet.draw")
        .words(&[Path("run"), Field("kind", DRAWS), OptionalValue("length", Number)])
        .gives(ReplyShape::Named("drawn", ReplySchema::Drawn))
        .creates()
        .summary(
            "Draws for a run that is being recorded: `clock`, `uuid`, `random` or `fill` \
             (`length` bytes).",
        ),
    post("/v1/runs/{run}/snapshots", "putSnapshot", "snap.put")
        .words(&[Path("run"), Field("state", Bytes), Opt("embeddings", "EMBEDDING", Vectors)])
        .gives(ReplyShape::Named("seq", ReplySchema::Number))
        .creates()
        .summary("Stores the agent's state after the last frame of a run and returns the frame's number."),
    get("/v1/runs/{run}/snapshots/{seq}", "getSnapshot", "snap.get")
        .words(&[Path("run"), Path("seq")])
        .gives(ReplyShape::Found(ReplySchema::Snapshot))
        .summary("The state stored after this frame."),
    get("/v1/runs/{run}/state", "stateAt", "snap.at")
        .words(&[Path("run"), RequiredQuery("at", Frame)])
        .gives(ReplyShape::Found(ReplySchema::Snapshot))
        .summary("The newest state stored after this frame or an earlier one."),
    get("/v1/databases/{database}/keys/{key}", "getKey", "get")
        .words(&[Path("key")])
        .gives(ReplyShape::Bytes)
        .summary("The value of a key."),
    put("/v1/databases/{database}/keys/{key}", "setKey", "set")
        .words(&[Path("key"), Body, Query("px", "PX", Count)])
        .summary("Sets the value of a key; with `px`, it expires after so many milliseconds."),
    delete("/v1/databases/{database}/keys/{key}", "deleteKey", "del")
        .words(&[Path("key")])
        .summary("Deletes a key."),
    get("/v1/databases/{database}/keys/{key}/at", "keyAt", "kv.at")
        .words(&[Path("key"), RequiredQuery("seqno", Number)])
        .gives(ReplyShape::Bytes)
        .summary("The value of a key after the record with this number."),
    get("/v1/databases/{database}/keys/{key}/history", "keyHistory", "kv.history")
        .words(&[Path("key"), Query("count", "COUNT", Number)])
        .gives(ReplyShape::Json(ReplySchema::Versions))
        .summary("The kept versions of a key, newest first."),
    post("/v1/databases/{database}/keys/{key}/forget", "forgetKey", "kv.forget")
        .words(&[Path("key"), Field("why", Text)])
        .gives(ReplyShape::Bytes)
        .summary(
            "Deletes a key with all its versions and rewrites the files that hold its bytes; returns a report \
             as JSON, with what still holds bytes of it.",
        ),
    post("/v1/blobs/{id}/forget", "forgetBlob", "blob.forget")
        .words(&[Path("id"), Field("why", Text)])
        .gives(ReplyShape::Bytes)
        .summary("Deletes a stored blob and rewrites the files that hold its bytes; a report as for keys."),
    get("/v1/databases/{database}/keys", "scanKeys", "scan")
        .words(&[
            RequiredQuery("cursor", Number),
            Query("match", "MATCH", Text),
            Query("count", "COUNT", Count),
        ])
        .gives(ReplyShape::Page("keys", ReplySchema::Keys))
        .summary("Keys of a database, and a cursor to continue, which is 0 at the end. Begin with 0."),
    post("/v1/memory/entries", "putMemories", "mem.put")
        .words(&[
            Field("entries", JsonArray),
            Opt("embed", "EMBED", Flag),
            Opt("embedder", "EMBEDDER", Text),
            TENANT,
            PRINCIPAL,
            CONVERSATION,
        ])
        .gives(ReplyShape::Named("ids", ReplySchema::Texts))
        .summary(
            "Stores entries (an id and a value, as agentfootprint's `MemoryEntry`), all or none, \
             and replaces entries with the same ids. With `embed`, an entry without a \
             vector gets one from its query by this daemon's embedder, and a bare run snapshot \
             becomes the conversation's next entry; if there is a snapshot among them, each is stored \
             by itself. `embedder` names the embedder that is required.",
        ),
    get("/v1/memory/entries", "listMemories", "mem.list")
        .words(&[
            Query("cursor", "CURSOR", Number),
            Query("limit", "LIMIT", Count),
            Query("tiers", "TIERS", Names),
            OF_TENANT,
            OF_PRINCIPAL,
            OF_CONVERSATION,
        ])
        .gives(ReplyShape::Page("entries", ReplySchema::Memories))
        .summary(
            "Entries of a conversation, most recently changed first, and a cursor to continue; \
             the cursor is 0 at the end.",
        ),
    get("/v1/memory/entry", "getMemory", "mem.get")
        .words(&[RequiredQuery("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION])
        .gives(ReplyShape::Found(ReplySchema::Memory))
        .summary("An entry; the access is counted."),
    delete("/v1/memory/entry", "deleteMemory", "mem.delete")
        .words(&[RequiredQuery("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION])
        .summary("Deletes an entry and its feedback, if it exists."),
    post("/v1/memory/putif", "putMemoryIf", "mem.putif")
        .words(&[Field("entry", Json), Field("version", Number), TENANT, PRINCIPAL, CONVERSATION])
        .gives(ReplyShape::Json(ReplySchema::Applied))
        .summary(
            "Stores an entry if the existing one has this version; version 0 requires that there \
             is none. Returns the existing `version` if it differs.",
        ),
    post("/v1/memory/search", "searchMemory", "mem.search")
        .words(&[
            Opt("vector", "FP32", Vector),
            Opt("question", "QUESTION", Text),
            Opt("memory", "MEMORY", Text),
            Opt("embedder", "EMBEDDER", Text),
            Opt("k", "K", Count),
            Opt("min_score", "MINSCORE", Real),
            TIERS,
            Opt("across", "ACROSS", Flag),
            Opt("projection", "PROJECTION", PROJECTION),
            Opt("budget", "BUDGET", Number),
            Opt("session", "SESSION", Text),
            TENANT,
            PRINCIPAL,
            CONVERSATION,
        ])
        .gives(ReplyShape::Json(ReplySchema::Hits))
        .summary(
            "The entries nearest to a vector or a question that reach the minimum score. `across` \
             includes all of the tenant's conversations; `projection` or `budget` (tokens) adds \
             the text for a model; `memory` takes missing options from the definition with that \
             id; `session` logs the candidates and what the session is given.",
        ),
    post("/v1/memory/definitions", "defineMemory", "mem.define").words(&[Field("definition", Json)]).summary(
        "Stores a memory definition under its id: `description`, `type`, `strategy` (`kind`, \
             `topK`, `threshold`, `embedder`), `projection`, `acrossConversations`.",
    ),
    get("/v1/memory/definitions", "memoryDefinitions", "mem.definitions")
        .gives(ReplyShape::Named("definitions", ReplySchema::Definitions))
        .summary("All memory definitions, ordered by id."),
    delete("/v1/memory/definition", "undefineMemory", "mem.undefine")
        .words(&[RequiredQuery("id", Text)])
        .summary("Deletes a memory definition; entries stay."),
    post("/v1/memory/feedback", "rateMemory", "mem.feedback")
        .words(&[
            Field("id", Text),
            Constant("VALUE"),
            Field("usefulness", Real),
            TENANT,
            PRINCIPAL,
            CONVERSATION,
        ])
        .summary("Rates the usefulness of an entry from -1 to 1."),
    get("/v1/memory/feedback", "memoryFeedback", "mem.feedback")
        .words(&[RequiredQuery("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION])
        .gives(ReplyShape::Json(ReplySchema::Feedback))
        .summary("The ratings of an entry; null if there are none."),
    post("/v1/memory/seen", "recordSignature", "mem.seen")
        .words(&[Field("signature", Text), Constant("RECORD"), TENANT, PRINCIPAL, CONVERSATION])
        .summary("Records a signature."),
    get("/v1/memory/seen", "seenSignature", "mem.seen")
        .words(&[RequiredQuery("signature", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION])
        .gives(ReplyShape::Named("seen", ReplySchema::Boolean))
        .summary("Whether a signature was recorded."),
    post("/v1/memory/forget", "forgetMemory", "mem.forget")
        .words(&[TENANT, PRINCIPAL, CONVERSATION])
        .gives(ReplyShape::Named("forgotten", ReplySchema::Number))
        .summary(
            "Deletes a whole conversation: entries, feedback, signatures. Returns the number of \
             entries.",
        ),
    post("/v1/diagnostics/sessions", "recordSession", "diag.record")
        .words(&[
            Field("session", Json),
            Opt("ttl_ms", "TTL", Number),
            Opt("strict", "STRICT", Flag),
            Opt("dry_run", "DRYRUN", Flag),
        ])
        .gives(ReplyShape::Json(ReplySchema::SessionReport))
        .summary(
            "Records how a session ended, and returns the report. A failure stands in `failures`, and the \
             status is 200; with `strict` it is an error. `dry_run` only returns the category.",
        ),
    get("/v1/diagnostics/session", "getSession", "diag.get")
        .words(&[RequiredQuery("id", Text)])
        .gives(ReplyShape::Found(ReplySchema::Object))
        .summary("The row of a session."),
    post("/v1/diagnostics/injections", "logInjection", "diag.inject")
        .words(&[Field("injection", Json)])
        .summary("Logs what a session was given."),
    get("/v1/diagnostics/misleading", "misleadingObservations", "diag.misleading")
        .words(&[OF_ORG, OF_PROJECT, SINCE_MS])
        .gives(ReplyShape::Named("observations", ReplySchema::Texts))
        .summary(
            "The observations that at least three failed sessions and no accepted one were given. `since` is \
             in milliseconds since 1970.",
        ),
    get("/v1/diagnostics/distribution", "failureCategories", "diag.distribution")
        .words(&[OF_ORG, OF_PROJECT, SINCE_MS])
        .gives(ReplyShape::Json(ReplySchema::CategoryCounts))
        .summary("The number of failed sessions of each category, also those with 0."),
    get("/v1/diagnostics/weight", "observationWeight", "diag.weight")
        .words(&[Constant("OBSERVATION"), RequiredQuery("observation", Text)])
        .gives(ReplyShape::Named("weight", ReplySchema::Weight))
        .summary("The weight of an observation: 1 before its first session."),
    get("/v1/diagnostics/history", "weightHistory", "diag.history")
        .words(&[Constant("OBSERVATION"), RequiredQuery("observation", Text)])
        .gives(ReplyShape::Named("changes", ReplySchema::Array))
        .summary("The changes of an observation's weight, oldest first."),
    get("/v1/diagnostics/audit", "diagnosticsAudit", "diag.audit")
        .words(&[Query("from", "FROM", Number), Query("count", "COUNT", Count)])
        .gives(ReplyShape::Named("events", ReplySchema::Array))
        .summary("Audit events, oldest first, from event `from` on."),
    get("/v1/diagnostics/retrievals", "sessionRetrievals", "diag.retrievals")
        .words(&[RequiredQuery("session", Text)])
        .gives(ReplyShape::Named("candidates", ReplySchema::Array))
        .summary("The candidates of a session's searches: relevance, weight and both ranks of each."),
    post("/v1/diagnostics/weighting", "setWeighting", "diag.weighting")
        .words(&[Field("state", MemberKind::OneOf(&["on", "off"])), Opt("org", "ORG", Text)])
        .gives(ReplyShape::Named("enabled", ReplySchema::Boolean))
        .summary("Switches ranking by weight on or off, for an organisation or for all."),
    get("/v1/diagnostics/weighting", "weighting", "diag.weighting")
        .words(&[OF_ORG])
        .gives(ReplyShape::Named("enabled", ReplySchema::Boolean))
        .summary("Whether weights order searches."),
    get("/v1/store/stats", "stats", "store.stats")
        .gives(ReplyShape::Json(ReplySchema::Stats))
        .summary("What the store holds."),
    get("/v1/store/sizes", "storeSizes", "store.sizes")
        .gives(ReplyShape::Named("sizes", ReplySchema::Array))
        .summary("What the store held, measured once a day while a daemon ran, oldest first."),
    post("/v1/store/verify", "verifyStore", "store.verify")
        .gives(ReplyShape::Json(ReplySchema::Object))
        .summary("Reads every file and every run, and verifies all checksums, hashes and links."),
    get("/v1/store/checkpoint", "checkpoint", "store.checkpoint")
        .gives(ReplyShape::Bytes)
        .summary("The ledger's checkpoint, as JSON."),
    post("/v1/store/retain", "retain", "store.retain")
        .words(&[Opt("policy", "POLICY", Text), Opt("at_ns", "AT", Number), Opt("dry_run", "DRYRUN", Flag)])
        .gives(ReplyShape::Bytes)
        .summary(
            "Drops the runs that a policy does not keep; without `policy`, by the built-in one. \
             Returns what each rule keeps and drops as JSON.",
        ),
    post("/v1/store/backup", "backup", "store.backup")
        .words(&[Field("path", Text), Opt("copy", "COPY", Flag)])
        .gives(ReplyShape::Json(ReplySchema::Object))
        .summary("Copies the store. Needs a connection by a Unix socket; refused over HTTP."),
    post("/v1/store/compact", "compact", "store.compact")
        .words(&[
            Opt("dry_run", "DRYRUN", Flag),
            Opt("now", "NOW", Flag),
            Opt("recompress", "RECOMPRESS", Flag),
            Opt("bytes_per_second_max", "RATE", Number),
        ])
        .gives(ReplyShape::Bytes)
        .summary("Reclaims the disk space of deleted data; returns a report as JSON."),
    get("/v1/tokens", "listTokens", "token.list")
        .gives(ReplyShape::Json(ReplySchema::Tokens))
        .summary("The tokens, without their texts."),
    get("/v1/slowlog", "slowlog", "slowlog")
        .words(&[Constant("GET")])
        .gives(ReplyShape::Json(ReplySchema::Array))
        .summary("The latest slow commands."),
];
