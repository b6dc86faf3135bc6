//! Profiles: what is removed, what stays, and the kind of the resulting body.

mod forms;
mod labelled;
mod shapes;

use super::{Profile, Profiles, Redactor};

const KEY: [u8; 32] = [7; 32];

fn safe() -> Redactor {
    Redactor::new(&Profile::safe(), KEY)
}

/// A redactor for a file's profile with these lines.
fn redactor_with(lines: &str) -> Redactor {
    let profiles = Profiles::parse(&format!("[[profile]]\nname = \"mine\"\n{lines}")).unwrap();
    Redactor::new(profiles.find("mine").unwrap(), KEY)
}

fn shown(redactor: &Redactor, body: &str) -> String {
    String::from_utf8(redactor.body(body.as_bytes(), None).bytes.into_owned()).unwrap()
}

/// The text with the placeholders' hashes removed: `[email]`.
fn short(text: &str) -> String {
    let tags = regex::Regex::new(r"\[([a-z0-9-]+):[0-9a-f]{12}").unwrap();
    tags.replace_all(text, "[$1").into_owned()
}
