//! `annals init`.

use serde_json::json;

use crate::args::GlobalArgs;
use crate::failure::CliResult;
use crate::locate;
use crate::output::CliOutput;
use crate::store_access::{StoreAccess, StoreWait};

pub(super) fn run(global: &GlobalArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::new_store(global.store.as_deref());
    let created = StoreAccess::create(&root, &global.namespace, StoreWait::from_args(global))?;
    if out.json {
        return out.object(&json!({ "store": root.to_string_lossy(), "created": created }));
    }
    let what = if created { "created a store in" } else { "there is a store already in" };
    out.line(format_args!("{what} {}", root.display()))
}
