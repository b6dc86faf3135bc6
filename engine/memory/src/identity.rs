//! Identities: a tenant, a principal and a conversation, and the name that prefixes the keys of their
//! entries.

use annals::{Error, Result};

/// The owner of a memory. An absent part is a value of its own and matches no other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Tenant name; tenants cannot see each other's data.
    pub tenant: Option<String>,
    /// The person or program within the tenant.
    pub principal: Option<String>,
    /// The conversation.
    pub conversation: Option<String>,
}

/// The longest name of an identity, in bytes.
const NAME_BYTES_MAX: usize = 8 << 10;

impl Identity {
    /// The identity's name: the three encoded parts with slashes between them. No two identities share a
    /// name. `%` and `/` are escaped. An absent or empty part is `_`, and the part `_` is `%5F`
    /// (agentfootprint 9.62.0's form).
    #[must_use]
    pub fn name(&self) -> String {
        [&self.tenant, &self.principal, &self.conversation].map(|part| encode_part(part.as_deref())).join("/")
    }

    /// The prefix of the names of all identities of the tenant.
    pub(super) fn tenant_prefix(&self) -> String {
        format!("{}/", encode_part(self.tenant.as_deref()))
    }

    /// The parts, by the names that entries use for them.
    pub(super) fn parts(&self) -> [(&'static str, Option<&str>); 3] {
        [
            ("tenant", self.tenant.as_deref()),
            ("principal", self.principal.as_deref()),
            ("conversationId", self.conversation.as_deref()),
        ]
    }

    /// The name, if it is valid as the start of an entry's key.
    ///
    /// # Errors
    /// `Invalid` if the name is longer than 8 KiB or holds a zero byte.
    pub fn checked_name(&self) -> Result<String> {
        let name = self.name();
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            let what = format!(
                "tenant, principal and conversation must have at most {NAME_BYTES_MAX} bytes together and no zero byte"
            );
            return Err(Error::invalid(what));
        }
        Ok(name)
    }
}

fn encode_part(part: Option<&str>) -> String {
    match part {
        None | Some("") => "_".to_owned(),
        Some("_") => "%5F".to_owned(),
        Some(part) => part.replace('%', "%25").replace('/', "%2F"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(tenant: &str, principal: &str, conversation: &str) -> String {
        let part = |text: &str| Some(text.to_owned());
        Identity { tenant: part(tenant), principal: part(principal), conversation: part(conversation) }.name()
    }

    #[test]
    fn identity_names_are_unique() {
        assert_eq!(Identity::default().name(), "_/_/_");
        assert_eq!(name("lending", "", "app-42"), "lending/_/app-42");
        assert_eq!(name("_", "a/b", "100%"), "%5F/a%2Fb/100%25");
        let parts = ["", "_", "%5F", "/", "%2F", "a", "a/", "/a", "%", "__"];
        let mut names = std::collections::BTreeMap::new();
        for tenant in parts {
            for principal in parts {
                for conversation in parts {
                    let name = name(tenant, principal, conversation);
                    assert_eq!(name.matches('/').count(), 2, "{name}");
                    let before = names.insert(name.clone(), (tenant, principal, conversation));
                    assert_eq!(before, None, "{name}");
                }
            }
        }
    }
}
