//! The routes: one table, from which requests are understood, refused and described. A route is a command of the daemon in other clothes: it says how the
//! command's words are made of a path, a query and a body, and what its reply is called.

use super::schemas::Schema;

/// A method of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    Put,
    Post,
    Delete,
}

/// What a value is, in a query or in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// Any bytes: a text, or `{"base64": "..."}`.
    Bytes,
    /// JSON as it stands, or a text that holds it.
    Json,
    /// An integer that is not negative.
    Number,
    /// One that is at least 1.
    Count,
    /// A frame's number, or 0.
    Frame,
    /// One of these texts.
    Of(&'static [&'static str]),
    /// `true` adds the word, `false` does not.
    Flag,
    /// Any number.
    Real,
    /// An array of texts; in a query one text with commas between.
    Names,
    /// An array of numbers, as f32 in little-endian bytes.
    Vector,
    /// An array that holds something: a word for each, JSON as it stands.
    Jsons,
    /// An object of texts: a word, a key and a value for each.
    Texts,
    /// An object of arrays of numbers: a word, a key and its numbers as f32 in little-endian bytes for each.
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
/// Whose memory it is, in the JSON and in the query.
const TENANT: Word = Opt("tenant", "TENANT", Text);
const PRINCIPAL: Word = Opt("principal", "PRINCIPAL", Text);
const CONVERSATION: Word = Opt("conversation", "CONVERSATION", Text);
const OF_TENANT: Word = Query("tenant", "TENANT", Text);
const OF_PRINCIPAL: Word = Query("principal", "PRINCIPAL", Text);
const OF_CONVERSATION: Word = Query("conversation", "CONVERSATION", Text);
const DRAWS: Kind = Kind::Of(&["clock", "uuid", "random", "fill"]);

/// How a command's words are made, in order.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    /// A part of the path.
    Path(&'static str),
    /// A part of the path and a number of the JSON, as `part@number`.
    PathAt(&'static str, &'static str),
    /// Something that has to be in the JSON.
    Field(&'static str, Kind),
    /// Something that may be in the JSON, behind a word of its own.
    Option(&'static str, &'static str, Kind),
    /// Something that may be in the JSON, by itself.
    Tail(&'static str, Kind),
    /// Something that may be in the query, behind a word of its own.
    Query(&'static str, &'static str, Kind),
    /// Something that has to be in the query.
    Asked(&'static str, Kind),
    /// A word that is always the same.
    Is(&'static str),
    /// The body as it is.
    Body,
}

/// What a route gives where nothing went wrong.
#[derive(Debug, Clone, Copy)]
pub enum Gives {
    /// The reply as JSON; a null is `null`.
    Json(Schema),
    /// The reply as JSON; a null is 404.
    Found(Schema),
    /// The reply as JSON under this name.
    Named(&'static str, Schema),
    /// The two of the reply as JSON: a cursor, and under this name what it leads on from.
    Page(&'static str, Schema),
    /// The bytes of the reply; a null is 404.
    Bytes,
    /// Nothing: 204; a zero is 404.
    Nothing,
}

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    pub verb: Verb,
    pub path: &'static str,
    /// Its name in the description.
    pub id: &'static str,
    pub summary: &'static str,
    pub command: &'static str,
    pub words: &'static [Word],
    pub gives: Gives,
    /// 200, or 201 where something new is there.
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

/// All of them, but for those of [`super::bodies`], which stream.
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
        "Runs, the oldest first, and a cursor for going on after them: 0 where there are no more.",
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
        "Begins a run, by a name of its own where none is given.",
    )),
    route(
        Get,
        "/v1/runs/{run}",
        "getRun",
        "run.get",
        &[Path("run")],
        Gives::Json(Schema::Run),
        "What is known of a run.",
    ),
    route(
        Post,
        "/v1/runs/{run}/end",
        "endRun",
        "run.end",
        &[Path("run"), Tail("status", LAST_STATUS)],
        Gives::Nothing,
        "Ends a run that was begun here, as `ok` where no status is given.",
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
        "Begins a run that shares another one's frames up to this one, which with `edit` is left out.",
    )),
    route(
        Post,
        "/v1/runs/{run}/verify",
        "verifyRun",
        "run.verify",
        &[Path("run")],
        Gives::Json(Schema::Verified),
        "Reads every frame of a run and compares its hashes and links.",
    ),
    route(
        Post,
        "/v1/runs/{run}/pin",
        "pinRun",
        "run.pin",
        &[Path("run"), Field("why", Text)],
        Gives::Nothing,
        "Keeps a run whatever a policy says, until it is unpinned.",
    ),
    route(
        Delete,
        "/v1/runs/{run}/pin",
        "unpinRun",
        "run.unpin",
        &[Path("run")],
        Gives::Nothing,
        "Takes a run's pin away.",
    ),
    route(
        Post,
        "/v1/runs/{run}/drop",
        "dropRun",
        "run.drop",
        &[Path("run"), Field("why", Text), Is("COMPACT")],
        Gives::Bytes,
        "Drops a run now, and rewrites the log files that hold its bytes; what that did, as JSON. The ledger keeps why.",
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
        "Frames of a run from one on, which have ended. Where there are none: an empty array if the run has ended, else null, after waiting for so long.",
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
        "Adds a frame to a run and gives its number.",
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
        "Ends a frame that was begun. Metadata is instead of what it began with.",
    ),
    makes(route(
        Post,
        "/v1/runs/{run}/draws",
        "draw",
        "nondet.draw",
        &[Path("run"), Field("kind", DRAWS), Tail("length", Number)],
        Gives::Named("drawn", Schema::Drawn),
        "Draws for a run that is being recorded: `clock`, `uuid`, `random` or `fill` (so many bytes).",
    )),
    makes(route(
        Post,
        "/v1/runs/{run}/snapshots",
        "putSnapshot",
        "snap.put",
        &[Path("run"), Field("state", Bytes), Opt("embeddings", "EMBEDDING", Vectors)],
        Gives::Named("seq", Schema::Number),
        "Keeps the agent's state after the last frame of a run, whose number is given.",
    )),
    route(
        Get,
        "/v1/runs/{run}/snapshots/{seq}",
        "getSnapshot",
        "snap.get",
        &[Path("run"), Path("seq")],
        Gives::Found(Schema::Snapshot),
        "The state that was kept after this frame.",
    ),
    route(
        Get,
        "/v1/runs/{run}/state",
        "stateAt",
        "snap.at",
        &[Path("run"), Asked("at", Frame)],
        Gives::Found(Schema::Snapshot),
        "The last state that was kept at this frame or before it.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}",
        "getKey",
        "get",
        &[Path("key")],
        Gives::Bytes,
        "What a key holds.",
    ),
    route(
        Put,
        "/v1/databases/{database}/keys/{key}",
        "setKey",
        "set",
        &[Path("key"), Body, Query("px", "PX", Count)],
        Gives::Nothing,
        "Sets what a key holds, for so many milliseconds where that is said.",
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
        "What a key held after the record of this number.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys/{key}/history",
        "keyHistory",
        "kv.history",
        &[Path("key"), Query("count", "COUNT", Number)],
        Gives::Json(Schema::Versions),
        "The versions of a key that are kept, the newest first.",
    ),
    route(
        Get,
        "/v1/databases/{database}/keys",
        "scanKeys",
        "scan",
        &[Asked("cursor", Number), Query("match", "MATCH", Text), Query("count", "COUNT", Count)],
        Gives::Page("keys", Schema::Keys),
        "Keys of a database, and a cursor for going on: 0 where there are no more. Begin with 0.",
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
        "Keeps entries (an id and a value, as agentfootprint's `MemoryEntry`), all or none, in the place of what has their ids. With `embed` each by itself: one without a vector gets one of its query by this daemon's embedder, and a run's snapshot alone becomes its conversation's next entry; `embedder` says which embedder that has to be.",
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
        "Entries of a conversation, those changed last first, and a cursor for going on after them: 0 where there are no more.",
    ),
    route(
        Get,
        "/v1/memory/entry",
        "getMemory",
        "mem.get",
        &[Asked("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Found(Schema::Memory),
        "An entry; the look counts.",
    ),
    route(
        Delete,
        "/v1/memory/entry",
        "deleteMemory",
        "mem.delete",
        &[Asked("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Nothing,
        "Ends an entry and what was said of it, if it is there.",
    ),
    route(
        Post,
        "/v1/memory/putif",
        "putMemoryIf",
        "mem.putif",
        &[Field("entry", Json), Field("version", Number), TENANT, PRINCIPAL, CONVERSATION],
        Gives::Json(Schema::Applied),
        "Keeps an entry if the one that is there has this version, 0: if there is none. `version` is that of the one that is there, where that is another.",
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
        "The entries nearest to a vector, or to a question, that reach the least score; with `across` of all of the tenant's conversations; with `projection` or `budget` (tokens) also the text that a model is given; with `memory` what is not said is as the definition of that id has it.",
    ),
    route(
        Post,
        "/v1/memory/definitions",
        "defineMemory",
        "mem.define",
        &[Field("definition", Json)],
        Gives::Nothing,
        "Keeps a memory's definition under its id: `description`, `type`, `strategy` (`kind`, `topK`, `threshold`, `embedder`), `projection`, `acrossConversations`.",
    ),
    route(
        Get,
        "/v1/memory/definitions",
        "memoryDefinitions",
        "mem.definitions",
        &[],
        Gives::Named("definitions", Schema::Definitions),
        "All definitions of memories, by their ids.",
    ),
    route(
        Delete,
        "/v1/memory/definition",
        "undefineMemory",
        "mem.undefine",
        &[Asked("id", Text)],
        Gives::Nothing,
        "Ends a definition; what is remembered stays.",
    ),
    route(
        Post,
        "/v1/memory/feedback",
        "rateMemory",
        "mem.feedback",
        &[Field("id", Text), Is("VALUE"), Field("usefulness", Real), TENANT, PRINCIPAL, CONVERSATION],
        Gives::Nothing,
        "Says how useful an entry was, from -1 to 1.",
    ),
    route(
        Get,
        "/v1/memory/feedback",
        "memoryFeedback",
        "mem.feedback",
        &[Asked("id", Text), OF_TENANT, OF_PRINCIPAL, OF_CONVERSATION],
        Gives::Json(Schema::Feedback),
        "What was said of an entry; null where nothing was.",
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
        "Ends all of a conversation: entries, what was said of them, signatures; how many entries there were.",
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
        "Reads every file and every run, and compares all checksums, hashes and links.",
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
        "Drops the runs that a policy does not keep, by the built-in one where none is given; what stays and goes by each rule, as JSON.",
    ),
    route(
        Post,
        "/v1/store/backup",
        "backup",
        "store.backup",
        &[Field("path", Text), Opt("copy", "COPY", Flag)],
        Gives::Json(Schema::Object),
        "Copies the store. For connections by a Unix socket: over HTTP it is refused.",
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
        "Gives back the room of what nothing leads to any more; what it did, as JSON.",
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
