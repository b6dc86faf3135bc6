//! A request passed on to its upstream, as it came.

use annals_policy::exchange::Headers;
use bytes::Bytes;
use hyper::header::{HOST, HeaderMap};
use reqwest::{Body, Response, Url};

use super::listen::ProxyRequest;
use crate::mounts::Mount;
use crate::upstream::{UpstreamClients, error_chain};

impl UpstreamClients {
    /// Sends a request; the error says why there is no answer.
    pub(crate) async fn send(
        &self,
        mount: &Mount,
        asked: &ProxyRequest,
        body: Option<Body>,
    ) -> Result<Response, String> {
        let query = asked.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
        let text = format!("{}{}{query}", mount.origin, asked.path);
        let url = Url::parse(&text).map_err(|e| format!("{text} is no address: {e}"))?;
        let client = self.client(&url)?;
        let mut headers: HeaderMap = Headers::from_map(&asked.headers).to_map();
        headers.remove(HOST);
        headers.remove(hyper::header::CONTENT_LENGTH);
        let mut request = client.request(asked.method.clone(), url).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        } else if asked.headers.contains_key(hyper::header::CONTENT_LENGTH) {
            request = request.body(Bytes::new());
        }
        request.send().await.map_err(|e| format!("{} cannot be asked: {}", mount.origin, error_chain(&e)))
    }
}
