//! Replays a program as far as its recording goes, and records it from there on.

use std::io::Read;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use annals::replay::matching::CallHash;
use annals::{ErrorKind, Frame, Namespace, Run, RunReader, RunSpec, kv::StoredBlob};

use super::SessionError;
use super::fork::check_credentials;
use super::replay::{ReplayReport, recorded_output};
use super::secrets::{self, OutputRedactor};
use super::stage::{block_on, end_run, run_program};
use crate::destination::{Destination, DestinationBlob, NewRun};
use crate::network::{NetworkPolicy, NetworkWatch, UnrecordedTraffic, WatchPurpose};
use crate::nondet::{DrawLanes, NondetCapture};
use crate::origin::Origin;
use crate::own_frames::{PROGRAM, STDIN, own_frame};
use crate::program::{Program, Supervision};
use crate::proxy::{
    AnswerCache, CacheUse, ProxyRecorder, ProxyReplayer, ProxyRequest, RecordingSummary, ReplayOptions,
    ServedCalls, http_exchange, redact_request,
};
use crate::upstream::UpstreamGuard;
use annals_policy::exchange::{ExchangeMetadata, Headers};
use annals_policy::redact::Secrets;
use annals_policy::rules::RulesFile;
use annals_review::run_memory::{MEMORY_OFF, MEMORY_ON, MEMORY_TAG};

/// How a replay continues after its recording.
#[derive(Debug, Clone)]
pub struct OnwardOptions {
    /// The child's name; a number is added if the name is taken.
    pub name: String,
    /// Upstreams in place of the parent's: a provider (none: all), and a base address.
    pub upstreams: Vec<(Option<String>, String)>,
    /// Which upstreams may be called.
    pub guard: UpstreamGuard,
    /// How answers of earlier runs are used.
    pub cache: CacheUse,
    /// Rules for severity and prices; stored with the child.
    pub rules: RulesFile,
    /// What the program may reach besides annals while the recording answers.
    pub network: NetworkPolicy,
    /// Whether the child is remembered, as a what-if.
    pub remember: bool,
}

/// The result of a replay that may continue live.
#[derive(Debug)]
pub struct OnwardReport {
    /// The replay.
    pub replay: ReplayReport,
    /// The child's name and its recording; `None` if the recording answered everything.
    pub child: Option<(String, RecordingSummary)>,
}

/// Runs a program again. Its calls are answered from a recording until the first one without an answer, and
/// are live from there on. The live part is recorded into a fork that also gets the answered calls, so it can
/// be replayed by itself.
///
/// # Errors
/// If nothing was started: errors of the recording, the proxy or the program, or a key that the recorded
/// calls had and whose variable is not set.
pub fn replay_onward(
    space: &Namespace,
    reader: &RunReader,
    origin: &Origin,
    program: &Program,
    supervision: &Supervision,
    mut options: ReplayOptions,
    onward: &OnwardOptions,
) -> Result<OnwardReport, SessionError> {
    let mut origin = origin.clone();
    origin.mounts.redirect(&onward.upstreams)?;
    onward.guard.check(&origin.mounts)?;
    check_credentials(reader, 1)?;
    let secrets = secrets::named_secrets(&origin.secrets)?;
    let origin = origin.with_rules(&onward.rules, &secrets)?.with_program(program, &secrets)?;
    let origin = origin.with_input(&supervision.stdin);
    options.secrets = secrets.clone();
    let replayer = ProxyReplayer::new(reader.clone(), origin.key_bytes()?, options)?;
    let capture = origin.capture(program, || DrawLanes::from_reader(reader))?;
    let begun: Arc<Mutex<Option<Arc<Run>>>> = Arc::default();
    let network: Arc<OnceLock<NetworkWatch>> = Arc::default();
    let child = ChildRunBuilder {
        network: network.clone(),
        space: space.clone(),
        reader: reader.clone(),
        origin: origin.clone(),
        onward: onward.clone(),
        begun: begun.clone(),
        capture: capture.clone(),
        secrets: secrets.clone(),
    };
    let output = OutputRedactor::new(&secrets);
    let going = crate::proxy::OnwardProxy::new(replayer, Box::new(move |served| child.begin(served)));
    block_on(async {
        let proxy = going.listen().await?;
        let keeper = space.clone();
        let cleared = output.clone();
        let keep = move |from: &mut dyn Read| cleared.redact(from, |from| store_and_hash(&keeper, from));
        let more = origin.capture_environment(capture.as_deref());
        let (port, mounts) = (proxy.port(), &origin.mounts);
        let network = network.get_or_init(|| {
            NetworkWatch::begin(WatchPurpose::Prefix, &onward.network, port, mounts, program)
        });
        let played = run_program(proxy, program, supervision, mounts, more, network, keep).await?;
        let (replayed, recorder) = going.finish().await;
        let same_output = recorded_output(reader)?.map(|recorded| recorded == played.ended.stdout.1);
        let (code, seconds, survivors) = (played.ended.code, played.seconds, played.ended.survivors.clone());
        let (traffic, unrecorded) = (played.traffic.clone(), UnrecordedTraffic::from_reader(reader)?);
        let run = begun.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (captured, child);
        match (run, recorder) {
            (Some(run), Some(recorder)) => {
                let run = NewRun::from(run);
                let mut recorded = recorder.finish().await;
                recorded.secrets_removed += output.removed();
                (recorded.masked_arguments, recorded.altered_arguments) = origin.unstored_arguments();
                captured = capture.map(|capture| capture.finish(&run));
                let played = played.map(|(stored, _)| stored.map(DestinationBlob::from));
                let status = played.status();
                if recorded.failure.is_none() {
                    match end_run(&run, played, &origin) {
                        Ok(()) => {
                            let into = Destination::from(space.clone());
                            recorded.note_memory(tokio::task::block_in_place(|| into.remember(&run, status)));
                        }
                        Err(error) => recorded.failure = Some(error.to_string()),
                    }
                }
                child = Some((run.name().to_owned(), recorded));
            }
            _ => {
                captured = capture.map(|capture| capture.compare());
                child = None;
            }
        }
        let replay =
            ReplayReport { replayed, code, same_output, survivors, seconds, captured, traffic, unrecorded };
        Ok(OnwardReport { replay, child })
    })
}

/// Stores an output, and computes its hash.
fn store_and_hash(space: &Namespace, from: &mut dyn Read) -> (annals::Result<StoredBlob>, blake3::Hash) {
    struct HashingReader<'a>(&'a mut dyn Read, blake3::Hasher);
    impl Read for HashingReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1.update(&buffer[..read]);
            Ok(read)
        }
    }
    let mut from = HashingReader(from, blake3::Hasher::new());
    let stored = space.store_blob(&mut from);
    (stored, from.1.finalize())
}

/// Maximum number of names tried for a child.
const CHILD_NAMES_MAX: u32 = 10_000;

/// Begins the child run.
struct ChildRunBuilder {
    network: Arc<OnceLock<NetworkWatch>>,
    space: Namespace,
    reader: RunReader,
    origin: Origin,
    onward: OnwardOptions,
    begun: Arc<Mutex<Option<Arc<Run>>>>,
    capture: Option<Arc<NondetCapture>>,
    secrets: Secrets,
}

impl ChildRunBuilder {
    /// Begins a run that shares the parent's frames before the first changed or missing one. Later answered
    /// calls are copied into it.
    fn begin(&self, served: ServedCalls) -> Result<ProxyRecorder, String> {
        self.network.get().into_iter().for_each(NetworkWatch::go_live);
        let words = |error: annals::Error| error.to_string();
        let (run, shared) = self.fork(&served).map_err(words)?;
        let run = Arc::new(run);
        for (seq, asked) in served.calls.range(shared + 1..) {
            let copy = self.copy(*seq, asked.as_ref()).map_err(words)?;
            run.record(copy).map_err(words)?;
        }
        let cache = AnswerCache::open(&self.space, &self.onward.cache).map_err(words)?;
        let key = self.origin.key_bytes().map_err(words)?;
        let recorder = ProxyRecorder::new(run.clone(), key, self.origin.mounts.clone(), cache);
        if let Ok(recorder) = &recorder {
            recorder.set_secrets(&self.secrets);
            recorder.set_rules(&self.onward.rules);
            recorder.set_tool_version(self.origin.revision.as_deref());
            self.capture.iter().for_each(|capture| recorder.set_capture(capture.clone()));
        }
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
        recorder.map_err(|error| error.to_string())
    }

    /// The child, and how many of the parent's frames it shares.
    fn fork(&self, served: &ServedCalls) -> annals::Result<(Run, u32)> {
        let other = served.calls.iter().filter(|(_, asked)| asked.is_some()).map(|(seq, _)| *seq);
        let mut first = served.missing.iter().copied().chain(other).min();
        let parent = self.reader.info();
        if first.is_none() {
            first = match own_frame(&self.reader, STDIN)? {
                None => own_frame(&self.reader, PROGRAM)?,
                seq => seq,
            };
        }
        let (at, edit) = first.map_or((parent.frames, false), |first| (first, true));
        let shared = if edit { at - 1 } else { at };
        let mut number = 1;
        loop {
            let wish = &self.onward.name;
            let name = if number == 1 { wish.clone() } else { format!("{wish}-{number}") };
            let spec = RunSpec::new(name).agent(&parent.agent).model(&parent.model);
            let spec = spec.metadata(self.origin.metadata());
            // A child without shared frames has no parent that tells it from other runs.
            let spec = match (self.onward.remember, at) {
                (true, _) => spec.tag(MEMORY_TAG, MEMORY_ON),
                (false, 0) => spec.tag(MEMORY_TAG, MEMORY_OFF),
                (false, _) => spec,
            };
            let begun = match at {
                0 => self.space.begin_run(spec),
                _ => self.space.fork(&parent.name, at, edit, spec),
            };
            match begun {
                Err(error) if error.kind() == ErrorKind::Conflict && number < CHILD_NAMES_MAX => number += 1,
                done => return done.map(|run| (run, shared)),
            }
        }
    }

    /// Copies a call of the parent into a frame of the child, with the actual request if it differed.
    fn copy(&self, seq: u32, asked: Option<&ProxyRequest>) -> annals::Result<Frame> {
        let of = self.reader.frame(seq)?;
        let (mut input, mut metadata) = (of.input, of.metadata);
        if let Some(asked) = asked
            && let Ok(mut exchange) = serde_json::from_slice::<ExchangeMetadata>(&metadata)
        {
            let (http, _) = http_exchange(asked);
            let hash = CallHash::new(&self.origin.key_bytes()?, &http.call(), &asked.body);
            exchange.volatile.asked = annals_text::hex::encode(&hash.0);
            exchange.volatile.request_headers = Headers::from_map(&asked.headers);
            exchange.volatile.request_headers.remove_secrets();
            exchange.http.query = http.query;
            input = redact_request(&self.secrets, &mut exchange, asked.body.clone()).0.to_vec();
            metadata = serde_json::to_vec(&exchange).unwrap_or_default();
        }
        let mut frame = Frame::new(of.component, input, of.output).metadata(metadata);
        frame.started_ns = Some(of.started_ns);
        frame.duration_ns = of.duration_ns;
        frame.severity = of.severity;
        frame.error = of.error;
        Ok(frame)
    }
}
