//! A tenant's runs, for the proxy of many runs.

use std::sync::{Arc, PoisonError};

use annals::{ErrorKind, RunReader, RunSpec, Status};
use hyper::StatusCode;

use super::tenant::Tenant;
use annals_proxy::proxy::{RequestRefusal, RunAccess, WritableRun, ended_message};

/// The runs of a tenant, for an authorized client.
#[derive(Debug, Clone)]
pub(super) struct ProxyRuns(Arc<Tenant>);

impl ProxyRuns {
    pub(super) fn new(tenant: Arc<Tenant>) -> Self {
        Self(tenant)
    }
}

impl RunAccess for ProxyRuns {
    fn space(&self) -> &str {
        &self.0.name
    }

    fn find(&self, run: &str) -> Option<WritableRun> {
        let open = self.0.open_run(run)?;
        Some(WritableRun { run: open.run.clone(), proxied: open.proxied.clone() })
    }

    fn begin(&self, spec: RunSpec) -> Result<WritableRun, RequestRefusal> {
        // One at a time, so that no other request finds a run that has begun but is not open yet.
        let _one = self.0.proxy_begins.lock().unwrap_or_else(PoisonError::into_inner);
        let name = spec.name.clone();
        if let Some(opened) = self.find(&name) {
            return Ok(opened);
        }
        let may_open = self.0.check_open_limit();
        may_open.map_err(|refusal| RequestRefusal::new(StatusCode::SERVICE_UNAVAILABLE, refusal.0))?;
        match self.0.space.begin_run(spec) {
            Ok(run) => {
                let open = self.0.insert_open_run(Arc::new(run), true);
                Ok(WritableRun { run: open.run.clone(), proxied: open.proxied.clone() })
            }
            // RUN.BEGIN may have begun it in the meantime.
            Err(error) if error.kind() == ErrorKind::Conflict => match self.find(&name) {
                Some(opened) => Ok(opened),
                None => Err(match self.0.space.run(&name)?.info().status {
                    Status::Open => {
                        let why = format!("run {name} is recorded by another client: record into a new run");
                        RequestRefusal::new(StatusCode::CONFLICT, why)
                    }
                    status => RequestRefusal::new(StatusCode::CONFLICT, ended_message(&name, status)),
                }),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self, run: &str) -> Result<RunReader, RequestRefusal> {
        Ok(self.0.space.run(run)?)
    }
}
