//! Tools for agents: the Model Context Protocol over streamable HTTP, at `/mcp`.
//!
//! Each request is logged in by its token, and sees the store as this token may. What changes the store runs
//! as a command ([`crate::perform`]), so rights, durability and logs are those of commands. Reading tools read
//! the token's namespace, through its profile if it may not read unredacted data.

use std::sync::Arc;

use annals::{Namespace, RunReader};
use annals_deliberation::Method;
use annals_diagnostics::RecallWeights;
use annals_mcp::{McpStore, ToolRight};
use annals_memory::{HitWeights, Identity, MemoryHit, MemoryQuery};
use annals_policy::profiles::Redactor;
use annals_review::memory_redaction::redacted_hits;
use annals_text::shell;
use annals_wire::resp::Reply;
use annals_wire::words::parse_error;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method as HttpMethod;
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use http_body_util::Full;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use super::problem::HttpProblem;
use super::{HttpShared, json_only, peer_address};
use crate::access::{Grant, Rights};
use crate::commands::command_of;
use crate::perform::perform;
use crate::session::{ClientInfo, Daemon, Session};

pub(super) const PATH: &str = "/mcp";

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router.route(PATH, any(answer))
}

async fn answer(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    let session = shared.session(&request)?;
    let Some(grant) = session.grant.clone() else {
        return Err(HttpProblem::from_error_text("NOAUTH a token is needed"));
    };
    let uses = [Rights::READ, Rights::REDACTED, Rights::RECORD];
    if !uses.into_iter().any(|right| grant.rights.includes(right)) {
        return Err(HttpProblem::from_error_text("NOPERM tools take the right read, redacted or record"));
    }
    let redactor = shared.daemon.redactor(&session)?;
    let address = peer_address(request.extensions());
    let (head, body) = request.into_parts();
    let (body, place) = match head.method {
        HttpMethod::POST => {
            json_only(&head.headers)?;
            shared.body(body).await?
        }
        _ => (Bytes::new(), None),
    };
    let owner = format!("{}/{}", grant.tenant.name, grant.name);
    let store = |session: Option<&str>| -> Arc<dyn McpStore> {
        Arc::new(GrantedStore {
            daemon: shared.daemon.clone(),
            grant,
            redactor,
            session: session.map(str::to_owned),
            address,
            runtime: Handle::current(),
            _place: place,
        })
    };
    let request = axum::http::Request::from_parts(head, Full::new(body));
    Ok(shared.mcp.answer(request, &owner, store).await.map(Body::new))
}

/// The namespace of a token, for one request.
struct GrantedStore {
    daemon: Arc<Daemon>,
    grant: Grant,
    redactor: Option<Arc<Redactor>>,
    /// The client's MCP session.
    session: Option<String>,
    address: String,
    runtime: Handle,
    /// The share of the room for bodies that the request takes.
    _place: Option<OwnedSemaphorePermit>,
}

impl GrantedStore {
    /// Runs a command as the token. The caller's thread may block.
    fn run(&self, words: Vec<Vec<u8>>) -> annals::Result<Reply> {
        let facts = ClientInfo {
            address: self.address.clone(),
            began_ns: self.daemon.now_ns(),
            ..ClientInfo::default()
        };
        let mut session = Session::new(facts, Some(self.grant.clone()), false);
        match self.runtime.block_on(perform(&self.daemon, &mut session, words)) {
            Reply::Error(text) => Err(parse_error(&text)),
            reply => Ok(reply),
        }
    }

    fn has_right(&self, right: Rights) -> bool {
        self.grant.rights.includes(right)
    }
}

fn words(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn unknown_reply() -> annals::Error {
    annals::Error::new(annals::ErrorKind::Bug, "the command's reply has another form than the tool expects")
}

fn json_text(reply: Reply) -> annals::Result<String> {
    match reply {
        Reply::Json(text) => Ok(text),
        _ => Err(unknown_reply()),
    }
}

impl McpStore for GrantedStore {
    fn namespace(&self) -> annals::Result<Namespace> {
        Ok(self.grant.tenant.space.clone())
    }

    fn redactor(&self) -> Option<&Redactor> {
        self.redactor.as_deref()
    }

    fn recall(
        &self,
        whose: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
        session: Option<&str>,
    ) -> annals::Result<Vec<MemoryHit>> {
        let tenant = &self.grant.tenant;
        let diagnostics = match session {
            Some(_) => {
                self.daemon.store.check_writer()?;
                Some(tenant.diagnostics()?)
            }
            None => tenant.existing_diagnostics()?,
        };
        let weights = diagnostics.as_ref().map(|diagnostics| RecallWeights {
            diagnostics,
            org: whose.tenant.as_deref(),
            session,
        });
        let weights = weights.as_ref().map(|weights| weights as &dyn HitWeights);
        let wanted = MemoryQuery { weights, ..*wanted };
        let hits = tenant.memory()?.recall(whose, question, &*tenant.embedder()?, &wanted)?;
        match &self.redactor {
            Some(redactor) => redacted_hits(redactor, hits),
            None => Ok(hits),
        }
    }

    fn allows(&self, right: ToolRight) -> bool {
        match right {
            ToolRight::Read => self.has_right(Rights::READ) || self.has_right(Rights::REDACTED),
            ToolRight::ReadUnredacted => self.has_right(Rights::READ),
            ToolRight::Record => self.has_right(Rights::RECORD),
        }
    }

    fn remember(&self, whose: &Identity, entry: &str) -> annals::Result<String> {
        let mut put = vec!["mem.put", entry, "EMBED"];
        let parts = [
            ("TENANT", &whose.tenant),
            ("PRINCIPAL", &whose.principal),
            ("CONVERSATION", &whose.conversation),
        ];
        for (option, part) in parts {
            put.extend(part.iter().flat_map(|part| [option, part.as_str()]));
        }
        match self.run(words(&put))? {
            Reply::Array(mut ids) => match ids.pop() {
                Some(Reply::Bulk(id)) => Ok(String::from_utf8_lossy(&id).into_owned()),
                _ => Err(unknown_reply()),
            },
            _ => Err(unknown_reply()),
        }
    }

    fn decisions(&self, method: Method, params: &str) -> annals::Result<Option<String>> {
        let mut call = vec![command_of(method), params];
        call.extend(self.session.iter().flat_map(|session| ["SESSION", session.as_str()]));
        self.run(words(&call)).and_then(json_text).map(Some)
    }

    fn diagnose(&self, session: &str) -> annals::Result<String> {
        self.run(words(&["diag.record", session, "STRICT"])).and_then(json_text)
    }

    fn fork(&self, from: &RunReader, seq: u32, name: &str) -> annals::Result<()> {
        let parent = from.info();
        let (point, severity) = (format!("{}@{seq}", parent.name), parent.severity.name());
        let mut fork = vec!["run.fork", &point, "END", "NAME", name, "SEVERITY", severity];
        for (option, text) in [("AGENT", &parent.agent), ("MODEL", &parent.model)] {
            fork.extend((!text.is_empty()).then_some([option, text.as_str()]).into_iter().flatten());
        }
        self.run(words(&fork)).map(drop)
    }

    fn command_line(&self) -> String {
        // The path of the store is no business of a client.
        match self.grant.tenant.name.as_str() {
            "default" => "annals".to_owned(),
            name => format!("annals --namespace {}", shell::quote(name)),
        }
    }
}
