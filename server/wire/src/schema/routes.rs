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

const fn route(
    verb: HttpVerb,
    path: &'static str,
    id: &'static str,
    command: &'static str,
    words: &'static [WordSource],
    gives: ReplyShape,
    summary: &'static str,
) -> HttpRoute {
    HttpRoute { verb, path, id, summary, command, words, gives, status: 200 }
}

const fn creates(route: HttpRoute) -> HttpRoute {
    HttpRoute { status: 201, ..route }
}

use HttpVerb::{Delete, Get, Post, Put};
use MemberKind::{
    Bytes, Count, Flag, Frame, Json, JsonArray, Names, Number, Real, Text, Texts, Vector, Vectors,
};
use WordSource::{Body, Constant, Field, Option as Opt, OptionalValue, Path, PathAt, Query, RequiredQuery};

/// All routes except those of `super::bodies`, which stream.
pub const ROUTES: &[HttpRoute] = &[
    route(
        Get,
        "/v1/runs",
        "listRuns",
        "run.list",
        &[
            Query("status", "STATUS", ANY_STATUS),
            Query("count", "COUNT", Number),
            Query("from", "FROM", Number),
        ],
        ReplyShape::Page("runs", ReplySchema::Runs),
        "Runs, oldest first, and a cursor to continue; the cursor is 0 at the end.",
    ),
    creates(route(
        Post,
        "/v1/runs",
        "beginRun",
        "run.begin",
        &[
            Opt("name", "NAME", Text),
            Opt("agent", "AGENT", Text),
            Opt("model", "MODEL", Text),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("metadata", "METADATA", Json),
            Opt("started_ns", "STARTED", Number),
            Opt("tags", "TAG", Texts),
        ],
        ReplyShape::Json(ReplySchema::Begun),
        "Begins a run. Without a name, the daemon chooses one.",
    )),
    route(
        Get,
        "/v1/runs/{run}",
        "getRun",
        "run.get",
        &[Path("run")],
        ReplyShape::Json(ReplySchema::Run),
        "The properties of a run.",
    ),
    route(
        Post,
        "/v1/runs/{run}/end",
        "endRun",
        "run.end",
        &[Path("run"), OptionalValue("status", LAST_STATUS)],
        ReplyShape::Nothing,
        "Ends a run that was begun here; the default status is `ok`.",
    ),
    creates(route(
        Post,
        "/v1/runs/{run}/fork",
        "forkRun",
        "run.fork",
        &[
            PathAt("run", "at"),
            Opt("edit", "EDIT", Flag),
            Opt("name", "NAME", Text),
            Opt("agent", "AGENT", Text),
            Opt("model", "MODEL", Text),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("metadata", "METADATA", Json),
            Opt("started_ns", "STARTED", Number),
            Opt("tags", "TAG", Texts),
        ],
        ReplyShape::Json(ReplySchema::Begun),
        "Begins a run that shares another run's frames up to this one; with `edit`, this frame is excluded.",
    )),
    route(
        Post,
        "/v1/runs/{run}/verify",
        "verifyRun",
        "run.verify",
        &[Path("run")],
        ReplyShape::Json(ReplySchema::Verified),
        "Reads every frame of a run and verifies its hashes and links.",
    ),
    route(
        Post,
        "/v1/runs/{run}/pin",
        "pinRun",
        "run.pin",
        &[Path("run"), Field("why", Text)],
        ReplyShape::Nothing,
        "Keeps a run regardless of any policy, until it is unpinned.",
    ),
    route(
        Delete,
        "/v1/runs/{run}/pin",
        "unpinRun",
        "run.unpin",
        &[Path("run")],
        ReplyShape::Nothing,
        "Removes the pin of a run.",
    ),
    route(
        Post,
        "/v1/runs/{run}/drop",
        "dropRun",
        "run.drop",
        &[Path("run"), Field("why", Text), Constant("COMPACT")],
        ReplyShape::Bytes,
        "Drops a run now and rewrites the log files that hold its bytes; returns a report as JSON. The ledger keeps the reason.",
    ),
    route(
        Get,
        "/v1/runs/{run}/frames",
        "tailRun",
        "run.tail",
        &[
            Path("run"),
            Query("from", "FROM", Frame),
            Query("count", "COUNT", Number),
            Query("wait_ms", "BLOCK", Number),
        ],
        ReplyShape::Json(ReplySchema::Frames),
        "Ended frames of a run, from `from` on. If there are none: an empty array if the run has ended, else null, after waiting up to `wait_ms`.",
    ),
    creates(route(
        Post,
        "/v1/runs/{run}/frames",
        "addFrame",
        "frame.add",
        &[
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
        ],
        ReplyShape::Named("seq", ReplySchema::Number),
        "Adds a frame to a run and returns its number.",
    )),
    creates(route(
        Post,
        "/v1/runs/{run}/frames/begin",
        "beginFrame",
        "frame.begin",
        &[
            Path("run"),
            Field("component", Text),
            Field("request", Bytes),
            Opt("metadata", "METADATA", Json),
            Opt("parent", "PARENT", Frame),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("started_ns", "STARTED", Number),
        ],
        ReplyShape::Named("seq", ReplySchema::Number),
        "Begins a frame whose response is still to come.",
    )),
    route(
        Get,
        "/v1/runs/{run}/frames/{seq}",
        "getFrame",
        "frame.get",
        &[Path("run"), Path("seq")],
        ReplyShape::Json(ReplySchema::Frame),
        "A frame of a run.",
    ),
    route(
        Post,
        "/v1/runs/{run}/frames/{seq}/end",
        "endFrame",
        "frame.end",
        &[
            Path("run"),
            Path("seq"),
            Opt("error", "ERROR", Flag),
            Opt("metadata", "METADATA", Json),
            Opt("severity", "SEVERITY", SEVERITY),
            Opt("duration_ns", "DURATION", Number),
        ],
        ReplyShape::Nothing,
        "Ends an open frame. Metadata replaces the metadata that it began with.",
    ),
    creates(route(
        Post,
        "/v1/runs/{run}/draws",
        "draw",
        "nondet.draw",
        &[Path("run"), Field("kind", DRAWS), OptionalValue("length", Number)],
        ReplyShape::Named("drawn", ReplySchema::Drawn),
        "Draws for a run that is being recorded: `clock`, `uuid`, `random` or `fill` (`length` bytes).",
    )),
    creates(route(
        Post,
        "/v1/runs/{run}/snapshots",
        "putSnapshot",
        "snap.put",
        &[Path("run"), Field("state", Bytes), Opt("embeddings", "EMBEDDING", Vectors)],
        ReplyShape::Named("seq", ReplySchema::Number),
        "Stores the agent's state after the last frame of a run and returns the frame's number.",
    )),
    route(
        Get,
        "/v1/runs/{run}/snapshots/{seq}",
        "getSnapshot",
        "snap.get",
        &[Path("run"), Path("seq")],
        ReplyShape::Found(ReplySchema::Snapshot),
        "The state stored after this frame.",
    ),
    route(
        Get,
        "/v1/runs/{run}/state",
        "stateAt",
        "snap.at",
        &[Path("run"), RequiredQuery("at", Frame)],
        ReplyShape::Found(ReplySchema::Snapshot),
        "The newest state stored after this frame or an earlier one.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}",
        "getKey",
        "get",
        &[Path("key")],
        ReplyShape::Bytes,
        "The value of a key.",
    ),
    route(
        Put,
        "/v1/databases/{database}/keys/{key}",
        "setKey",
        "set",
        &[Path("key"), Body, Query("px", "PX", Count)],
        ReplyShape::Nothing,
        "Sets the value of a key; with `px`, it expires after so many milliseconds.",
    ),
    route(
        Delete,
        "/v1/databases/{database}/keys/{key}",
        "deleteKey",
        "del",
        &[Path("key")],
        ReplyShape::Nothing,
        "Deletes a key.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}/at",
        "keyAt",
        "kv.at",
        &[Path("key"), RequiredQuery("seqno", Number)],
        ReplyShape::Bytes,
        "The value of a key after the record with this number.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}/history",
        "keyHistory",
        "kv.history",
        &[Path("key"), Query("count", "COUNT", Number)],
        ReplyShape::Json(ReplySchema::Versions),
        "The kept versions of a key, newest first.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys",
        "scanKeys",
        "scan",
        &[RequiredQuery("cursor", Number), Query("match", "MATCH", Text), Query("count", "COUNT", Count)],
        ReplyShape::Page("keys", ReplySchema::Keys),
        "Keys of a database, and a cursor to continue, which is 0 at the end. Begin with 0.",
    ),
    route(
        Post,
        "/v1/memory/entries",
        "putMemories",
        "mem.put",
        &[
            Field("entries", JsonArray),
            Opt("embed", "EMBED", Flag),
            Opt("embedder", "EMBEDDER", Text),
            TENANT,
            PRINCIPAL,
            CONVERSATION,
        ],
        ReplyShape::Named("ids", ReplySchema::Texts),
        "Stores entries (an id and a value, as agentfootprint's `MemoryEntry`), all or none, and replaces entries with the same ids. With `embed`, each entry is stored by itself: an entry without a vector gets one from its query by this daemon's embedder, and a bare run snapshot becomes the conversation's next entry; `embedder` names the embedder that is required.",
    ),
    route(
        Get,
        "/v1/memory/entries",
        "listMemories",
        "mem.list",
        &[
            Query("cursor", "CURSOR", Number),
            Query("limit", "LIMIT", Count),
            Query("tiers", "TIERS", Names),
            OF_TENANT,
            OF_PRINCIPAL,
            OF_CONVERSATION,
        ],
        ReplyShape::Page("entries", ReplySchema::Memories),
        "Entries of a conversation, most recently changed first, and a cursor to continue; the cursor is 0 at the end.",
    ),
    route(
        Get,
        "/v1/memory/entry",
        "getMemory",
        "mem.get",
        &[RequiredQuery("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        ReplyShape::Found(ReplySchema::Memory),
        "An entry; the access is counted.",
    ),
    route(
        Delete,
        "/v1/memory/entry",
        "deleteMemory",
        "mem.delete",
        &[RequiredQuery("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        ReplyShape::Nothing,
        "Deletes an entry and its feedback, if it exists.",
    ),
    route(
        Post,
        "/v1/memory/putif",
        "putMemoryIf",
        "mem.putif",
        &[Field("entry", Json), Field("version", Number), TENANT, PRINCIPAL, CONVERSATION],
        ReplyShape::Json(ReplySchema::Applied),
        "Stores an entry if the existing one has this version; version 0 requires that there is none. Returns the existing `version` if it differs.",
    ),
    route(
        Post,
        "/v1/memory/search",
        "searchMemory",
        "mem.search",
        &[
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
            TENANT,
            PRINCIPAL,
            CONVERSATION,
        ],
        ReplyShape::Json(ReplySchema::Hits),
        "The entries nearest to a vector or a question that reach the minimum score. `across` includes all of the tenant's conversations; `projection` or `budget` (tokens) adds the text for a model; `memory` takes missing options from the definition with that id.",
    ),
    route(
        Post,
        "/v1/memory/definitions",
        "defineMemory",
        "mem.define",
        &[Field("definition", Json)],
        ReplyShape::Nothing,
        "Stores a memory definition under its id: `description`, `type`, `strategy` (`kind`, `topK`, `threshold`, `embedder`), `projection`, `acrossConversations`.",
    ),
    route(
        Get,
        "/v1/memory/definitions",
        "memoryDefinitions",
        "mem.definitions",
        &[],
        ReplyShape::Named("definitions", ReplySchema::Definitions),
        "All memory definitions, ordered by id.",
    ),
    route(
        Delete,
        "/v1/memory/definition",
        "undefineMemory",
        "mem.undefine",
        &[RequiredQuery("id", Text)],
        ReplyShape::Nothing,
        "Deletes a memory definition; entries stay.",
    ),
    route(
        Post,
        "/v1/memory/feedback",
        "rateMemory",
        "mem.feedback",
        &[Field("id", Text), Constant("VALUE"), Field("usefulness", Real), TENANT, PRINCIPAL, CONVERSATION],
        ReplyShape::Nothing,
        "Rates the usefulness of an entry from -1 to 1.",
    ),
    route(
        Get,
        "/v1/memory/feedback",
        "memoryFeedback",
        "mem.feedback",
        &[RequiredQuery("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        ReplyShape::Json(ReplySchema::Feedback),
        "The ratings of an entry; null if there are none.",
    ),
    route(
        Post,
        "/v1/memory/seen",
        "recordSignature",
        "mem.seen",
        &[Field("signature", Text), Constant("RECORD"), TENANT, PRINCIPAL, CONVERSATION],
        ReplyShape::Nothing,
        "Records a signature.",
    ),
    route(
        Get,
        "/v1/memory/seen",
        "seenSignature",
        "mem.seen",
        &[RequiredQuery("signature", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        ReplyShape::Named("seen", ReplySchema::Boolean),
        "Whether a signature was recorded.",
    ),
    route(
        Post,
        "/v1/memory/forget",
        "forgetMemory",
        "mem.forget",
        &[TENANT, PRINCIPAL, CONVERSATION],
        ReplyShape::Named("forgotten", ReplySchema::Number),
        "Deletes a whole conversation: entries, feedback, signatures. Returns the number of entries.",
    ),
    route(
        Get,
        "/v1/store/stats",
        "stats",
        "store.stats",
        &[],
        ReplyShape::Json(ReplySchema::Stats),
        "What the store holds.",
    ),
    route(
        Post,
        "/v1/store/verify",
        "verifyStore",
        "store.verify",
        &[],
        ReplyShape::Json(ReplySchema::Object),
        "Reads every file and every run, and verifies all checksums, hashes and links.",
    ),
    route(
        Get,
        "/v1/store/checkpoint",
        "checkpoint",
        "store.checkpoint",
        &[],
        ReplyShape::Bytes,
        "The ledger's checkpoint, as JSON.",
    ),
    route(
        Post,
        "/v1/store/retain",
        "retain",
        "store.retain",
        &[Opt("policy", "POLICY", Text), Opt("at_ns", "AT", Number), Opt("dry_run", "DRYRUN", Flag)],
        ReplyShape::Bytes,
        "Drops the runs that a policy does not keep; without `policy`, by the built-in one. Returns what each rule keeps and drops as JSON.",
    ),
    route(
        Post,
        "/v1/store/backup",
        "backup",
        "store.backup",
        &[Field("path", Text), Opt("copy", "COPY", Flag)],
        ReplyShape::Json(ReplySchema::Object),
        "Copies the store. Needs a connection by a Unix socket; refused over HTTP.",
    ),
    route(
        Post,
        "/v1/store/compact",
        "compact",
        "store.compact",
        &[
            Opt("dry_run", "DRYRUN", Flag),
            Opt("recompress", "RECOMPRESS", Flag),
            Opt("bytes_per_second_max", "RATE", Number),
        ],
        ReplyShape::Bytes,
        "Reclaims the disk space of deleted data; returns a report as JSON.",
    ),
    route(
        Get,
        "/v1/tokens",
        "listTokens",
        "token.list",
        &[],
        ReplyShape::Json(ReplySchema::Tokens),
        "The tokens, without their texts.",
    ),
    route(
        Get,
        "/v1/slowlog",
        "slowlog",
        "slowlog",
        &[Constant("GET")],
        ReplyShape::Json(ReplySchema::Array),
        "The latest slow commands.",
    ),
];
