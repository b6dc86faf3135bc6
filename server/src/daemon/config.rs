//! What a daemon is told: by options, or by a file in TOML. Options win.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

/// How a store is served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Serving {
    /// A Unix socket besides the store's own.
    pub socket: Option<PathBuf>,
    /// An address of the loopback, as `127.0.0.1:7420`.
    pub tcp: Option<String>,
    /// Whether TCP asks for no token.
    pub no_auth: bool,
    /// The BLAKE3 of the token, in hexadecimal digits.
    pub token_blake3: Option<String>,
}

/// Why a store is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// What was asked for makes no sense or is not offered.
    #[error("{0}")]
    Refused(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] annals::Error),
    /// The system.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// What it said.
        #[source]
        cause: std::io::Error,
    },
}

impl Serving {
    /// What a file says.
    ///
    /// # Errors
    /// `Refused` for bytes that are no such file.
    pub fn parse(text: &str) -> Result<Self, ServingError> {
        toml::from_str(text)
            .map_err(|error| ServingError::Refused(format!("the configuration: {}", error.message())))
    }

    /// This with what is missing taken from a file's.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            socket: self.socket.or(other.socket),
            tcp: self.tcp.or(other.tcp),
            no_auth: self.no_auth || other.no_auth,
            token_blake3: self.token_blake3.or(other.token_blake3),
        }
    }

    /// The address to listen at.
    ///
    /// # Errors
    /// `Refused` for one that is none, or not of the loopback.
    pub(super) fn address(&self) -> Result<Option<SocketAddr>, ServingError> {
        let Some(text) = &self.tcp else { return Ok(None) };
        let address: SocketAddr = text.parse().map_err(|_| {
            ServingError::Refused(format!("{text:?} is no address: 127.0.0.1:7420, or [::1]:7420, would be"))
        })?;
        if address.ip().is_loopback() {
            return Ok(Some(address));
        }
        Err(ServingError::Refused(format!(
            "{address} is not an address of the loopback: what goes over TCP here is not encrypted, so others on the network could read it; \
             forward a port through ssh instead"
        )))
    }

    /// The hash of the token that is configured.
    ///
    /// # Errors
    /// `Refused` for one that is none.
    pub(super) fn token(&self) -> Result<Option<blake3::Hash>, ServingError> {
        let parsed = self.token_blake3.as_deref().map(blake3::Hash::from_hex).transpose();
        parsed.map_err(|_| {
            ServingError::Refused("token_blake3 is not 64 hexadecimal digits: `b3sum` prints them".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Serving;

    #[test]
    fn only_the_loopback_is_listened_at() {
        let at = |tcp: &str| Serving { tcp: Some(tcp.to_owned()), ..Serving::default() }.address();
        assert!(at("127.0.0.1:7420").unwrap().is_some() && at("[::1]:0").unwrap().is_some());
        for elsewhere in ["0.0.0.0:7420", "10.0.0.1:7420", "[::]:7420", "192.168.1.1:1", "[::ffff:8.8.8.8]:1"]
        {
            let refused = at(elsewhere).unwrap_err().to_string();
            assert!(refused.contains("not an address of the loopback"), "{refused}");
        }
        assert!(at("localhost").is_err() && at("").is_err());
    }

    #[test]
    fn a_file_fills_in_what_options_leave_open_and_unknown_words_are_refused() {
        let file = Serving::parse("tcp = \"127.0.0.1:1\"\nsocket = \"/tmp/x\"\n").unwrap();
        let options = Serving { tcp: Some("127.0.0.1:2".to_owned()), ..Serving::default() };
        let both = options.or(file.clone());
        assert_eq!((both.tcp.as_deref(), both.socket), (Some("127.0.0.1:2"), file.socket));
        assert!(Serving::parse("port = 1").unwrap_err().to_string().contains("port"));
        assert!(Serving { token_blake3: Some("12".to_owned()), ..Serving::default() }.token().is_err());
    }
}
