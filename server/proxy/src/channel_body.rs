//! A body whose parts a task sends while the client takes them.
//!
//! Parts and an error go through one queue. The body of http-body-util has one for each: it takes a sender that is
//! dropped between its two looks for the end, and loses the part that was sent just before.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// The body of a response: it ends with the sender.
#[derive(Debug)]
pub struct ChannelBody<E>(mpsc::Receiver<Result<Frame<Bytes>, E>>);

/// Sends the parts of a [`ChannelBody`].
#[derive(Debug)]
pub struct BodySender<E>(mpsc::Sender<Result<Frame<Bytes>, E>>);

/// The body is gone: nobody takes its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyGone;

impl fmt::Display for BodyGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody takes the parts of this body")
    }
}

impl std::error::Error for BodyGone {}

impl<E> ChannelBody<E> {
    /// A body that holds this many parts, at least 1, besides the one that is being written.
    #[must_use]
    pub fn new(parts: usize) -> (BodySender<E>, Self) {
        let (to, from) = mpsc::channel(parts);
        (BodySender(to), Self(from))
    }
}

impl<E> BodySender<E> {
    /// Sends a part, once there is room for it.
    ///
    /// # Errors
    /// The body is gone.
    pub async fn send_data(&self, part: Bytes) -> Result<(), BodyGone> {
        self.0.send(Ok(Frame::data(part))).await.map_err(|_| BodyGone)
    }

    /// Ends the body with an error after the parts before, so that the connection is cut.
    pub async fn abort(self, error: E) {
        // Without a body there is no connection to cut.
        let _ = self.0.send(Err(error)).await;
    }
}

impl<E> Body for ChannelBody<E> {
    type Data = Bytes;
    type Error = E;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{RawWaker, RawWakerVTable, Waker};

    use http_body_util::BodyExt;

    use super::*;

    /// What happens as soon as a body has seen nothing and leaves its waker.
    type Then = Mutex<Box<dyn FnMut(u32) + Send>>;

    /// A waker that does something each time a queue keeps a copy of it. Queues do so between two looks for a part.
    #[expect(unsafe_code, reason = "std has no safe waker that notices its copies")]
    fn waker_that(then: Then) -> Waker {
        struct Copied(Then, AtomicU32);
        const TABLE: RawWakerVTable = RawWakerVTable::new(
            |at| {
                // SAFETY: `at` is of `Arc::into_raw` below, and lives as long as a waker.
                let copied = unsafe { &*at.cast::<Copied>() };
                let count = copied.1.fetch_add(1, Ordering::SeqCst) + 1;
                (copied.0.lock().unwrap())(count);
                // SAFETY: as above; each copy counts.
                unsafe { Arc::increment_strong_count(at.cast::<Copied>()) };
                RawWaker::new(at, &TABLE)
            },
            // SAFETY: each copy counts.
            |at| unsafe { drop(Arc::from_raw(at.cast::<Copied>())) },
            |_| {},
            // SAFETY: each copy counts.
            |at| unsafe { drop(Arc::from_raw(at.cast::<Copied>())) },
        );
        let at = Arc::into_raw(Arc::new(Copied(then, AtomicU32::new(0))));
        // SAFETY: the table keeps the count of copies.
        unsafe { Waker::from_raw(RawWaker::new(at.cast(), &TABLE)) }
    }

    /// An event stream lost its last event once in a thousand times on a busy machine, and answers of replays and
    /// blobs went through the same body.
    #[test]
    fn last_part_arrives_if_its_sender_ends_while_the_body_looks() {
        let mut arrived = 0;
        for copies in 1..=3 {
            let (to, body) = ChannelBody::<Infallible>::new(1);
            let mut to = Some(to);
            let waker = waker_that(Mutex::new(Box::new(move |count| {
                if count == copies
                    && let Some(to) = to.take()
                {
                    to.0.try_send(Ok(Frame::data(Bytes::from_static(b"last")))).unwrap();
                }
            })));
            match pin!(body).poll_frame(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(Ok(part))) => {
                    assert_eq!(part.into_data().unwrap(), "last");
                    arrived += 1;
                }
                Poll::Ready(other) => panic!("the body ended at copy {copies}: {other:?}"),
                // So many copies are not made.
                Poll::Pending => {}
            }
        }
        assert!(arrived > 0, "the waker was never copied");
    }

    #[test]
    fn error_comes_after_the_parts_before_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (to, mut body) = ChannelBody::new(2);
            to.send_data(Bytes::from_static(b"part")).await.unwrap();
            to.abort("cut").await;
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "part");
            assert_eq!(body.frame().await.unwrap().unwrap_err(), "cut");
            assert!(body.frame().await.is_none());
            let (to, body) = ChannelBody::<&str>::new(1);
            drop(body);
            assert_eq!(to.send_data(Bytes::new()).await, Err(BodyGone));
            to.abort("nobody hears").await;
        });
    }
}
