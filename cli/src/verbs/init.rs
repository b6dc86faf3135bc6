//! `annals init`.

use serde_json::json;

use crate::args::Global;
use crate::door::Door;
use crate::failure::Result;
use crate::locate;
use crate::out::Out;

pub(super) fn run(global: &Global, out: &mut Out) -> Result<()> {
    let root = locate::new_store(global.store.as_deref());
    let created = Door::create(&root, &global.namespace)?;
    if out.json {
        return out.object(&json!({ "store": root.to_string_lossy(), "created": created }));
    }
    let what = if created { "created a store in" } else { "there is a store already in" };
    out.line(format_args!("{what} {}", root.display()))
}
