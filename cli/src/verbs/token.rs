//! `annals token`: manages the tokens for access to a daemon. If a daemon serves the store, the daemon does
//! the work; else this process does.

use annals::{ErrorKind, Store};
use annals_server::{
    AccessToken, Rights, ServeError, ask_daemon, list_tokens, make_token, parse_expiry_ns, revoke_token,
    rotate_token, time_text,
};
use serde_json::json;

use crate::args::{GlobalArgs, TokenAddArgs, TokenRotateArgs, TokenVerb};
use crate::failure::{CliResult, Failure};
use crate::locate;
use crate::output::CliOutput;
use crate::store_access::{engine_failure, open_for_writing, write_options};

pub(super) fn run(global: &GlobalArgs, verb: &TokenVerb, out: &mut CliOutput) -> CliResult<()> {
    match verb {
        TokenVerb::Add(args) => add(global, args, out),
        TokenVerb::List => list(global, out),
        TokenVerb::Rotate(args) => rotate(global, args, out),
        TokenVerb::Revoke(args) => revoke(global, &args.name, out),
    }
}

fn add(global: &GlobalArgs, args: &TokenAddArgs, out: &mut CliOutput) -> CliResult<()> {
    let default = if args.profile.is_some() { Rights::REDACTED } else { Rights::ALL };
    let rights = args.rights.as_deref().map_or(Ok(default), str::parse::<Rights>);
    let rights = rights.map_err(|why| Failure::usage(why, "as in --rights record,read"))?;
    let root = locate::store(global.store.as_deref());
    let named = rights.to_string();
    let mut words: Vec<&[u8]> = vec![
        b"TOKEN.ADD",
        args.name.as_bytes(),
        b"NAMESPACE",
        global.namespace.as_bytes(),
        b"RIGHTS",
        named.as_bytes(),
    ];
    if let Some(profile) = &args.profile {
        words.extend([b"PROFILE".as_slice(), profile.as_bytes()]);
    }
    if let Some(expires) = &args.expires {
        words.extend([b"EXPIRES".as_slice(), expires.as_bytes()]);
    }
    let text = match ask_daemon(&root, &words).map_err(daemon_failure)? {
        Some(text) => text,
        None => {
            let (store, now_ns) = open_store(global)?;
            let (profile, expires_ns) = (args.profile.as_deref(), expiry(args.expires.as_deref(), now_ns)?);
            let (_, text) =
                make_token(&store, &args.name, &global.namespace, rights, profile, expires_ns, now_ns)
                    .map_err(token_failure)?;
            store.close().map_err(engine_failure)?;
            text
        }
    };
    if out.json {
        let (name, namespace) = (&args.name, &global.namespace);
        let mut object = json!({ "name": name, "namespace": namespace, "rights": named, "token": text });
        if let Some(profile) = &args.profile {
            object["profile"] = json!(profile);
        }
        return out.object(&object);
    }
    out.line(text)
}

fn rotate(global: &GlobalArgs, args: &TokenRotateArgs, out: &mut CliOutput) -> CliResult<()> {
    let overlap_ns = annals::retention::parse_duration_ns(&args.overlap).ok_or_else(|| {
        Failure::usage(format!("--overlap {:?} is not a duration", args.overlap), "as in --overlap 24h")
    })?;
    let root = locate::store(global.store.as_deref());
    let mut words: Vec<&[u8]> =
        vec![b"TOKEN.ROTATE", args.name.as_bytes(), b"OVERLAP", args.overlap.as_bytes()];
    if let Some(expires) = &args.expires {
        words.extend([b"EXPIRES".as_slice(), expires.as_bytes()]);
    }
    let text = match ask_daemon(&root, &words).map_err(daemon_failure)? {
        Some(text) => text,
        None => {
            let (store, now_ns) = open_store(global)?;
            let expires_ns = expiry(args.expires.as_deref(), now_ns)?;
            let (_, text) = rotate_token(&store, &args.name, overlap_ns, expires_ns, now_ns).map_err(
                |error| match error {
                    ServeError::Store(error) => daemon_failure(error),
                    other => token_failure(other),
                },
            )?;
            store.close().map_err(engine_failure)?;
            text
        }
    };
    if out.json { out.object(&json!({ "name": args.name, "token": text })) } else { out.line(text) }
}

/// The time of an expiry that an option names.
fn expiry(text: Option<&str>, now_ns: u64) -> CliResult<Option<u64>> {
    let parsed = text.map(|text| parse_expiry_ns(text, now_ns)).transpose();
    parsed.map_err(|why| Failure::usage(why, "as in --expires 90d or --expires 2026-12-31T00:00:00Z"))
}

fn list(global: &GlobalArgs, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    let store = Store::open_read_only(&root).map_err(engine_failure)?;
    for AccessToken { name, namespace, rights, profile, made_ns, expires_ns, .. } in
        list_tokens(&store).map_err(token_failure)?
    {
        if out.json {
            let rights = rights.to_string();
            let mut object =
                json!({ "name": name, "namespace": namespace, "rights": rights, "made_ns": made_ns });
            if let Some(profile) = profile {
                object["profile"] = json!(profile);
            }
            if let Some(expires_ns) = expires_ns {
                object["expires_ns"] = json!(expires_ns);
            }
            out.object(&object)?;
        } else {
            let profile = profile.map_or(String::new(), |profile| format!("  {profile}"));
            let expires = expires_ns.map_or(String::new(), |ns| format!("  expires {}", time_text(ns)));
            out.line(format_args!("{name}  {namespace}  {rights}{profile}{expires}"))?;
        }
    }
    Ok(())
}

fn revoke(global: &GlobalArgs, name: &str, out: &mut CliOutput) -> CliResult<()> {
    let root = locate::store(global.store.as_deref());
    if ask_daemon(&root, &[b"TOKEN.REVOKE", name.as_bytes()]).map_err(daemon_failure)?.is_none() {
        let (store, _) = open_store(global)?;
        let was = revoke_token(&store, name).map_err(token_failure)?;
        store.close().map_err(engine_failure)?;
        if !was {
            let why = format!("there is no token {name}");
            return Err(Failure::missing(why, "`annals token list` lists what there is"));
        }
    }
    if out.json { out.object(&json!({ "revoked": name })) } else { out.line(format_args!("revoked {name}")) }
}

/// Opens the store, and returns it with the present time.
fn open_store(global: &GlobalArgs) -> CliResult<(Store, u64)> {
    let options = write_options();
    let now_ns = options.io.now_ns();
    let root = locate::store(global.store.as_deref());
    let store = open_for_writing(&root, options).map_err(engine_failure)?;
    Ok((store, now_ns))
}

/// Turns a daemon's error into a failure. Only a token can be missing here.
fn daemon_failure(error: annals::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => Failure::missing(error, "`annals token list` lists what there is"),
        // A recorder serves other recorders and upkeep only.
        ErrorKind::Invalid if error.to_string().starts_with("unknown command") => Failure::failed(
            "a recorder holds the store, and it does not change tokens",
            "run this again when the recording has ended, or record through `annals serve`",
        ),
        _ => engine_failure(error),
    }
}

fn token_failure(error: ServeError) -> Failure {
    match error {
        ServeError::Store(error) => engine_failure(error),
        other => Failure::failed(other, "`annals token list` lists what there is"),
    }
}
