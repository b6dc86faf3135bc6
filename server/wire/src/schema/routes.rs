//! The routes: one table by which requests are matched, checked and described. A route is a command of the
//! daemon: it defines how the command's words are made from a path, a query and a body, and the form of its
//! response.

use super::schemas::Schema;

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    Put,
    Post,
    Delete,
}

/// The type of a value in a query or in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
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
    Of(&'static [&'static str]),
    /// `true` adds the word, `false` does not.
    Flag,
    /// Any number.
    Real,
    /// An array of strings; in a query, one string separated by commas.
    Names,
    /// An array of numbers, as f32 in little-endian bytes.
    Vector,
    /// A non-empty array: one word for each item, as raw JSON.
    Jsons,
    /// An object of strings: an option name, a key and a value for each member.
    Texts,
    /// An object of arrays of numbers: an option name, a key and the numbers as f32 in little-endian bytes
    /// for each member.
    Vectors,
}

impl Kind {
    /// Whether it is written in digits.
    pub fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Count | Self::Frame)
    }
}

const ANY_STATUS: Kind = Kind::Of(&["open", "ok", "failed", "abandoned"]);
const LAST_STATUS: Kind = Kind::Of(&["ok", "failed", "abandoned"]);
const SEVERITY: Kind = Kind::Of(&["debug", "normal", "flagged", "escalated"]);
const TIERS: Word = Opt("tiers", "TIERS", Names);
const PROJECTION: Kind = Kind::Of(&["decisions", "commits", "narrative", "full"]);
/// The identity's parts, in JSON and in the query.
const TENANT: Word = Opt("tenant", "TENANT", Text);
const PRINCIPAL: Word = Opt("principal", "PRINCIPAL", Text);
const CONVERSATION: Word = Opt("conversation", "CONVERSATION", Text);
const OF_TENANT: Word = Query("tenant", "TENANT", Text);
const OF_PRINCIPAL: Word = Query("principal", "PRINCIPAL", Text);
const OF_CONVERSATION: Word = Query("conversation", "CONVERSATION", Text);
const DRAWS: Kind = Kind::Of(&["clock", "uuid", "random", "fill"]);

/// The source of a command's words, in order.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    /// A part of the path.
    Path(&'static str),
    /// A part of the path and a number of the JSON, as `part@number`.
    PathAt(&'static str, &'static str),
    /// A required member of the JSON.
    Field(&'static str, Kind),
    /// An optional member of the JSON, after an option name.
    Option(&'static str, &'static str, Kind),
    /// An optional member of the JSON, without an option name.
    Tail(&'static str, Kind),
    /// An optional query parameter, after an option name.
    Query(&'static str, &'static str, Kind),
    /// A required query parameter.
    Asked(&'static str, Kind),
    /// A constant word.
    Is(&'static str),
    /// The raw body.
    Body,
}

/// The response of a route without errors.
#[derive(Debug, Clone, Copy)]
pub enum Gives {
    /// The reply as JSON; a null is `null`.
    Json(Schema),
    /// The reply as JSON; a null is 404.
    Found(Schema),
    /// The reply as JSON under this name.
    Named(&'static str, Schema),
    /// A page: a cursor, and the items under this name.
    Page(&'static str, Schema),
    /// The bytes of the reply; a null is 404.
    Bytes,
    /// Nothing: 204; a reply of zero is 404.
    Nothing,
}

/// A route.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    pub verb: Verb,
    pub path: &'static str,
    /// Its operation id in the API description.
    pub id: &'static str,
    pub summary: &'static str,
    pub command: &'static str,
    pub words: &'static [Word],
    pub gives: Gives,
    /// 200, or 201 if the route creates something.
    pub status: u16,
}

const fn route(
    verb: Verb,
    path: &'static str,
    id: &'static str,
    command: &'static str,
    words: &'static [Word],
    gives: Gives,
    summary: &'static str,
) -> Route {
    Route { verb, path, id, summary, command, words, gives, status: 200 }
}

const fn makes(route: Route) -> Route {
    Route { status: 201, ..route }
}

use Kind::{Bytes, Count, Flag, Frame, Json, Jsons, Names, Number, Real, Text, Texts, Vector, Vectors};
use Verb::{Delete, Get, Post, Put};
use Word::{Asked, Body, Field, Is, Option as Opt, Path, PathAt, Query, Tail};

/// All routes except those of [`super::bodies`], which stream.
pub const ROUTES: &[Route] = &[
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
        Gives::Page("runs", Schema::Runs),
        "Runs, oldest first, and a cursor to continue; the cursor is 0 at the end.",
    ),
    makes(route(
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
        Gives::Json(Schema::Begun),
        "Begins a run. Without a name, the daemon chooses one.",
    )),
    route(
        Get,
        "/v1/runs/{run}",
        "getRun",
        "run.get",
        &[Path("run")],
        Gives::Json(Schema::Run),
        "The properties of a run.",
    ),
    route(
        Post,
        "/v1/runs/{run}/end",
        "endRun",
        "run.end",
        &[Path("run"), Tail("status", LAST_STATUS)],
        Gives::Nothing,
        "Ends a run that was begun here; the default status is `ok`.",
    ),
    makes(route(
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
        Gives::Json(Schema::Begun),
        "Begins a run that shares another run's frames up to this one; with `edit`, this frame is excluded.",
    )),
    route(
        Post,
        "/v1/runs/{run}/verify",
        "verifyRun",
        "run.verify",
        &[Path("run")],
        Gives::Json(Schema::Verified),
        "Reads every frame of a run and verifies its hashes and links.",
    ),
    route(
        Post,
        "/v1/runs/{run}/pin",
        "pinRun",
        "run.pin",
        &[Path("run"), Field("why", Text)],
        Gives::Nothing,
        "Keeps a run regardless of any policy, until it is unpinned.",
    ),
    route(
        Delete,
        "/v1/runs/{run}/pin",
        "unpinRun",
        "run.unpin",
        &[Path("run")],
        Gives::Nothing,
        "Removes the pin of a run.",
    ),
    route(
        Post,
        "/v1/runs/{run}/drop",
        "dropRun",
        "run.drop",
        &[Path("run"), Field("why", Text), Is("COMPACT")],
        Gives::Bytes,
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
        Gives::Json(Schema::Frames),
        "Ended frames of a run, from `from` on. If there are none: an empty array if the run has ended, else null, after waiting up to `wait_ms`.",
    ),
    makes(route(
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
        Gives::Named("seq", Schema::Number),
        "Adds a frame to a run and returns its number.",
    )),
    makes(route(
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
        Gives::Named("seq", Schema::Number),
        "Begins a frame whose response is still to come.",
    )),
    route(
        Get,
        "/v1/runs/{run}/frames/{seq}",
        "getFrame",
        "frame.get",
        &[Path("run"), Path("seq")],
        Gives::Json(Schema::Frame),
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
        Gives::Nothing,
        "Ends an open frame. Metadata replaces the metadata that it began with.",
    ),
    makes(route(
        Post,
        "/v1/runs/{run}/draws",
        "draw",
        "nondet.draw",
        &[Path("run"), Field("kind", DRAWS), Tail("length", Number)],
        Gives::Named("drawn", Schema::Drawn),
        "Draws for a run that is being recorded: `clock`, `uuid`, `random` or `fill` (`length` bytes).",
    )),
    makes(route(
        Post,
        "/v1/runs/{run}/snapshots",
        "putSnapshot",
        "snap.put",
        &[Path("run"), Field("state", Bytes), Opt("embeddings", "EMBEDDING", Vectors)],
        Gives::Named("seq", Schema::Number),
        "Stores the agent's state after the last frame of a run and returns the frame's number.",
    )),
    route(
        Get,
        "/v1/runs/{run}/snapshots/{seq}",
        "getSnapshot",
        "snap.get",
        &[Path("run"), Path("seq")],
        Gives::Found(Schema::Snapshot),
        "The state stored after this frame.",
    ),
    route(
        Get,
        "/v1/runs/{run}/state",
        "stateAt",
        "snap.at",
        &[Path("run"), Asked("at", Frame)],
        Gives::Found(Schema::Snapshot),
        "The newest state stored after this frame or an earlier one.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}",
        "getKey",
        "get",
        &[Path("key")],
        Gives::Bytes,
        "The value of a key.",
    ),
    route(
        Put,
        "/v1/databases/{database}/keys/{key}",
        "setKey",
        "set",
        &[Path("key"), Body, Query("px", "PX", Count)],
        Gives::Nothing,
        "Sets the value of a key; with `px`, it expires after so many milliseconds.",
    ),
    route(
        Delete,
        "/v1/databases/{database}/keys/{key}",
        "deleteKey",
        "del",
        &[Path("key")],
        Gives::Nothing,
        "Deletes a key.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}/at",
        "keyAt",
        "kv.at",
        &[Path("key"), Asked("seqno", Number)],
        Gives::Bytes,
        "The value of a key after the record with this number.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}/history",
        "keyHistory",
        "kv.history",
        &[Path("key"), Query("count", "COUNT", Number)],
        Gives::Json(Schema::Versions),
        "The kept versions of a key, newest first.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys",
        "scanKeys",
        "scan",
        &[Asked("cursor", Number), Query("match", "MATCH", Text), Query("count", "COUNT", Count)],
        Gives::Page("keys", Schema::Keys),
        "Keys of a database, and a cursor to continue, which is 0 at the end. Begin with 0.",
    ),
    route(
        Post,
        "/v1/memory/entries",
        "putMemories",
        "mem.put",
        &[
            Field("entries", Jsons),
            Opt("embed", "EMBED", Flag),
            Opt("embedder", "EMBEDDER", Text),
            TENANT,
            PRINCIPAL,
            CONVERSATION,
        ],
        Gives::Named("ids", Schema::Texts),
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
        Gives::Page("entries", Schema::Memories),
        "Entries of a conversation, most recently changed first, and a cursor to continue; the cursor is 0 at the end.",
    ),
    route(
        Get,
        "/v1/memory/entry",
        "getMemory",
        "mem.get",
        &[Asked("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Found(Schema::Memory),
        "An entry; the access is counted.",
    ),
    route(
        Delete,
        "/v1/memory/entry",
        "deleteMemory",
        "mem.delete",
        &[Asked("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Nothing,
        "Deletes an entry and its feedback, if it exists.",
    ),
    route(
        Post,
        "/v1/memory/putif",
        "putMemoryIf",
        "mem.putif",
        &[Field("entry", Json), Field("version", Number), TENANT, PRINCIPAL, CONVERSATION],
        Gives::Json(Schema::Applied),
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
        Gives::Json(Schema::Hits),
        "The entries nearest to a vector or a question that reach the minimum score. `across` includes all of the tenant's conversations; `projection` or `budget` (tokens) adds the text for a model; `memory` takes missing options from the definition with that id.",
    ),
    route(
        Post,
        "/v1/memory/definitions",
        "defineMemory",
        "mem.define",
        &[Field("definition", Json)],
        Gives::Nothing,
        "Stores a memory definition under its id: `description`, `type`, `strategy` (`kind`, `topK`, `threshold`, `embedder`), `projection`, `acrossConversations`.",
    ),
    route(
        Get,
        "/v1/memory/definitions",
        "memoryDefinitions",
        "mem.definitions",
        &[],
        Gives::Named("definitions", Schema::Definitions),
        "All memory definitions, ordered by id.",
    ),
    route(
        Delete,
        "/v1/memory/definition",
        "undefineMemory",
        "mem.undefine",
        &[Asked("id", Text)],
        Gives::Nothing,
        "Deletes a memory definition; entries stay.",
    ),
    route(
        Post,
        "/v1/memory/feedback",
        "rateMemory",
        "mem.feedback",
        &[Field("id", Text), Is("VALUE"), Field("usefulness", Real), TENANT, PRINCIPAL, CONVERSATION],
        Gives::Nothing,
        "Rates the usefulness of an entry from -1 to 1.",
    ),
    route(
        Get,
        "/v1/memory/feedback",
        "memoryFeedback",
        "mem.feedback",
        &[Asked("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Json(Schema::Feedback),
        "The ratings of an entry; null if there are none.",
    ),
    route(
        Post,
        "/v1/memory/seen",
        "recordSignature",
        "mem.seen",
        &[Field("signature", Text), Is("RECORD"), TENANT, PRINCIPAL, CONVERSATION],
        Gives::Nothing,
        "Records a signature.",
    ),
    route(
        Get,
        "/v1/memory/seen",
        "seenSignature",
        "mem.seen",
        &[Asked("signature", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Named("seen", Schema::Boolean),
        "Whether a signature was recorded.",
    ),
    route(
        Post,
        "/v1/memory/forget",
        "forgetMemory",
        "mem.forget",
        &[TENANT, PRINCIPAL, CONVERSATION],
        Gives::Named("forgotten", Schema::Number),
        "Deletes a whole conversation: entries, feedback, signatures. Returns the number of entries.",
    ),
    route(
        Get,
        "/v1/store/stats",
        "stats",
        "store.stats",
        &[],
        Gives::Json(Schema::Stats),
        "What the store holds.",
    ),
    route(
        Post,
        "/v1/store/verify",
        "verifyStore",
        "store.verify",
        &[],
        Gives::Json(Schema::Object),
        "Reads every file and every run, and verifies all checksums, hashes and links.",
    ),
    route(
        Get,
        "/v1/store/checkpoint",
        "checkpoint",
        "store.checkpoint",
        &[],
        Gives::Bytes,
        "The ledger's checkpoint, as JSON.",
    ),
    route(
        Post,
        "/v1/store/retain",
        "retain",
        "store.retain",
        &[Opt("policy", "POLICY", Text), Opt("at_ns", "AT", Number), Opt("dry_run", "DRYRUN", Flag)],
        Gives::Bytes,
        "Drops the runs that a policy does not keep; without `policy`, by the built-in one. Returns what each rule keeps and drops as JSON.",
    ),
    route(
        Post,
        "/v1/store/backup",
        "backup",
        "store.backup",
        &[Field("path", Text), Opt("copy", "COPY", Flag)],
        Gives::Json(Schema::Object),
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
        Gives::Bytes,
        "Reclaims the disk space of deleted data; returns a report as JSON.",
    ),
    route(
        Get,
        "/v1/tokens",
        "listTokens",
        "token.list",
        &[],
        Gives::Json(Schema::Tokens),
        "The tokens, without their texts.",
    ),
    route(
        Get,
        "/v1/slowlog",
        "slowlog",
        "slowlog",
        &[Is("GET")],
        Gives::Json(Schema::Array),
        "The latest slow commands.",
    ),
];
