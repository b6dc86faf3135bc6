//! The schema of the commands of the group `memory`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "apart"];
/// A read that shows a redacted reader less.
const REDACTS: &[&str] = &["readonly", "apart", "redacts"];
const WRITE: &[&str] = &["write", "apart"];
/// A command that is a read in one of its forms and checks the right itself.
const BOTH: &[&str] = &["write", "apart", "both"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("memory", "mem.put", -2, &["write", "apart", "joined"])
        .arguments(
            "entry [entry ...] [EMBED] [EMBEDDER embedder] [NAMESPACE namespace] [TENANT tenant] [PRINCIPAL \
             principal] [CONVERSATION conversation]",
        )
        .summary(
            "Keeps entries (JSON, with an id and a value), all of them or none, in the place of what has \
             their ids, and returns the ids. With EMBED an entry without a vector gets one of its query by \
             the embedder of this daemon, and a run's snapshot alone becomes the entry of its \
             conversation's next turn; if there is a snapshot among them, each is kept by itself. EMBEDDER \
             says which embedder that has to be. Another namespace than this connection's is for \
             connections by a Unix socket.",
        ),
    command("memory", "mem.putif", -3, &["write", "apart", "reveals"])
        .arguments("entry version [TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]")
        .summary(
            "Stores an entry if the existing one has this version; version 0 requires that there is none. \
             Returns whether it was stored and, if not, the existing version.",
        ),
    command("memory", "mem.get", -2, REDACTS)
        .arguments("id [TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]")
        .summary(
            "Returns an entry; nil if it does not exist or has expired. The access is counted in the entry.",
        ),
    command("memory", "mem.list", -1, REDACTS)
        .arguments(
            "[CURSOR cursor] [LIMIT count] [TIERS tiers] [TENANT tenant] [PRINCIPAL principal] \
             [CONVERSATION conversation]",
        )
        .summary(
            "Returns a cursor and entries, most recently changed first. Pass the cursor to continue; it is \
             0 at the end. Tiers (hot, warm, cold) are separated by commas.",
        ),
    command("memory", "mem.search", -1, REDACTS)
        .arguments(
            "FP32 vector|VECTOR array|QUESTION text [MEMORY id] [EMBEDDER embedder] [K count] [MINSCORE \
             score] [TIERS tiers] [ACROSS] [PROJECTION decisions|commits|narrative|full] [BUDGET tokens] \
             [SESSION session] [TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]",
        )
        .summary(
            "Returns the entries that are nearest, the nearest first, of those that reach the least score; \
             none where none does. Asked by a vector (f32 in little-endian bytes, or a JSON array) they are \
             10 at most of 0.7 at least, and the embedder that made the vector, where it is named, has to \
             be theirs; asked by a question, which this daemon's embedder makes a vector of, 1 by that \
             one's threshold. With ACROSS also those of the tenant's other principals and conversations. \
             With PROJECTION or BUDGET (tokens of four UTF-16 units) also the text that a model is given. \
            With MEMORY what is not said is as the definition of that id has it. Weights of diagnostics order \
            the hits; with SESSION both orders are logged, and what is returned counts as given to that \
            session. A redacted reader asks by QUESTION, which is redacted first, and gets entries redacted by \
            its profile, without vectors, with the fields redacted and profile.",
        ),
    command("memory", "mem.define", -2, WRITE).arguments("definition [NAMESPACE namespace]").summary(
        "Stores a memory definition under its id: the search options for searches that name it. \
             NAMESPACE other than the connection's needs a Unix socket.",
    ),
    command("memory", "mem.definitions", 1, READ).summary("Returns all memory definitions, ordered by id."),
    command("memory", "mem.undefine", 2, WRITE)
        .arguments("id")
        .summary("Deletes a memory definition; entries stay. Returns whether it existed."),
    command("memory", "mem.delete", -2, WRITE)
        .arguments("id [TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]")
        .summary("Deletes an entry and its feedback. An entry that does not exist is ignored."),
    command("memory", "mem.forget", -1, WRITE)
        .arguments("[TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]")
        .summary(
            "Deletes a whole conversation: entries, feedback, signatures. Returns the number of entries.",
        ),
    command("memory", "mem.feedback", -2, BOTH)
        .arguments("id [VALUE usefulness] [TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]")
        .summary(
            "Rates the usefulness of an entry from -1 to 1; without VALUE, returns the average and count of \
             the ratings, nil if there are none.",
        ),
    command("memory", "mem.seen", -2, BOTH)
        .arguments("signature [RECORD] [TENANT tenant] [PRINCIPAL principal] [CONVERSATION conversation]")
        .summary("Returns whether a signature was recorded; with RECORD, records it."),
];
