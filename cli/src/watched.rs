//! An embedder that is watched: whether it is what failed decides what a user is told to do.

use std::sync::atomic::{AtomicBool, Ordering};

use annals_memory::Embedder;
use annals_server::ConfiguredEmbedder;

/// See the module.
#[derive(Debug)]
pub(crate) struct Watched {
    with: ConfiguredEmbedder,
    failed: AtomicBool,
}

impl Watched {
    pub(crate) fn new(with: ConfiguredEmbedder) -> Self {
        Self { with, failed: AtomicBool::new(false) }
    }

    /// Whether it gave no vectors once.
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
