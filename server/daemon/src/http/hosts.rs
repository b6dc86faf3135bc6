//! The names by which requests may call this server.
//!
//! A web page of another origin could otherwise reach the server through a name that it makes resolve to this
//! machine.

use std::net::SocketAddr;

/// The names and addresses of a server.
#[derive(Debug, Clone)]
pub(crate) struct ServerHosts {
    port: u16,
    has_tls: bool,
    /// Names and addresses with the port.
    own: Vec<String>,
    /// Names that the configuration allows, with a port or without.
    allowed: Vec<String>,
}

impl ServerHosts {
    pub(crate) fn new(address: SocketAddr, has_tls: bool, allowed: &[String]) -> Self {
        let port = address.port();
        let mut own = vec![format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")];
        if !address.ip().is_unspecified() {
            own.push(address.to_string());
        }
        Self { port, has_tls, own, allowed: allowed.to_vec() }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.has_tls
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Whether a request for this host is for this server. An allowed name without a port also fits with the
    /// server's port.
    pub(super) fn includes(&self, host: &[u8]) -> bool {
        let is = |name: &str| name.as_bytes().eq_ignore_ascii_case(host);
        self.own.iter().any(|own| is(own)) || self.is_allowed(host)
    }

    fn is_allowed(&self, host: &[u8]) -> bool {
        let is = |name: &str| name.as_bytes().eq_ignore_ascii_case(host);
        self.allowed.iter().any(|name| is(name) || is(&format!("{name}:{}", self.port)))
    }

    /// Whether an origin is this server. Behind a proxy that does TLS, the scheme of an allowed name differs
    /// from this server's.
    pub(super) fn is_own_origin(&self, origin: &[u8]) -> bool {
        let (plain, encrypted) = (origin.strip_prefix(b"http://"), origin.strip_prefix(b"https://"));
        let own = if self.has_tls { encrypted } else { plain };
        own.is_some_and(|host| self.includes(host))
            || plain.or(encrypted).is_some_and(|host| self.is_allowed(host))
    }
}

#[cfg(test)]
mod tests {
    use super::ServerHosts;

    #[test]
    fn only_own_and_allowed_names_are_this_server() {
        let allowed = ["annals.example".to_owned(), "other.example:443".to_owned()];
        let hosts = ServerHosts::new("0.0.0.0:7421".parse().unwrap(), true, &allowed);
        for own in [
            "localhost:7421",
            "127.0.0.1:7421",
            "[::1]:7421",
            "Annals.Example",
            "annals.example:7421",
            "other.example:443",
        ] {
            assert!(hosts.includes(own.as_bytes()), "{own}");
        }
        for other in [
            "",
            "localhost",
            "0.0.0.0:7421",
            "annals.example:80",
            "other.example",
            "evil.example",
            "annals.example.evil",
            "localhost:80",
        ] {
            assert!(!hosts.includes(other.as_bytes()), "{other}");
        }
        for (origin, is_own) in [
            ("https://annals.example", true),
            ("http://annals.example", true),
            ("https://localhost:7421", true),
            ("http://localhost:7421", false),
            ("https://evil.example", false),
            ("null", false),
        ] {
            assert_eq!(hosts.is_own_origin(origin.as_bytes()), is_own, "{origin}");
        }
        let plain = ServerHosts::new("127.0.0.1:7421".parse().unwrap(), false, &[]);
        assert!(plain.includes(b"127.0.0.1:7421") && !plain.includes(b"annals.example"));
        assert!(
            plain.is_own_origin(b"http://localhost:7421") && !plain.is_own_origin(b"https://localhost:7421")
        );
    }
}
