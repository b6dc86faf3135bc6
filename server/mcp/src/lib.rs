//! An MCP server over a store: recorded runs, their frames and the agents' memory as tools and resources of
//! the Model Context Protocol, by the official SDK (rmcp).
//!
//! Invariants:
//! - An answer has at most [`ANSWER_BYTES_MAX`] bytes. A tokenizer makes at most one token of a byte, so it
//!   has fewer than 25,000 tokens. What does not fit is reached by a cursor; nothing is cut without a word.
//! - Recorded text stands only inside JSON strings, with control and bidirectional characters as escapes,
//!   below a fixed sentence that calls it data. So a recording can neither end its string nor begin a line.
//! - A reader with a redaction profile sees nothing that the profile hides: every body, metadata and text goes
//!   through its [`Redactor`](annals_policy::profiles::Redactor).
//!
//! Layout: `store` (what the host provides), `arguments` (parameters, their JSON schemas and their checks),
//! `answer` (pages and pieces of bounded size), `tools` (the tools), `resources` (runs and frames by address),
//! `server` (the protocol), `http` (sessions over HTTP). Sockets, tokens and rights are the host's.

mod answer;
mod arguments;
mod http;
mod resources;
mod server;
mod store;
#[cfg(test)]
mod tests;
mod tools;

pub use self::http::{McpHttp, McpResponse};
pub use answer::ANSWER_BYTES_MAX;
pub use server::{McpServer, serve_stdio};
pub use store::{McpStore, ToolRight};
