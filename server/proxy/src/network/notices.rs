//! Reports the first refusal of each destination at once: a client may retry for minutes, and its user should
//! know why.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::NoticeFn;
use super::library::{NotesReader, TrafficNote};

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Reports each destination once.
#[derive(Debug, Clone)]
pub(super) struct Notices {
    tell: NoticeFn,
    notified: Arc<Mutex<BTreeSet<String>>>,
}

impl Notices {
    pub(super) fn new(tell: NoticeFn) -> Self {
        Self { tell, notified: Arc::default() }
    }

    pub(super) fn refused(&self, process: &str, destination: String) {
        if self.notified.lock().unwrap_or_else(PoisonError::into_inner).insert(destination.clone()) {
            (self.tell)(process, &destination);
        }
    }

    fn note(&self, note: TrafficNote) {
        match note {
            TrafficNote::Connect { process, address, port, passed: false, .. } => {
                self.refused(&process, std::net::SocketAddr::new(address, port).to_string());
            }
            TrafficNote::LookUp { process, name, passed: false, .. } => self.refused(&process, name),
            _ => {}
        }
    }
}

/// Reads the library's notes while the program runs.
#[derive(Debug)]
pub(super) struct NotesFollower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NotesFollower {
    pub(super) fn start(mut notes: NotesReader, notices: Notices) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while !stopped.load(Ordering::Acquire) {
                notes.new_notes().into_iter().for_each(|note| notices.note(note));
                std::thread::park_timeout(POLL_INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("annals-notes".to_owned()).spawn(work).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for NotesFollower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
