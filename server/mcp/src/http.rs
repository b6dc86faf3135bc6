//! The streamable HTTP transport: sessions of clients behind a host's listener.
//!
//! The host checks token, host and origin of every request, and gives the store as this request's token sees it.
//! So changed rights hold from the next call on. A session belongs to the owner that began it; for everybody
//! else there is no session of this id. Clients of protocol 2026-07-28 have no sessions.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::session::SessionId;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::Semaphore;

use crate::server::McpServer;
use crate::store::McpStore;

/// Maximum number of sessions.
const SESSIONS_MAX: usize = 4096;
/// A session without a request for this long ends.
const SESSION_IDLE: Duration = Duration::from_secs(4 * 3600);
/// Maximum number of tool calls that run at a time; further calls wait.
const CALLS_MAX: usize = 16;
const SESSION_HEADER: &str = "mcp-session-id";

/// A response of the transport.
pub type McpResponse = Response<BoxBody<Bytes, Infallible>>;

type McpService = StreamableHttpService<McpServer, LocalSessionManager>;

/// The store of one request.
#[derive(Clone)]
pub(crate) struct RequestStore(pub(crate) Arc<dyn McpStore>);

/// MCP servers for the clients of an HTTP listener.
pub struct McpHttp {
    /// Serves everything but the streams without an end; its sessions end with it.
    calls: McpService,
    /// Serves the streams on which a client waits for messages. annals sends none.
    streams: McpService,
    sessions: Arc<LocalSessionManager>,
    owners: Mutex<HashMap<SessionId, String>>,
}

impl McpHttp {
    /// A transport without sessions. A request's body has at most `body_bytes_max` bytes.
    #[must_use]
    pub fn new(body_bytes_max: usize) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE);
        let (sessions, permits) = (Arc::new(sessions), Arc::new(Semaphore::new(CALLS_MAX)));
        let service = || {
            // The host has checked host and origin.
            let mut config = StreamableHttpServerConfig::default().disable_allowed_hosts();
            config.max_request_body_bytes = body_bytes_max;
            let permits = permits.clone();
            let server = move || Ok(McpServer::of_requests(permits.clone()));
            StreamableHttpService::new(server, sessions.clone(), config)
        };
        Self { calls: service(), streams: service(), sessions: sessions.clone(), owners: Mutex::default() }
    }

    /// Answers a request of `owner`; `store` gets the id of its session, if it has one.
    pub async fn answer<B>(
        &self,
        mut request: Request<B>,
        owner: &str,
        store: impl FnOnce(Option<&str>) -> Arc<dyn McpStore>,
    ) -> McpResponse
    where
        B: http_body::Body + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let session = session_id(request.headers());
        match &session {
            Some(session) if !self.is_owned(session, owner) => {
                return refusal(StatusCode::NOT_FOUND, "there is no such session: begin one with initialize");
            }
            None if self.sessions.sessions.read().await.len() >= SESSIONS_MAX => {
                let why = format!("there are {SESSIONS_MAX} sessions already: end some");
                return refusal(StatusCode::SERVICE_UNAVAILABLE, &why);
            }
            _ => {}
        }
        request.extensions_mut().insert(RequestStore(store(session.as_deref())));
        let service = if request.method() == Method::GET { &self.streams } else { &self.calls };
        let ends = request.method() == Method::DELETE;
        let mut response = service.handle(request).await;
        if ends && response.status() == StatusCode::ACCEPTED {
            // The session has ended already. Clients take 202 for a failure.
            *response.status_mut() = StatusCode::NO_CONTENT;
            *response.body_mut() = Full::new(Bytes::new()).boxed();
        }
        if session.is_none()
            && let Some(begun) = session_id(response.headers())
        {
            self.note_owner(begun, owner).await;
        }
        response
    }

    fn is_owned(&self, session: &SessionId, owner: &str) -> bool {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.get(session).is_some_and(|known| known == owner)
    }

    /// Notes who began a session, and forgets sessions that have ended.
    async fn note_owner(&self, session: SessionId, owner: &str) {
        let living = self.sessions.sessions.read().await;
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.retain(|known, _| living.contains_key(known));
        owners.insert(session, owner.to_owned());
    }

    /// Ends the streams on which clients wait, now and from now on. Calls go on.
    pub fn end_streams(&self) {
        self.streams.config.cancellation_token.cancel();
    }

    /// Ends all sessions and streams.
    pub fn end(&self) {
        self.end_streams();
        self.calls.config.cancellation_token.cancel();
    }
}

fn session_id(headers: &HeaderMap) -> Option<SessionId> {
    headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok()).map(SessionId::from)
}

fn refusal(status: StatusCode, why: &str) -> McpResponse {
    let mut response = Response::new(Full::new(Bytes::from(format!("{why}\n"))).boxed());
    *response.status_mut() = status;
    response
}
