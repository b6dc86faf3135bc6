//! The daemon's runs, as the proxy of many runs asks for them.

use std::sync::{Arc, PoisonError};

use annals::{ErrorKind, RunReader, RunSpec, Status};
use hyper::StatusCode;

use super::session::Daemon;
use crate::proxy::{Opened, Refused, Runs, has_ended};

/// The runs of a daemon's namespace, for whoever was let in.
#[derive(Debug, Clone)]
pub(super) struct ProxyRuns {
    daemon: Arc<Daemon>,
    space: String,
}

impl ProxyRuns {
    /// `space` is the namespace's name.
    pub(super) fn of(daemon: Arc<Daemon>, space: &str) -> Self {
        Self { daemon, space: space.to_owned() }
    }
}

impl Runs for ProxyRuns {
    fn space(&self) -> &str {
        &self.space
    }

    fn find(&self, run: &str) -> Option<Opened> {
        let open = self.daemon.open_run(run)?;
        Some(Opened { run: open.run.clone(), proxied: open.proxied.clone() })
    }

    fn begin(&self, spec: RunSpec) -> Result<Opened, Refused> {
        // One at a time, so that nobody finds a run begun and not open yet.
        let _one = self.daemon.proxy_begins.lock().unwrap_or_else(PoisonError::into_inner);
        let name = spec.name.clone();
        if let Some(opened) = self.find(&name) {
            return Ok(opened);
        }
        let space = self.daemon.databases.space();
        let may_open = self.daemon.may_open();
        may_open.map_err(|refusal| Refused::new(StatusCode::SERVICE_UNAVAILABLE, refusal.0))?;
        match space.begin_run(spec) {
            Ok(run) => {
                let open = self.daemon.admit(run, true);
                Ok(Opened { run: open.run.clone(), proxied: open.proxied.clone() })
            }
            // It may have been begun by RUN.BEGIN meanwhile.
            Err(error) if error.kind() == ErrorKind::Conflict => match self.find(&name) {
                Some(opened) => Ok(opened),
                None => Err(match space.run(&name)?.info().status {
                    Status::Open => {
                        let why = format!("run {name} is recorded by somebody else: record into a new run");
                        Refused::new(StatusCode::CONFLICT, why)
                    }
                    status => Refused::new(StatusCode::CONFLICT, has_ended(&name, status)),
                }),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, run: &str) -> Result<RunReader, Refused> {
        Ok(self.daemon.databases.space().run(run)?)
    }
}
