//! The JSON Schemas (2020-12) of responses.

use serde_json::{Value, json};

/// The schema of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplySchema {
    Applied,
    Array,
    Begun,
    Boolean,
    CategoryCounts,
    /// Definitions of memories.
    Definitions,
    Drawn,
    Feedback,
    Frame,
    FrameView,
    Frames,
    Hits,
    Keys,
    Memories,
    Memory,
    Number,
    Object,
    ObjectOrNull,
    Run,
    Runs,
    SearchAnswer,
    SessionReport,
    Snapshot,
    Stats,
    Texts,
    Timeline,
    Tokens,
    Verified,
    Versions,
    /// A weight, from 0 to 1.
    Weight,
}

/// Base64 per RFC 4648, with padding and without stray bits.
const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// The components that response schemas may reference.
pub fn components() -> Value {
    let count = || json!({ "type": "integer", "minimum": 0 });
    let time = || json!({ "type": "integer", "minimum": 0, "description": "Nanoseconds since 1970." });
    let bytes = || json!({ "$ref": "#/components/schemas/Bytes" });
    let or_null = |schema: Value| json!({ "anyOf": [schema, { "type": "null" }] });
    let text = || json!({ "type": "string" });
    let hash = || json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    let status = json!({ "enum": ["open", "ok", "failed", "abandoned"] });
    let severity = json!({ "enum": ["debug", "normal", "flagged", "escalated"] });
    let kind = json!({ "enum": ["llm", "tool", "user", "nondet", "http", "other"] });
    let frame_status = json!({ "enum": ["ok", "error", "aborted", "open"] });
    let shown_severity = json!({ "enum": ["ok", "flagged", "failed", "escalated"] });
    let digits =
        || json!({ "type": "string", "pattern": "^[0-9]+$", "description": "Nanoseconds since 1970." });
    let texts = || json!({ "type": "array", "items": text() });
    let messages = || json!({ "type": "array", "items": { "$ref": "#/components/schemas/Message" } });
    json!({
        "Bytes": {
            "description": "Bytes: a string if they are UTF-8, else base64.",
            "oneOf": [
                { "type": "string" },
                { "type": "object", "properties": { "base64": { "type": "string", "contentEncoding": "base64", "pattern": BASE64 } },
                  "required": ["base64"], "additionalProperties": false },
            ],
        },
        "Problem": {
            "description": "RFC 9457. Programs should test `code`.",
            "type": "object",
            "properties": { "title": text(), "status": { "type": "integer" }, "code": text(), "detail": text() },
            "required": ["title", "status", "code", "detail"],
        },
        "Begun": {
            "type": "object", "properties": { "name": text(), "uid": count() }, "required": ["name", "uid"],
        },
        "Run": {
            "type": "object",
            "properties": {
                "name": text(), "uid": count(), "status": status, "severity": severity, "agent": text(),
                "model": text(), "tags": { "type": "object", "additionalProperties": text() },
                "parent": or_null(json!({ "type": "object" })), "started_ns": time(), "ended_ns": or_null(time()),
                "frames": count(), "bytes": count(), "fingerprint": or_null(hash()), "metadata": bytes(),
                "redacted": { "type": "boolean" }, "profile": text(), "pinned": text(),
                "flagged": text(),
                "usage": {
                    "type": "object",
                    "properties": { "models": { "type": "array", "items": text() }, "input": or_null(count()), "output": or_null(count()),
                                    "dollars": or_null(json!({ "type": "number" })), "unpriced": count(), "unreadable": or_null(text()) },
                    "required": ["models", "input", "output", "dollars", "unpriced", "unreadable"],
                },
            },
            "required": ["name", "uid", "status", "severity", "agent", "model", "tags", "parent", "started_ns",
                         "ended_ns", "frames", "bytes", "fingerprint"],
        },
        "Frame": {
            "type": "object",
            "properties": {
                "seq": count(), "parent": or_null(count()), "component": text(), "severity": severity,
                "incomplete": { "type": "boolean" }, "error": { "type": "boolean" }, "started_ns": time(),
                "duration_ns": count(), "request_bytes": count(), "response_bytes": count(),
                "request_id": hash(), "response_id": hash(), "link": hash(),
                "request": bytes(), "response": bytes(), "metadata": bytes(), "redacted": { "type": "boolean" },
                "profile": text(),
            },
            "required": ["seq", "parent", "component", "severity", "incomplete", "error", "started_ns", "duration_ns"],
        },
        "Message": {
            "description": "A message of a conversation. A part has a `type`: text, thinking, tool_call, tool_result, image, other, binary.",
            "type": "object",
            "properties": {
                "role": text(), "at": or_null(text()),
                "parts": { "type": "array", "items": { "type": "object", "properties": { "type": text() }, "required": ["type"] } },
            },
            "required": ["role", "at", "parts"],
        },
        "FrameView": {
            "description": "A frame as a person reads it. All texts are plain text.",
            "type": "object",
            "properties": {
                "seq": count(), "uid": count(), "run": text(), "component": text(), "name": or_null(text()),
                "kind": kind.clone(), "parent": or_null(count()), "lane": count(), "began_ns": digits(),
                "duration_ns": or_null(count()), "status": frame_status.clone(), "severity": shown_severity.clone(),
                "why": or_null(text()), "api": or_null(text()), "model": or_null(text()),
                "usage": or_null(json!({ "type": "object" })), "dollars": or_null(json!({ "type": "number" })),
                "http": or_null(json!({ "type": "object" })), "request": json!({ "type": "object" }),
                "response": or_null(json!({ "type": "object" })), "before": json!({ "type": "object" }),
                "messages": messages(), "removed": count(), "changes": texts(), "tools": texts(),
                "answer": messages(), "error": or_null(text()), "labels": texts(), "damage": or_null(text()),
            },
            "required": ["seq", "uid", "run", "component", "kind", "began_ns", "status", "severity", "request",
                         "before", "messages", "removed", "answer", "labels", "damage"],
        },
        "SearchAnswer": {
            "oneOf": [
                { "$ref": "#/components/schemas/FrameHits" },
                { "$ref": "#/components/schemas/RunHits" },
            ],
        },
        "FrameHits": {
            "description": "The answer of a search by words.",
            "type": "object",
            "properties": {
                "hits": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "run": text(), "uid": count(), "seq": count(), "component": text(), "kind": kind.clone(),
                        "name": or_null(text()), "status": frame_status.clone(), "began_ns": digits(),
                        "score": { "type": "number", "minimum": 0, "maximum": 1 },
                        "text": or_null(json!({
                            "type": "object",
                            "properties": { "before": text(), "found": text(), "after": text(), "is_exact": { "type": "boolean" } },
                            "required": ["before", "found", "after", "is_exact"],
                        })),
                    },
                    "required": ["run", "uid", "seq", "component", "kind", "status", "began_ns", "score"],
                } },
                "is_whole": { "type": "boolean", "description": "False while frames are still to be indexed." },
                "gaps": { "type": "array", "description": "Runs of which the index does not hold all texts.", "items": {
                    "type": "object",
                    "properties": { "run": text(), "unread": count(), "cut": count() },
                    "required": ["run", "unread", "cut"],
                } },
            },
            "required": ["hits", "is_whole", "gaps"],
        },
        "RunHits": {
            "description": "The answer of a search by meaning.",
            "type": "object",
            "properties": {
                "hits": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "run": text(), "identity": text(), "status": or_null(text()),
                        "gone": { "type": "boolean", "description": "The run was dropped or replaced; only its memory is left." },
                        "ended_ms": or_null(json!({ "type": "integer", "description": "Milliseconds since 1970." })),
                        "what_if": { "type": "boolean", "description": "It is of a fork, or of a run that the cache answered." },
                        "seq": count(), "score": { "type": "number" }, "question": text(), "answer": text(),
                        "others": { "type": "array", "description": "Other questions of the run, the nearest first.", "items": {
                            "type": "object",
                            "properties": { "seq": count(), "score": { "type": "number" }, "question": text(), "answer": text() },
                            "required": ["seq", "score", "question", "answer"],
                        } },
                    },
                    "required": ["run", "identity", "status", "gone", "ended_ms", "what_if", "seq", "score", "question", "answer", "others"],
                } },
                "embedder": { "type": "string", "description": "The embedder that compared the question." },
            },
            "required": ["hits", "embedder"],
        },
        "Timeline": {
            "type": "object",
            "properties": {
                "frames": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "seq": count(), "component": text(), "name": or_null(text()), "kind": kind, "lane": count(),
                        "began_ns": digits(), "duration_ns": or_null(count()), "status": frame_status,
                        "severity": shown_severity, "dollars": or_null(json!({ "type": "number" })),
                        "tokens": or_null(count()), "parent": or_null(count()), "damage": or_null(text()),
                    },
                    "required": ["seq", "component", "kind", "lane", "began_ns", "status", "severity"],
                } },
                "next": or_null(count()), "total": count(),
            },
            "required": ["frames", "next", "total"],
        },
        "Snapshot": {
            "type": "object",
            "properties": { "seq": count(), "embeddings": { "type": "object" }, "state": bytes() },
            "required": ["seq", "embeddings", "state"],
        },
        "Verified": {
            "type": "object",
            "properties": { "frames": count(), "blobs": count(), "bytes": count(), "fingerprint": or_null(hash()) },
            "required": ["frames", "blobs", "bytes", "fingerprint"],
        },
        "Version": {
            "type": "object",
            "properties": { "seqno": count(), "time_ns": time(), "value": or_null(bytes()) },
            "required": ["seqno", "time_ns", "value"],
        },
        "Memory": {
            "description": "An entry as it was stored, with its access count and time once it was read.",
            "type": "object",
            "properties": { "id": text(), "value": {}, "version": count(), "embedding": { "type": "array", "items": { "type": "number" } },
                            "embeddingModel": text() },
            "required": ["id", "value"],
        },
        "Hits": {
            "type": "object",
            "properties": {
                "hits": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "id": text(), "identity": text(), "score": { "type": "number" }, "entry": { "$ref": "#/components/schemas/Memory" },
                        "decided_ms": or_null(json!({ "type": "integer", "description": "Milliseconds since 1970." })),
                        "decided_at": or_null(json!({ "type": "string", "format": "date-time" })),
                    },
                    "required": ["id", "identity", "score", "decided_ms", "decided_at", "entry"],
                } },
                "text": text(),
            },
            "required": ["hits"],
        },
        "Token": {
            "type": "object",
            "properties": { "name": text(), "namespace": text(), "rights": text(), "made_ns": time() },
            "required": ["name", "namespace", "rights", "made_ns"],
        },
    })
}

impl ReplySchema {
    pub fn json(self) -> Value {
        let component = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
        let many = |name: &str| json!({ "type": "array", "items": component(name) });
        match self {
            Self::Applied => json!({
                "type": "object",
                "properties": { "applied": { "type": "boolean" }, "version": { "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "null" }] } },
                "required": ["applied", "version"],
            }),
            Self::Array => json!({ "type": "array" }),
            Self::Boolean => json!({ "type": "boolean" }),
            Self::CategoryCounts => {
                let names = [
                    "test_failure",
                    "style",
                    "regression",
                    "incomplete",
                    "wrong_approach",
                    "other",
                    "unknown",
                ];
                let counts = names.map(|name| (name.to_owned(), json!({ "type": "integer", "minimum": 0 })));
                json!({ "type": "object", "properties": Value::Object(counts.into_iter().collect()), "required": names })
            }
            Self::SessionReport => json!({
                "type": "object",
                "properties": {
                    "id": { "type": ["string", "null"] },
                    "aggressiveDownweightApplied": { "type": "integer", "minimum": 0 },
                    "failures": { "type": "array", "items": { "type": "string" } },
                    "sessionId": { "type": "string" }, "outcome": { "enum": ["accepted", "rejected", "rework"] },
                    "failureCategory": { "type": ["string", "null"] }, "repeated": { "type": "boolean" },
                    "weightChanges": { "type": "array", "items": { "type": "object" } },
                    "graph": { "type": "object" },
                },
                "required": ["id", "aggressiveDownweightApplied", "failures"],
            }),
            Self::Weight => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
            Self::Definitions => json!({
                "type": "array",
                "items": { "type": "object", "properties": { "id": { "type": "string" } }, "required": ["id"] },
            }),
            Self::Feedback => {
                let said = json!({
                    "type": "object",
                    "properties": { "average": { "type": "number" }, "count": { "type": "integer", "minimum": 1 } },
                    "required": ["average", "count"],
                });
                json!({ "anyOf": [said, { "type": "null" }] })
            }
            Self::Hits => component("Hits"),
            Self::Memories => many("Memory"),
            Self::Memory => component("Memory"),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::Begun => component("Begun"),
            Self::Drawn => json!({ "anyOf": [{ "type": "integer" }, component("Bytes")] }),
            Self::Frame => component("Frame"),
            Self::FrameView => component("FrameView"),
            Self::Timeline => component("Timeline"),
            Self::Frames => json!({ "anyOf": [many("Frame"), { "type": "null" }] }),
            Self::Number => json!({ "type": "integer", "minimum": 0 }),
            Self::ObjectOrNull => json!({ "type": ["object", "null"] }),
            Self::Object | Self::Stats => json!({ "type": "object" }),
            Self::Run => component("Run"),
            Self::Runs => many("Run"),
            Self::SearchAnswer => component("SearchAnswer"),
            Self::Keys => many("Bytes"),
            Self::Snapshot => component("Snapshot"),
            Self::Tokens => many("Token"),
            Self::Verified => component("Verified"),
            Self::Versions => many("Version"),
        }
    }
}
