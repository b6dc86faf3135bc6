//! Replays of runs for many clients. Each replay is a position in one run, shared by all clients that name
//! it.
//!
//! A replay is named by namespace, run and session; the session may be empty. It starts with its first
//! request, with the run as it is then. It lasts until `DELETE`, or, if others need the memory, until it has
//! been idle for a while. `GET` returns its state.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use annals::RunReader;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::recording::run_key;
use super::{MultiRunProxy, RequestRefusal, RunAccess};
use crate::origin::Origin;
use crate::proxy::body_memory::{BodyMemory, BodyMemoryFull, MemoryReservation};
use crate::proxy::listen::{IncomingBody, ProxyRequest, ResponseBody, whole_body_response};
use crate::proxy::replay::{ProxyReplayer, ReplayOptions};

/// Approximate limit on memory for all replayed runs, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// Maximum number of replays.
const REPLAYS_MAX: usize = 4096;
/// A replay that was idle for this long makes room for another.
const IDLE: Duration = Duration::from_secs(15 * 60);
/// Maximum number of listed divergences.
const LISTED_DIVERGENCES_MAX: usize = 100;

/// Namespace, run, session.
type ReplayName = (String, String, String);

/// See the module.
#[derive(Debug)]
pub(super) struct SharedReplays {
    all: Mutex<HashMap<ReplayName, Arc<SharedReplay>>>,
    room: BodyMemory,
}

struct SharedReplay {
    replayer: OnceCell<ProxyReplayer>,
    used: Mutex<Instant>,
}

impl std::fmt::Debug for SharedReplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("used", &self.used).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedReplays {
    pub(super) fn room() -> BodyMemory {
        BodyMemory::new(BYTES_MAX)
    }

    pub(super) fn new(room: BodyMemory) -> Self {
        Self { all: Mutex::default(), room }
    }

    /// The replay of this name; starts it if needed.
    ///
    /// # Errors
    /// 503 if there are too many.
    fn find_or_begin(&self, name: &ReplayName) -> Result<Arc<SharedReplay>, RequestRefusal> {
        let mut all = lock(&self.all);
        if let Some(replay) = all.get(name) {
            *lock(&replay.used) = Instant::now();
            return Ok(replay.clone());
        }
        if all.len() >= REPLAYS_MAX && !forget_idle(&mut all) {
            let why =
                format!("{REPLAYS_MAX} replays are already running: DELETE /replay/RUN;SESSION ends one");
            return Err(RequestRefusal::new(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        let replay = Arc::new(SharedReplay { replayer: OnceCell::new(), used: Mutex::new(Instant::now()) });
        all.insert(name.clone(), replay.clone());
        Ok(replay)
    }

    fn find(&self, name: &ReplayName) -> Option<Arc<SharedReplay>> {
        lock(&self.all).get(name).cloned()
    }

    /// Ends a replay; returns whether there was one.
    fn forget(&self, name: &ReplayName) -> bool {
        lock(&self.all).remove(name).is_some()
    }

    /// Removes a replay that could not be started.
    fn forget_failed(&self, name: &ReplayName, replay: &Arc<SharedReplay>) {
        let mut all = lock(&self.all);
        if !replay.replayer.initialized() && all.get(name).is_some_and(|known| Arc::ptr_eq(known, replay)) {
            all.remove(name);
        }
    }

    /// An empty reservation for a run's memory.
    fn reservation(&self) -> MemoryReservation {
        self.room.reservation()
    }
}

/// Removes idle replays; returns whether there were any.
fn forget_idle(all: &mut HashMap<ReplayName, Arc<SharedReplay>>) -> bool {
    let before = all.len();
    all.retain(|_, replay| lock(&replay.used).elapsed() < IDLE);
    all.len() < before
}

impl MultiRunProxy {
    pub(super) async fn replay<R: RunAccess>(
        &self,
        runs: &R,
        run: String,
        session: String,
        mut asked: ProxyRequest,
        body: &mut Option<IncomingBody>,
    ) -> Result<Response<ResponseBody>, RequestRefusal> {
        let name = (runs.space().to_owned(), run, session);
        if asked.mount.is_empty() {
            return self.describe_or_end(&asked.method, &name);
        }
        let replay = self.replays.find_or_begin(&name)?;
        let read = replay.replayer.get_or_try_init(|| self.run_blocking(|| self.read(runs, &name.1))).await;
        let replayer = read.inspect_err(|_| self.replays.forget_failed(&name, &replay))?;
        if self.common.room().is_full() {
            // A request that was looked up has used its answer, so memory is checked first.
            return Err(RequestRefusal::new(StatusCode::SERVICE_UNAVAILABLE, BodyMemoryFull::WHY));
        }
        if let Err(refused) = self.take_body(&mut asked, body, false).await {
            return Ok(*refused);
        }
        Ok(replayer.answer(asked).await)
    }

    /// Reads a run for a replay.
    fn read<R: RunAccess>(&self, runs: &R, run: &str) -> Result<ProxyReplayer, RequestRefusal> {
        let reader = runs.read(run)?;
        let key = run_key(runs, &reader)?;
        let rules = Origin::from_reader(&reader)?.map(|origin| origin.rules()).transpose();
        let rules = rules
            .map_err(|error| {
                RequestRefusal::new(StatusCode::CONFLICT, format!("the rules of run {run}: {error}"))
            })?
            .unwrap_or_default();
        let options =
            ReplayOptions { rules: rules.matcher, prices: rules.prices, ..ReplayOptions::default() };
        let begin = |reader: RunReader| {
            ProxyReplayer::with_memory(
                reader,
                key,
                options.clone(),
                self.common.room().clone(),
                self.replays.reservation(),
            )
        };
        match begin(reader.clone()) {
            Err(error)
                if error.kind() == annals::ErrorKind::Unavailable
                    && forget_idle(&mut lock(&self.replays.all)) =>
            {
                Ok(begin(reader)?)
            }
            begun => Ok(begun?),
        }
    }

    /// The state of a replay (GET), or its end (DELETE).
    fn describe_or_end(
        &self,
        method: &Method,
        name: &ReplayName,
    ) -> Result<Response<ResponseBody>, RequestRefusal> {
        let missing = || {
            let why = "this replay has had no request yet: the address is /replay/RUN/UPSTREAM/...";
            RequestRefusal::new(StatusCode::NOT_FOUND, why)
        };
        match *method {
            Method::DELETE => {
                if !self.replays.forget(name) {
                    return Err(missing());
                }
                let mut response = Response::new(whole_body_response(Bytes::new()));
                *response.status_mut() = StatusCode::NO_CONTENT;
                Ok(response)
            }
            Method::GET => {
                let replay = self.replays.find(name).ok_or_else(missing)?;
                let replayed = replay.replayer.get().ok_or_else(missing)?.finish();
                let receipt = &replayed.receipt;
                let told = json!({
                    "run": name.1,
                    "session": name.2,
                    "recorded": receipt.recorded,
                    "exact": receipt.exact,
                    "matched": receipt.matched,
                    "changed": receipt.changed,
                    "unrecorded": receipt.unrecorded,
                    "served": receipt.served,
                    "given_up": receipt.given_up,
                    "unused": receipt.missing,
                    "diverged": replayed.diverged.iter().take(LISTED_DIVERGENCES_MAX).map(ToString::to_string).collect::<Vec<_>>(),
                });
                let mut response = Response::new(whole_body_response(Bytes::from(told.to_string())));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Ok(response)
            }
            _ => Err(RequestRefusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "a replay accepts GET (its state) and DELETE (end it)",
            )),
        }
    }
}
