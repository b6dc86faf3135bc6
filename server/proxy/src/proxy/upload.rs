//! Passes a long request body to the upstream while it arrives, and keeps a whole copy for the recording.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::body_memory::{BodyMemory, MemoryReservation};
use super::listen::{BoxError, IncomingBody, body_memory_full};
use crate::body::BodyAssembler;

/// Memory that is allocated before the body arrives, whatever its announced length.
const RESERVED_BYTES_MAX: u64 = 4 << 20;

/// A body that is still arriving, its announced length in bytes, and the memory for it.
#[derive(Debug)]
pub(crate) struct IncomingUpload {
    /// Never contended: several threads see the request, but only one reads its body.
    pub(crate) from: Mutex<IncomingBody>,
    pub(crate) len: u64,
    pub(crate) room: BodyMemory,
}

/// Why a body is incomplete, and the status of the answer.
pub(crate) type UploadError = (StatusCode, String);

impl IncomingUpload {
    /// The body for the upstream, and the whole body once it has arrived. It is read to its end even if the
    /// upstream answers early or stops reading.
    pub(crate) fn split(self) -> (UploadBody, UploadCopy) {
        let Self { from, len, room } = self;
        let mut from = from.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (parts, coming) = unbounded_channel();
        let (on_its_way, sent) = oneshot::channel();
        let whole = tokio::spawn(async move {
            let expected = usize::try_from(len.min(RESERVED_BYTES_MAX)).unwrap_or(0);
            let mut kept = BodyAssembler::with_capacity(expected);
            let mut held = room.reservation();
            let mut cut: Option<UploadError> = None;
            while let Some(part) = from.frame().await {
                let part = match part {
                    Ok(part) => part,
                    Err(error) => {
                        let broken = (StatusCode::BAD_REQUEST, format!("the body broke off: {error}"));
                        let _ = parts.send(Err(broken.1.clone()));
                        return Err(cut.unwrap_or(broken));
                    }
                };
                let Ok(bytes) = part.into_data() else { continue };
                // Without memory the body is still read to its end, so that its client listens to the answer.
                if cut.is_some() {
                    continue;
                }
                // Reserved once for the copy, and once for the bytes that the upstream has not taken yet.
                let mut on_its_way = room.reservation();
                if let Err(full) = held.reserve(bytes.len()).and_then(|()| on_its_way.reserve(bytes.len())) {
                    kept.clear();
                    held.clear();
                    let _ = parts.send(Err(cut.insert(body_memory_full(full)).1.clone()));
                    continue;
                }
                kept.push(bytes.clone());
                // Nobody receives it if the upstream has gone.
                let _ = parts.send(Ok((bytes, on_its_way)));
            }
            match cut {
                Some(cut) => Err(cut),
                None => Ok(held.attach_to(kept.into_bytes())),
            }
        });
        (UploadBody { parts: coming, left: len, _on_its_way: on_its_way }, UploadCopy { sent, whole })
    }
}

/// The copy of a body that was passed on.
#[derive(Debug)]
pub(crate) struct UploadCopy {
    sent: oneshot::Receiver<()>,
    whole: JoinHandle<Result<Bytes, UploadError>>,
}

impl UploadCopy {
    /// Waits until the upstream has been sent the whole body, or takes no more.
    pub(crate) async fn sent(&mut self) {
        // Nothing is ever sent; the channel closes with the body.
        let _ = (&mut self.sent).await;
    }

    /// The whole body; else why it broke off.
    pub(crate) async fn whole_body(self) -> Result<Bytes, UploadError> {
        self.whole.await.unwrap_or_else(|error| Err((StatusCode::BAD_REQUEST, error.to_string())))
    }
}

/// A body of a known length on its way to an upstream: no two readers can disagree about its end.
#[derive(Debug)]
pub(crate) struct UploadBody {
    parts: UnboundedReceiver<Result<(Bytes, MemoryReservation), String>>,
    left: u64,
    _on_its_way: oneshot::Sender<()>,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let part = ready!(self.parts.poll_recv(context));
        if let Some(Ok((bytes, _))) = &part {
            self.left = self.left.saturating_sub(bytes.len() as u64);
        }
        Poll::Ready(part.map(|part| part.map(|(bytes, _)| Frame::data(bytes)).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::super::listen::{AnswerFuture, ExchangeHandler, Proxy, ProxyRequest, refuse};
    use super::*;

    /// Answers with the result of the upload; takes one part of the body, or nothing.
    struct PartialUpstream {
        takes: bool,
    }

    impl ExchangeHandler for PartialUpstream {
        fn streams_bodies(&self) -> bool {
            true
        }

        fn answer(self: Arc<Self>, mut asked: ProxyRequest) -> AnswerFuture {
            Box::pin(async move {
                let Some(coming) = asked.upload.take() else {
                    return refuse(StatusCode::OK, &format!("short: {}", asked.body.len()));
                };
                let (mut going, mut gone) = coming.split();
                let len = going.size_hint().exact();
                if self.takes {
                    let first = going.frame().await;
                    assert!(first.is_some_and(|part| part.is_ok()));
                }
                drop(going);
                gone.sent().await;
                let whole =
                    gone.whole_body().await.map(|body| body.iter().filter(|byte| **byte == b'x').count());
                refuse(StatusCode::OK, &format!("{len:?} announced, {whole:?}"))
            })
        }
    }

    async fn answer_to_upload(takes: bool, announced: usize, sent: usize) -> String {
        let proxy = Proxy::start(Arc::new(PartialUpstream { takes })).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        let head = format!(
            "POST /{}-x/y HTTP/1.1\r\nhost: h\r\ncontent-length: {announced}\r\n\r\n",
            proxy.secret()
        );
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; sent]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        proxy.stop().await;
        answer
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn upload_is_kept_whole_if_upstream_stops_reading() {
        for takes in [false, true] {
            let answer = answer_to_upload(takes, 3_000_000, 3_000_000).await;
            assert!(answer.contains("Some(3000000) announced, Ok(3000000)"), "{answer}");
        }
        assert!(answer_to_upload(true, 100, 100).await.contains("short: 100"));
    }

    /// Half a body must never be taken for a whole one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn broken_upload_gives_no_body() {
        let answer = answer_to_upload(true, 300_000, 150_000).await;
        assert!(answer.is_empty() || answer.contains("the body broke off"), "{answer}");
        assert!(!answer.contains("Ok("), "{answer}");
    }
}
