//! Calls upstreams: sends the request unchanged to the origin of its mount and nowhere else.
//!
//! Redirects are not followed, bodies are not decompressed, and an answer is waited for only as long as the
//! client waits. Link-local addresses, where clouds serve machine credentials, are never called, by any name.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HOST, HeaderMap};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Body, Client, Response, Url};

use super::exchange::Headers;
use super::listen::Asked;
use super::mounts::{Mount, MountError, Mounts};

/// Maximum time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Which upstreams may be called.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// If not empty, only these hosts are allowed.
    pub allowed: Vec<String>,
}

impl Guard {
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
        if host.parse().is_ok_and(of_the_link) || host == "metadata.google.internal" {
            return refuse("it is a link-local address, where clouds keep a machine's credentials");
        }
        if !self.allowed.is_empty() && !self.allowed.iter().any(|name| name.eq_ignore_ascii_case(&host)) {
            return refuse("its host is not among those of --allow-host");
        }
        Ok(())
    }
}

/// Link-local addresses and the IPv6 address of EC2's metadata, also mapped into IPv6.
fn of_the_link(ip: IpAddr) -> bool {
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
struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.filter(|address| !of_the_link(address.ip())).collect();
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
pub(crate) struct Upstream {
    /// For other machines, through the proxy that the environment names, if any.
    far: OnceLock<Result<Client, String>>,
    /// For this machine, with TLS.
    near: OnceLock<Result<Client, String>>,
    /// For this machine, without TLS.
    plain: OnceLock<Result<Client, String>>,
}

impl Upstream {
    /// The client for this address.
    pub(crate) fn client(&self, url: &Url) -> Result<&Client, String> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let near =
            host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
        let plain = near && url.scheme() == "http";
        let made = match (near, plain) {
            (_, true) => &self.plain,
            (true, false) => &self.near,
            (false, false) => &self.far,
        };
        made.get_or_init(|| client(near, plain)).as_ref().map_err(Clone::clone)
    }

    /// Sends a request; the error says why there is no answer.
    pub(crate) async fn send(
        &self,
        mount: &Mount,
        asked: &Asked,
        body: Option<Body>,
    ) -> Result<Response, String> {
        let query = asked.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        let text = format!("{}{}{query}", mount.origin, asked.path);
        let url = Url::parse(&text).map_err(|e| format!("{text} is no address: {e}"))?;
        let client = self.client(&url)?;
        let mut headers: HeaderMap = Headers::of(&asked.headers).to_map();
        headers.remove(HOST);
        headers.remove(hyper::header::CONTENT_LENGTH);
        let mut request = client.request(asked.method.clone(), url).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        } else if asked.headers.contains_key(hyper::header::CONTENT_LENGTH) {
            request = request.body(Bytes::new());
        }
        request.send().await.map_err(|e| format!("{} cannot be asked: {}", mount.origin, chain(&e)))
    }
}

fn client(near: bool, plain: bool) -> Result<Client, String> {
    // If another provider was installed first, that one is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .dns_resolver(Resolver)
        .http1_only();
    let builder = if near { builder.no_proxy() } else { builder };
    let builder = if plain { builder.tls_certs_only([]) } else { builder };
    builder.build().map_err(|e| format!("no HTTP client can be made: {}", chain(&e)))
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
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
    fn a_machines_credentials_are_out_of_reach() {
        let guard = Guard::default();
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
    fn with_a_list_only_its_hosts_are_called() {
        let guard = Guard { allowed: vec!["API.openai.com".into(), "::1".into()] };
        assert!(guard.check(&mounts("https://api.openai.com")).is_ok());
        assert!(guard.check(&mounts("http://[::1]:80")).is_ok());
        let refused = guard.check(&mounts("https://api.openai.com.evil.example")).unwrap_err();
        assert!(refused.to_string().contains("--allow-host"), "{refused}");
    }
}
