//! Records a run of the scripted agent, and blames it.

use std::ffi::OsString;
use std::time::Duration;

use annals::{Durability, Namespace, Options, RunSpec, Store};
use annals_policy::rules::RulesFile;
use annals_proxy::destination::Destination;
use annals_proxy::program::{Program, StandardInput, Supervision};
use annals_proxy::proxy::CacheUse;
use annals_proxy::{
    Mounts, NetworkPolicy, Origin, RecordOptions, RerunnerOptions, UpstreamGuard, Variable, record,
};

use super::ValidateOptions;
use super::agent::AgentScript;
use super::model::{Answers, ScriptedModel};
use crate::document::{BlameDocument, BlameSettings};
use crate::error::BlameError;
use crate::execute::{BlameOptions, Blamer};
use crate::oracle::Oracle;
use crate::perturb::Perturbation;
use crate::ranking::{StepRow, rows};

/// The longest time of one run of the agent.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A store, a model and an agent for validation.
pub(crate) struct TrialBench {
    space: Namespace,
    model: ScriptedModel,
    agent: (OsString, Vec<String>),
    forks: u32,
    jobs: usize,
    // After the namespace: the store's files go last.
    _directory: tempfile::TempDir,
}

/// A blamed run.
pub(crate) struct BlamedTrial {
    pub(crate) document: BlameDocument,
    pub(crate) rows: Vec<StepRow>,
}

fn failed(what: &str) -> BlameError {
    BlameError::unusable(what, "this is a bug in annals: please report it")
}

impl TrialBench {
    pub(crate) fn new(options: &ValidateOptions) -> Result<Self, BlameError> {
        let io = |error: std::io::Error| failed(&format!("the trial cannot begin: {error}"));
        let directory = tempfile::Builder::new().prefix("annals-validate-").tempdir().map_err(io)?;
        let opening = Options { durability: Durability::Process, ..Options::default() };
        let store = Store::open_with(directory.path().join("store"), opening)?;
        let space = store.namespace("validate")?;
        let (program, arguments) = &options.agent;
        Ok(Self {
            space,
            model: ScriptedModel::start().map_err(io)?,
            agent: (program.clone().into_os_string(), arguments.clone()),
            forks: options.forks,
            jobs: options.jobs,
            _directory: directory,
        })
    }

    /// Records a run with these faults armed, and blames it with the faults disarmed; with `more`, also by coalitions
    /// of single steps and pairs, and by these.
    pub(crate) fn blame(
        &self,
        name: &str,
        script: AgentScript,
        answers: Answers,
        armed: &[u32],
        more: Option<Vec<Vec<u32>>>,
    ) -> Result<BlamedTrial, BlameError> {
        self.model.set(answers, armed);
        self.record(name, &script)?;
        let reader = self.space.run(name)?;
        let origin = Origin::from_reader(&reader)?.ok_or_else(|| failed("the trial has no program"))?;
        let program = origin.program().map_err(|why| failed(&why))?;
        let rerun = RerunnerOptions {
            program,
            stdin: StandardInput::Given(Vec::new().into()),
            time_limit: TIME_MAX,
            upstreams: Vec::new(),
            guard: UpstreamGuard::default(),
            rules: RulesFile::default(),
            network: NetworkPolicy::default(),
        };
        let settings = BlameSettings {
            forks: self.forks,
            base: 3,
            oracle: "exit".to_owned(),
            perturbation: "resample".to_owned(),
            steps: Vec::new(),
            stops_early: true,
            coalitions: u32::from(more.is_some()),
            orders: 0,
            seed: 1,
            budget: None,
            command: Vec::new(),
            scratch: false,
        };
        let options = BlameOptions {
            settings,
            oracle: Oracle::Exit,
            perturbation: Perturbation::Resample,
            more_coalitions: more.unwrap_or_default(),
            jobs: self.jobs,
        };
        let blamer = Blamer::new(&self.space, &reader, &origin, rerun, options, None)?;
        let document = blamer.run(None, &|_, _| {})?;
        let rows = rows(&document);
        Ok(BlamedTrial { document, rows })
    }

    fn record(&self, name: &str, script: &AgentScript) -> Result<(), BlameError> {
        let (program, arguments) = &self.agent;
        let wanted = script.wire.variable();
        let script = serde_json::to_string(script).map_err(|error| failed(&error.to_string()))?;
        let mut argv = vec![program.clone()];
        argv.extend(arguments.iter().map(OsString::from));
        argv.push(script.into());
        let upstream = [(None, self.model.url().to_owned())];
        let variables: Vec<Variable> = Variable::known().into_iter().filter(|of| of.name == wanted).collect();
        let mounts =
            Mounts::new(&variables, &upstream, |_| None).map_err(|error| failed(&error.to_string()))?;
        let recording = RecordOptions {
            program: Program { argv, directory: None, environment: Vec::new() },
            supervision: Supervision {
                stdin: StandardInput::Given(Vec::new().into()),
                linger: Duration::ZERO,
                unattended: Some(TIME_MAX),
                ..Supervision::default()
            },
            mounts,
            guard: UpstreamGuard::default(),
            cache: CacheUse::default(),
            keep: Vec::new(),
            capture_nondet: false,
            secrets: Vec::new(),
            rules: RulesFile::default(),
            network: NetworkPolicy::default(),
        };
        self.model.arm(true);
        let recorded = record(&Destination::from(self.space.clone()), RunSpec::new(name), &recording);
        self.model.arm(false);
        let recorded = recorded?;
        if let Some(why) = recorded.recorded.failure {
            return Err(BlameError::Lost(why));
        }
        if recorded.code != 1 {
            return Err(failed(&format!(
                "the planted fault of {name} did not fail the agent: it ended with {}",
                recorded.code
            )));
        }
        Ok(())
    }
}
