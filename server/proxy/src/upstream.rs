//! Calls upstreams: sends the request unchanged to the origin of its mount and nowhere else.
//!
//! Redirects are not followed, bodies are not decompressed, and an answer is waited for only as long as the
//! client waits. Link-local addresses, where clouds serve machine credentials, are never called, by any name.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};

use crate::mounts::{Mount, MountError, Mounts};

/// Maximum time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Which upstreams may be called.
#[derive(Debug, Clone, Default)]
pub struct UpstreamGuard {
    /// If not empty, only these hosts are allowed.
    pub allowed: Vec<String>,
}

impl UpstreamGuard {
    /// Refuses mounts that may not be called.
    ///
    /// # Errors
    /// A host that is not allowed, or a link-local address.
    pub fn check(&self, mounts: &Mounts) -> Result<(), MountError> {
        for mount in &mounts.0 {
            self.check_one(mount)?;
        }
        Ok(())
    }

    fn check_one(&self, mount: &Mount) -> Result<(), MountError> {
        let refuse = |why: &str| Err(MountError(format!("{} is not called: {why}", mount.origin)));
        let url = Url::parse(&mount.origin).map_err(|e| MountError(format!("{}: {e}", mount.origin)))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        if host.parse().is_ok_and(is_link_local) || host == "metadata.google.internal" {
            return refuse("it is a link-local address, where clouds keep a machine's credentials");
        }
        if !self.allowed.is_empty() && !self.allowed.iter().any(|name| name.eq_ignore_ascii_case(&host)) {
            return refuse("its host is not among those of --allow-host");
        }
        Ok(())
    }
}

/// Link-local addresses and the IPv6 address of EC2's metadata, also mapped into IPv6.
fn is_link_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.is_unspecified(),
        IpAddr::V6(ip) => {
            ip.is_unicast_link_local()
                || ip.is_unspecified()
                || ip.segments() == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254]
        }
    }
}

/// The system's resolver without link-local addresses: a name that only leads there is not called.
#[derive(Debug)]
struct UpstreamResolver;

impl Resolve for UpstreamResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.filter(|address| !is_link_local(address.ip())).collect();
            if found.is_empty() {
                return Err(format!("{} has no address that may be called", name.as_str()).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The HTTP clients for all upstreams of a run. Each is made when first needed: reading the system's
/// certificates takes longer than everything else before a program starts.
#[derive(Debug, Default)]
pub(crate) struct UpstreamClients {
    /// For other machines, through the proxy that the environment names, if any.
    remote: OnceLock<Result<Client, String>>,
    /// For this machine, with TLS.
    loopback_tls: OnceLock<Result<Client, String>>,
    /// For this machine, without TLS.
    loopback: OnceLock<Result<Client, String>>,
}

impl UpstreamClients {
    /// The client for this address.
    pub(crate) fn client(&self, url: &Url) -> Result<&Client, String> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let near =
            host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
        let plain = near && url.scheme() == "http";
        let made = match (near, plain) {
            (_, true) => &self.loopback,
            (true, false) => &self.loopback_tls,
            (false, false) => &self.remote,
        };
        made.get_or_init(|| client(near, plain)).as_ref().map_err(Clone::clone)
    }
}

fn client(near: bool, plain: bool) -> Result<Client, String> {
    // If another provider was installed first, that one is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .dns_resolver(UpstreamResolver)
        .http1_only();
    let builder = if near { builder.no_proxy() } else { builder };
    let builder = if plain { builder.tls_certs_only([]) } else { builder };
    builder.build().map_err(|e| format!("no HTTP client can be made: {}", error_chain(&e)))
}

/// An error with its causes.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(origin: &str) -> Mounts {
        Mounts(vec![Mount { name: "x".into(), origin: origin.into(), ..Mount::default() }])
    }

    #[test]
    fn link_local_upstreams_are_refused() {
        let guard = UpstreamGuard::default();
        for origin in [
            "http://169.254.169.254",
            "http://[fe80::1]:80",
            "http://[fd00:ec2::254]",
            "http://[::ffff:169.254.169.254]",
            "http://metadata.google.internal",
            "http://0.0.0.0:80",
        ] {
            assert!(guard.check(&mounts(origin)).is_err(), "{origin}");
        }
        for origin in ["https://api.openai.com", "http://127.0.0.1:8000", "http://10.0.0.1", "http://[::1]:1"]
        {
            assert_eq!(guard.check(&mounts(origin)), Ok(()), "{origin}");
        }
    }

    #[test]
    fn allow_list_refuses_other_hosts() {
        let guard = UpstreamGuard { allowed: vec!["API.openai.com".into(), "::1".into()] };
        assert!(guard.check(&mounts("https://api.openai.com")).is_ok());
        assert!(guard.check(&mounts("http://[::1]:80")).is_ok());
        let refused = guard.check(&mounts("https://api.openai.com.evil.example")).unwrap_err();
        assert!(refused.to_string().contains("--allow-host"), "{refused}");
    }
}
