//! An embedder that notes its failures, so that the hint for a user can name the embedder as the cause.

use std::sync::atomic::{AtomicBool, Ordering};

use annals_memory::Embedder;
use annals_server::ConfiguredEmbedder;

/// An embedder that notes whether it has failed.
#[derive(Debug)]
pub(crate) struct Watched {
    with: ConfiguredEmbedder,
    failed: AtomicBool,
}

impl Watched {
    pub(crate) fn new(with: ConfiguredEmbedder) -> Self {
        Self { with, failed: AtomicBool::new(false) }
    }

    /// Returns whether a call has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Embedder for Watched {
    fn id(&self) -> &str {
        self.with.id()
    }

    fn threshold(&self) -> f32 {
        self.with.threshold()
    }

    fn embed(&self, texts: &[&str]) -> annals::Result<Vec<Vec<f32>>> {
        self.with.embed(texts).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
    }
}
