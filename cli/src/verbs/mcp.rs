//! `annals mcp`: an MCP server on standard input and output.

use std::sync::Arc;

use crate::args::{GlobalArgs, McpArgs};
use crate::failure::{CliResult, Failure};
use crate::store_access::{StoreWait, ToolStore, engine_failure};
use crate::{locate, profiles};

pub(super) fn run(global: &GlobalArgs, args: &McpArgs) -> CliResult<()> {
    if global.json {
        return Err(Failure::usage(
            "--json does nothing here: an MCP server speaks JSON-RPC",
            "leave it out",
        ));
    }
    let redactor = profiles::redactor(global, &args.reader)?;
    let root = locate::store(global.store.as_deref());
    let store = ToolStore::new(root, &global.namespace, redactor, args.write, StoreWait::from_args(global));
    annals_mcp::serve_stdio(Arc::new(store)).map_err(engine_failure)
}
