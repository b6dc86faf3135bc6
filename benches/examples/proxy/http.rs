//! The part of HTTP/1.1 that a measurement needs. It must not cost more than what it measures.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ProxyBenchResult;

/// A connection, and the bytes that were read ahead.
pub(crate) struct HttpConnection {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl HttpConnection {
    pub(crate) fn new(stream: TcpStream) -> ProxyBenchResult<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::with_capacity(64 << 10) })
    }

    pub(crate) async fn connect(base: &str) -> ProxyBenchResult<Self> {
        let address = base.trim_start_matches("http://").split('/').next().unwrap_or_default();
        Self::new(TcpStream::connect(address).await?)
    }

    /// Reads more bytes; `false` at the end.
    async fn read_more(&mut self) -> ProxyBenchResult<bool> {
        Ok(self.stream.read_buf(&mut self.unread).await? > 0)
    }

    /// A message's head as text; `None` if the other side has closed the connection.
    pub(crate) async fn head(&mut self) -> ProxyBenchResult<Option<String>> {
        loop {
            if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Ok(Some(String::from_utf8_lossy(&head).to_ascii_lowercase()));
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// The body that this head announces.
    pub(crate) async fn body(&mut self, head: &str) -> ProxyBenchResult<Vec<u8>> {
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.unwrap_or("0").trim().parse()?;
        while self.unread.len() < length {
            if !self.read_more().await? {
                return Err("the body broke off".into());
            }
        }
        Ok(self.unread.drain(..length).collect())
    }

    /// The next chunk of a chunked body; empty at its end.
    pub(crate) async fn chunk(&mut self) -> ProxyBenchResult<Vec<u8>> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line = std::str::from_utf8(&self.unread[..end])?;
                let length = usize::from_str_radix(line.trim(), 16)?;
                if self.unread.len() >= end + 2 + length + 2 {
                    let chunk = self.unread[end + 2..end + 2 + length].to_vec();
                    self.unread.drain(..end + 2 + length + 2);
                    return Ok(chunk);
                }
            }
            if !self.read_more().await? {
                return Err("the stream broke off".into());
            }
        }
    }

    pub(crate) async fn post(&mut self, base: &str, path: &str, body: &[u8]) -> ProxyBenchResult<()> {
        let below = base.trim_start_matches("http://").find('/').map_or("", |at| &base[at + 7..]);
        let head = format!(
            "POST {below}{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all(&[head.as_bytes(), body].concat()).await?;
        Ok(())
    }
}

/// Nanoseconds since 1970, which are comparable between processes.
pub(crate) fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
