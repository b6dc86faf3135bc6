//! The API description (OpenAPI 3.1), generated from the table of routes.

use annals_deliberation::Method;
use serde_json::{Map, Value, json};

use super::{bodies, events, forks, mcp, replays};
use annals_wire::schema::routes::{HttpRoute, HttpVerb, MemberKind, ROUTES, ReplyShape, WordSource};
use annals_wire::schema::schemas;

/// The whole document. An open daemon accepts a token but does not require one.
pub(super) fn document(is_open: bool) -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let verb = match route.verb {
            HttpVerb::Get => "get",
            HttpVerb::Put => "put",
            HttpVerb::Post => "post",
            HttpVerb::Delete => "delete",
        };
        add_operation(&mut paths, route.path, verb, operation(route));
    }
    for (verb, path, id, summary) in bodies::DESCRIBED {
        add_operation(&mut paths, path, verb, stream_operation(verb, path, id, summary));
    }
    for (verb, path, id, summary) in replays::DESCRIBED {
        add_operation(&mut paths, path, verb, replay_operation(path, id, summary));
    }
    for (verb, path, id, summary) in forks::DESCRIBED {
        add_operation(&mut paths, path, verb, fork_operation(path, id, summary));
    }
    for (verb, path, id, summary) in events::DESCRIBED {
        add_operation(&mut paths, path, verb, event_operation(path, id, summary));
    }
    for (path, id, summary) in [
        ("/v1/traces", "traces", "Ingests OpenTelemetry spans (OTLP, optionally gzip) as runs and frames."),
        (
            "/v1/logs",
            "logs",
            "Ingests OpenTelemetry log records (OTLP, optionally gzip) that hold content of model calls as frames of their traces. Other records are rejected and counted.",
        ),
    ] {
        add_operation(&mut paths, path, "post", otlp_operation(id, summary));
    }
    add_operation(&mut paths, "/v1/cstp", "post", cstp_operation());
    for (verb, id, summary) in [
        ("post", "mcp", "Tools for agents: a message of the Model Context Protocol over streamable HTTP."),
        ("get", "mcpStream", "The stream of a session's server on which no message comes yet."),
        ("delete", "endMcp", "Ends a session."),
    ] {
        add_operation(&mut paths, mcp::PATH, verb, mcp_operation(verb, id, summary));
    }
    for (path, id, summary) in [
        ("/healthz", "alive", "Liveness check. Needs no token."),
        ("/readyz", "ready", "Readiness check: 503 if the store does not accept writes. Needs no token."),
        ("/metrics", "metrics", "Metrics for Prometheus (OpenMetrics)."),
    ] {
        let mut operation = operation_object(
            id,
            summary,
            Vec::new(),
            json!({ "200": { "description": "As a text.", "content": { "text/plain": { "schema": { "type": "string" } } } } }),
        );
        if path == "/metrics" {
            operation["responses"]["200"]["content"] =
                json!({ "application/openmetrics-text": { "schema": { "type": "string" } } });
        } else {
            operation["security"] = json!([]);
        }
        if path == "/readyz" {
            operation["responses"]["503"] = json!({ "description": "The store does not accept writes." });
        }
        add_operation(&mut paths, path, "get", operation);
    }
    add_operation(&mut paths, "/login", "post", login_operation());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "annals",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Recorded runs of agents: read, written, replayed, forked.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": if is_open { json!([{}, { "token": [] }]) } else { json!([{ "token": [] }]) },
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas::components(),
        },
    })
}

fn add_operation(paths: &mut Map<String, Value>, path: &str, verb: &str, operation: Value) {
    let at = paths.entry(path.to_owned()).or_insert_with(|| json!({}));
    at[verb] = operation;
}

fn operation_object(id: &str, summary: &str, parameters: Vec<Value>, responses: Value) -> Value {
    let mut operation = json!({ "operationId": id, "summary": summary, "responses": responses });
    operation["responses"]["default"] = json!({
        "description": "An error.",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// The parameters in a path.
fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let one = |name: &str| {
        let schema = match name {
            "seq" => json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX }),
            "database" => json!({ "type": "integer", "minimum": 0, "maximum": 15 }),
            "id" => json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
            _ => json!({ "type": "string", "minLength": 1 }),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    };
    names.map(one).collect()
}

fn kind_schema(kind: MemberKind) -> Value {
    let number = || json!({ "type": "number", "minimum": f32::MIN, "maximum": f32::MAX });
    match kind {
        MemberKind::Text => json!({ "type": "string" }),
        MemberKind::Bytes => json!({ "$ref": "#/components/schemas/Bytes" }),
        MemberKind::Json => {
            json!({ "description": "JSON as it stands, or a text that holds it." })
        }
        MemberKind::Number => json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }),
        MemberKind::Count => json!({ "type": "integer", "minimum": 1, "maximum": i64::MAX }),
        MemberKind::Frame => json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }),
        MemberKind::OneOf(texts) => json!({ "type": "string", "enum": texts }),
        MemberKind::Flag => json!({ "type": "boolean" }),
        MemberKind::Real => json!({ "type": "number" }),
        MemberKind::Names => json!({ "type": "array", "items": { "type": "string" } }),
        MemberKind::Vector => json!({ "type": "array", "items": number() }),
        MemberKind::JsonArray => json!({ "type": "array", "minItems": 1, "items": { "type": "object" } }),
        MemberKind::Texts => {
            let plain = json!({ "type": "string", "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$" });
            json!({ "type": "object", "propertyNames": plain, "additionalProperties": plain })
        }
        MemberKind::Vectors => {
            json!({ "type": "object", "additionalProperties": { "type": "array", "items": number() } })
        }
    }
}

fn operation(route: &HttpRoute) -> Value {
    let mut parameters = path_parameters(route.path);
    let (mut properties, mut required) = (Map::new(), Vec::new());
    let mut raw = false;
    for word in route.words {
        match *word {
            WordSource::Path(_) | WordSource::Constant(_) => {}
            WordSource::PathAt(_, name) => {
                properties.insert(name.to_owned(), kind_schema(MemberKind::Frame));
                required.push(name);
            }
            WordSource::Field(name, of) => {
                properties.insert(name.to_owned(), kind_schema(of));
                required.push(name);
            }
            WordSource::Option(name, _, of) | WordSource::OptionalValue(name, of) => {
                let or_null = json!({ "anyOf": [kind_schema(of), { "type": "null" }] });
                properties.insert(name.to_owned(), or_null);
            }
            WordSource::Query(name, _, of) => {
                let mut parameter =
                    json!({ "name": name, "in": "query", "required": false, "schema": kind_schema(of) });
                if of == MemberKind::Names {
                    parameter["explode"] = false.into();
                }
                parameters.push(parameter);
            }
            WordSource::RequiredQuery(name, of) => {
                parameters.push(
                    json!({ "name": name, "in": "query", "required": true, "schema": kind_schema(of) }),
                );
            }
            WordSource::Body => raw = true,
        }
    }
    let json_of = |schema: Value| json!({ "application/json": { "schema": schema } });
    let (status, content) = match route.gives {
        ReplyShape::Json(schema) | ReplyShape::Found(schema) => (route.status, Some(json_of(schema.json()))),
        ReplyShape::Named(name, schema) => {
            let object =
                json!({ "type": "object", "properties": { name: schema.json() }, "required": [name] });
            (route.status, Some(json_of(object)))
        }
        ReplyShape::Page(name, schema) => {
            let cursor = json!({ "type": "string", "pattern": "^[0-9]+$" });
            let properties = json!({ "cursor": cursor, name: schema.json() });
            let object = json!({ "type": "object", "properties": properties, "required": ["cursor", name] });
            (route.status, Some(json_of(object)))
        }
        ReplyShape::Bytes => (route.status, Some(json!({ "application/octet-stream": {} }))),
        ReplyShape::Nothing => (204, None),
    };
    let mut response = json!({ "description": "Done." });
    if let Some(content) = content {
        response["content"] = content;
    }
    let mut responses = Map::new();
    responses.insert(status.to_string(), response);
    let summary = format!("{} The command {}.", route.summary, route.command.to_ascii_uppercase());
    let mut operation = operation_object(route.id, &summary, parameters, responses.into());
    if raw {
        operation["requestBody"] =
            json!({ "required": false, "content": { "application/octet-stream": {} } });
    } else if route.verb == HttpVerb::Post {
        let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
        if !required.is_empty() {
            schema["required"] = required.clone().into();
        }
        operation["requestBody"] = json!({ "required": !required.is_empty(), "content": json_of(schema) });
    }
    operation
}

fn stream_operation(verb: &str, path: &str, id: &str, summary: &str) -> Value {
    let bytes = json!({ "application/octet-stream": {} });
    let responses = match (verb, id) {
        ("get", _) => json!({
            "200": { "description": "The whole body. `ETag` is its BLAKE3 hash, or the first 8 bytes of it.", "content": bytes },
            "206": { "description": "The range given by `Range`.", "content": bytes },
            "304": { "description": "Unchanged since `If-None-Match`." },
        }),
        (_, "putBlob") => {
            json!({ "201": { "description": "Saved to disk.", "content": { "application/json": { "schema": {
            "type": "object", "properties": { "id": { "type": "string" }, "bytes": { "type": "integer" } }, "required": ["id", "bytes"],
        } } } } })
        }
        _ => json!({ "200": { "description": "Saved to disk.", "content": { "application/json": { "schema": {
            "type": "object", "properties": { "response_bytes": { "type": "integer" } }, "required": ["response_bytes"],
        } } } } }),
    };
    let mut operation = operation_object(id, summary, path_parameters(path), responses);
    if verb == "post" {
        // An empty body is allowed, too.
        operation["requestBody"] = json!({ "required": false, "content": bytes });
    }
    operation
}

fn event_operation(path: &str, id: &str, summary: &str) -> Value {
    let content = json!({ "text/event-stream": { "schema": { "type": "string" } } });
    let responses = json!({ "200": { "description": "Events, until the end.", "content": content } });
    let mut parameters = path_parameters(path);
    let parameter = |name: &str, place: &str| json!({ "name": name, "in": place, "schema": { "type": "integer", "minimum": 0 } });
    if id == "followRun" {
        parameters.push(parameter("from", "query"));
    }
    parameters.push(parameter("Last-Event-ID", "header"));
    operation_object(id, summary, parameters, responses)
}

fn otlp_operation(id: &str, summary: &str) -> Value {
    let content =
        json!({ "application/x-protobuf": {}, "application/json": { "schema": { "type": "object" } } });
    let responses =
        json!({ "200": { "description": "All that was accepted is on disk.", "content": content } });
    let mut operation = operation_object(id, summary, Vec::new(), responses);
    // Errors in the body itself are reported in the protocol's own encoding.
    for (kind, schema) in content.as_object().into_iter().flatten() {
        operation["responses"]["default"]["content"][kind] = schema.clone();
    }
    operation["requestBody"] = json!({ "required": true, "content": content });
    operation
}

fn cstp_operation() -> Value {
    let id = json!({ "type": ["string", "number", "null"] });
    let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
    let call = json!({
        "type": "object",
        "properties": { "jsonrpc": { "const": "2.0" }, "id": id, "method": { "enum": names }, "params": { "type": "object" } },
        "required": ["jsonrpc", "method"],
    });
    let answer = json!({
        "type": "object",
        "properties": { "jsonrpc": { "const": "2.0" }, "id": id, "result": {}, "error": { "type": "object" } },
        "required": ["jsonrpc", "id"],
    });
    let one_or_many = |schema: Value| {
        json!({ "application/json": { "schema": {
        "anyOf": [schema.clone(), { "type": "array", "items": schema }],
    } } })
    };
    let responses = json!({
        "200": { "description": "The answers. An error of a call is in its answer.", "content": one_or_many(answer) },
        "204": { "description": "All calls were notifications." },
    });
    let summary = "Decisions of agents by JSON-RPC 2.0: one call, or a batch of at most 1000.";
    let mut operation = operation_object("cstp", summary, Vec::new(), responses);
    operation["requestBody"] = json!({ "required": true, "content": one_or_many(call) });
    operation
}

fn login_operation() -> Value {
    let object = |properties: Value| {
        let required: Vec<&String> =
            properties.as_object().into_iter().flatten().map(|(name, _)| name).collect();
        json!({ "application/json": { "schema": {
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        } } })
    };
    let responses = json!({ "200": {
        "description": "A session of twelve hours: a cookie, and the key that each request has in the header `annals-page`.",
        "headers": { "set-cookie": { "schema": { "type": "string" } } },
        "content": object(json!({
            "key": { "type": "string", "description": "64 hexadecimal digits." },
            "reads_only": { "type": "boolean", "description": "Another process holds the store: what changes it is refused." },
        })),
    } });
    let summary = "Trades the code of a one-time link for a session of the debugger page. Needs no token.";
    let mut operation = operation_object("login", summary, Vec::new(), responses);
    operation["requestBody"] = json!({ "required": true, "content": object(json!({ "code": { "type": "string", "description": "The code of the link." } })) });
    operation["security"] = json!([]);
    operation
}

fn mcp_operation(verb: &str, id: &str, summary: &str) -> Value {
    let stream = json!({ "text/event-stream": { "schema": { "type": "string" } } });
    let responses = match verb {
        "delete" => json!({ "204": { "description": "The session has ended." } }),
        _ => json!({ "200": { "description": "Events with messages of the protocol.", "content": stream } }),
    };
    let session = json!({ "name": "Mcp-Session-Id", "in": "header", "schema": { "type": "string" } });
    let mut operation = operation_object(id, summary, vec![session], responses);
    if verb == "post" {
        operation["responses"]["202"] = json!({ "description": "The message needs no answer." });
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": { "type": "object" } } } });
    }
    operation
}

fn fork_operation(path: &str, id: &str, summary: &str) -> Value {
    let object = |properties: Value| json!({ "application/json": { "schema": { "type": "object", "properties": properties } } });
    let text = || json!({ "type": "string" });
    let responses = match id {
        "startFork" => {
            json!({ "201": { "description": "The new run's name.", "content": object(json!({ "run": text() })) } })
        }
        "startedForks" => {
            let fork = json!({ "type": "object", "properties": {
                "run": text(), "parent": text(), "at": { "type": "integer" }, "running": { "type": "boolean" },
                "code": { "type": ["integer", "null"] }, "output": text(),
            } });
            let properties = json!({
                "command": { "type": ["array", "null"], "items": text() },
                "forks": { "type": "array", "items": fork },
            });
            json!({ "200": { "description": "The oldest first.", "content": object(properties) } })
        }
        _ => json!({ "204": { "description": "It was asked to end." } }),
    };
    let mut operation = operation_object(id, summary, path_parameters(path), responses);
    if id == "startFork" {
        let edits = |what: &str, value: Value| json!({ "type": "object", "description": what, "additionalProperties": value });
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": {
            "type": "object",
            "properties": {
                "run": { "type": "string", "description": "The run to fork." },
                "at": { "type": "integer", "description": "The frame to fork at." },
                "name": { "type": ["string", "null"], "description": "Of the new run; default: RUN-fork-AT." },
                "answer": { "type": ["string", "null"], "description": "Another answer of the frame." },
                "tool_results": edits("Other results, by the id of the tool call.", text()),
                "set": edits("Other values in the request of the frame, by JSON path.", json!({})),
                "set_all": edits("Other values in this and all later requests, by JSON path.", json!({})),
                "model": { "type": ["string", "null"], "description": "Another model from the frame on." },
            },
            "required": ["run", "at"], "additionalProperties": false,
        } } } });
    }
    operation
}

fn replay_operation(path: &str, id: &str, summary: &str) -> Value {
    let object = |name: &str, schema: Value| json!({ "application/json": { "schema": { "type": "object", "properties": { name: schema }, "required": [name] } } });
    let bytes = || json!({ "$ref": "#/components/schemas/Bytes" });
    let responses = match id {
        "beginReplay" => {
            json!({ "201": { "description": "Its name.", "content": object("replay", json!({ "type": "string" })) } })
        }
        "replay" => {
            json!({ "200": { "description": "The recorded response.", "content": object("response", bytes()) } })
        }
        _ => json!({ "204": { "description": "Done." } }),
    };
    let mut operation = operation_object(id, summary, path_parameters(path), responses);
    if id == "replay" {
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": {
            "type": "object", "properties": { "request": bytes(), "name": { "type": ["string", "null"] } },
            "required": ["request"], "additionalProperties": false,
        } } } });
    }
    operation
}
