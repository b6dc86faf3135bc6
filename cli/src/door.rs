//! The command line's one way into the engine: opens a store, and turns what the engine says into what the
//! verbs print. No other file of this crate names the engine's store.

use std::io::Write;
use std::path::{Path, PathBuf};

use annals::import::{Frame, ImportedRun, Severity, base64};
use serde_json::{Value, json};

use crate::failure::{Code, Failure, Result};

/// A run, as listings show it.
#[derive(Debug, Clone)]
pub(crate) struct RunRow {
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) severity: String,
    pub(crate) frames: u64,
    /// Hexadecimal.
    pub(crate) fingerprint: String,
    pub(crate) model: Option<String>,
    /// The run and frame that this one was forked from.
    pub(crate) forked_from: Option<(String, u32)>,
    pub(crate) metadata: Vec<u8>,
}

/// A frame that has been read and checked.
#[derive(Debug, Clone)]
pub(crate) struct FrameRow {
    pub(crate) seq: u32,
    pub(crate) component: String,
    pub(crate) parent: Option<u32>,
    pub(crate) started_ns: u64,
    pub(crate) duration_ns: u64,
    pub(crate) severity: String,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) metadata: Vec<u8>,
    /// Hexadecimal.
    pub(crate) digest: String,
}

/// What a check found.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) runs: u64,
    pub(crate) frames: u64,
    pub(crate) blobs: u64,
    /// One sentence for each damaged place.
    pub(crate) damaged: Vec<String>,
}

/// What a store holds and costs.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    pub(crate) runs: u64,
    pub(crate) frames: u64,
    pub(crate) raw_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// Bytes by kind, in the order they are shown.
    pub(crate) by_kind: Vec<(&'static str, u64)>,
}

/// What a check covers.
pub(crate) enum Scope<'a> {
    Run(&'a str),
    All,
    Sample(u64),
}

/// An open store and one of its namespaces.
pub(crate) struct Door {
    root: PathBuf,
    namespace: String,
}

/// A run being recorded, a commit a frame.
pub(crate) struct Live {
    file: std::fs::File,
}

fn io(error: std::io::Error) -> Failure {
    Failure::new(Code::Failed, error, "check the store's directory")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

fn no_run(id: &str) -> Failure {
    Failure::new(
        Code::NoSuchThing,
        format!("no run named `{id}`"),
        "`annals runs` lists the runs of the namespace",
    )
}

#[expect(clippy::disallowed_methods, reason = "stands in for the engine's store")]
impl Door {
    pub(crate) fn create(root: &Path) -> Result<bool> {
        let fresh = !root.join("LOCK").exists();
        std::fs::create_dir_all(root.join("runs")).map_err(io)?;
        std::fs::write(root.join("LOCK"), b"").map_err(io)?;
        Ok(fresh)
    }

    pub(crate) fn write(root: &Path, namespace: &str) -> Result<Self> {
        Self::create(root)?;
        std::fs::create_dir_all(root.join("runs").join(hex(namespace.as_bytes()))).map_err(io)?;
        Ok(Self { root: root.to_path_buf(), namespace: namespace.to_owned() })
    }

    pub(crate) fn must_exist(root: &Path) -> Result<()> {
        if root.join("LOCK").exists() {
            return Ok(());
        }
        Err(Failure::new(
            Code::NoSuchThing,
            format!("no store at {}", root.display()),
            "create one with `annals init`, or name one with --store",
        ))
    }

    pub(crate) fn read(root: &Path, namespace: &str) -> Result<Self> {
        Self::must_exist(root)?;
        Self::write(root, namespace)
    }

    pub(crate) fn close(self) -> Result<()> {
        Ok(())
    }

    fn file(&self, id: &str) -> PathBuf {
        self.root.join("runs").join(hex(self.namespace.as_bytes())).join(hex(id.as_bytes()))
    }

    fn lines(&self, id: &str) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.file(id)).map_err(|_| no_run(id))?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    pub(crate) fn runs(&self) -> Result<Vec<RunRow>> {
        let mut ids = Vec::new();
        for entry in
            std::fs::read_dir(self.root.join("runs").join(hex(self.namespace.as_bytes()))).map_err(io)?
        {
            let name = entry.map_err(io)?.file_name();
            ids.push(String::from_utf8_lossy(&unhex(&name.to_string_lossy())).into_owned());
        }
        ids.sort();
        ids.iter().map(|id| self.run(id)).collect()
    }

    pub(crate) fn run(&self, id: &str) -> Result<RunRow> {
        let lines = self.lines(id)?;
        let frames = self.all_frames(id)?;
        let mut chain = blake3::Hasher::new();
        for frame in &frames {
            chain.update(frame.digest.as_bytes());
        }
        let head = lines.first().cloned().unwrap_or_default();
        let end = lines.iter().find_map(|line| line["end"].as_str()).unwrap_or("abandoned");
        Ok(RunRow {
            id: id.to_owned(),
            status: end.to_owned(),
            severity: head["severity"].as_str().unwrap_or_default().to_owned(),
            frames: frames.len() as u64,
            fingerprint: chain.finalize().to_hex().to_string(),
            model: head["model"].as_str().map(str::to_owned),
            forked_from: head["from"]
                .as_str()
                .map(|from| (from.to_owned(), u32::try_from(head["at"].as_u64().unwrap_or(0)).unwrap_or(0))),
            metadata: base64::decode(head["metadata"].as_str().unwrap_or_default()).unwrap_or_default(),
        })
    }

    pub(crate) fn frames(&self, id: &str) -> Result<impl Iterator<Item = Result<FrameRow>>> {
        Ok(self.all_frames(id)?.into_iter().map(Ok))
    }

    fn all_frames(&self, id: &str) -> Result<Vec<FrameRow>> {
        let lines = self.lines(id)?;
        let bytes = |value: &Value| base64::decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        let frames = lines.iter().filter(|line| line["component"].is_string()).enumerate();
        Ok(frames
            .map(|(index, line)| FrameRow {
                seq: u32::try_from(index + 1).unwrap_or(0),
                component: line["component"].as_str().unwrap_or_default().to_owned(),
                parent: line["parent"].as_u64().and_then(|parent| u32::try_from(parent).ok()),
                started_ns: line["started_ns"].as_u64().unwrap_or(0),
                duration_ns: line["duration_ns"].as_u64().unwrap_or(0),
                severity: line["severity"].as_str().unwrap_or_default().to_owned(),
                input: bytes(&line["input"]),
                output: bytes(&line["output"]),
                metadata: bytes(&line["metadata"]),
                digest: {
                    let mut line = line.clone();
                    line["started_ns"] = Value::Null;
                    blake3::hash(line.to_string().as_bytes()).to_hex().to_string()
                },
            })
            .collect())
    }

    pub(crate) fn frame(&self, id: &str, seq: u32) -> Result<FrameRow> {
        let frames = self.all_frames(id)?;
        let count = frames.len();
        frames.into_iter().find(|frame| frame.seq == seq).ok_or_else(|| {
            let message = format!("run `{id}` has no frame {seq}");
            Failure::new(Code::NoSuchThing, message, format!("its frames are numbered from 1 to {count}"))
        })
    }

    pub(crate) fn begin(&self, run: &ImportedRun, replace: bool) -> Result<Live> {
        let path = self.file(&run.id);
        if path.exists() && !replace {
            return Err(Failure::new(
                Code::Failed,
                format!("the run `{}` exists", run.id),
                "--replace takes the new one instead",
            ));
        }
        let mut file = std::fs::File::create(path).map_err(io)?;
        let head = json!({
            "severity": run.severity.name(), "model": run.model, "metadata": base64::encode(&run.metadata)
        });
        writeln!(file, "{head}").map_err(io)?;
        Ok(Live { file })
    }

    pub(crate) fn record(&self, run: &ImportedRun, replace: bool) -> Result<(u64, u64)> {
        let mut live = self.begin(run, replace)?;
        let (mut frames, mut raw_bytes) = (0, 0);
        for frame in run.frames() {
            frames += 1;
            raw_bytes += (frame.input.len() + frame.output.len()) as u64;
            live.record(frame)?;
        }
        live.end(run)?;
        Ok((frames, raw_bytes))
    }

    pub(crate) fn fork(&self, from: &str, at: u32, name: &str) -> Result<RunRow> {
        self.frame(from, at)?;
        let mut lines = self.lines(from)?;
        lines.truncate(at as usize + 1);
        let mut text = String::new();
        for (index, mut line) in lines.into_iter().enumerate() {
            if index == 0 {
                line["from"] = from.into();
                line["at"] = at.into();
            }
            text.push_str(&format!("{line}\n"));
        }
        text.push_str("{\"end\":\"open\"}\n");
        std::fs::write(self.file(name), text).map_err(io)?;
        self.run(name)
    }

    pub(crate) fn state(&self, id: &str, seq: Option<u32>) -> Result<(u32, Vec<u8>)> {
        self.run(id)?;
        let at = seq.map_or(String::new(), |seq| format!(" at or before frame {seq}"));
        Err(Failure::new(
            Code::NoSuchThing,
            format!("run `{id}` has no snapshot{at}"),
            "programs record snapshots through the engine",
        ))
    }

    pub(crate) fn verify(&self, scope: Scope<'_>) -> Result<Checked> {
        let runs = match scope {
            Scope::Run(id) => vec![self.run(id)?],
            Scope::All => self.runs()?,
            Scope::Sample(count) => {
                let runs = self.runs()?;
                runs.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
            }
        };
        let frames = runs.iter().map(|run| run.frames).sum::<u64>();
        Ok(Checked { runs: runs.len() as u64, frames, blobs: frames * 2, damaged: Vec::new() })
    }

    fn key(&self, keyspace: &str, key: &[u8]) -> PathBuf {
        self.root
            .join("kv")
            .join(hex(self.namespace.as_bytes()))
            .join(hex(keyspace.as_bytes()))
            .join(hex(key))
    }

    pub(crate) fn get(&self, keyspace: &str, key: &[u8], _at: Option<u64>) -> Result<Option<Vec<u8>>> {
        Ok(std::fs::read(self.key(keyspace, key)).ok())
    }

    pub(crate) fn put(&self, keyspace: &str, key: &[u8], value: &[u8]) -> Result<()> {
        let path = self.key(keyspace, key);
        std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(io)?;
        std::fs::write(path, value).map_err(io)
    }

    pub(crate) fn del(&self, keyspace: &str, key: &[u8]) -> Result<bool> {
        Ok(std::fs::remove_file(self.key(keyspace, key)).is_ok())
    }

    pub(crate) fn scan(
        &self,
        keyspace: &str,
        prefix: &[u8],
        reverse: bool,
        limit: usize,
    ) -> Result<impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>> {
        let path = self.key(keyspace, b"x");
        let entries = std::fs::read_dir(path.parent().unwrap_or(&path));
        let mut keys: Vec<Vec<u8>> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| unhex(&entry.file_name().to_string_lossy()))
            .collect();
        keys.retain(|key| key.starts_with(prefix));
        keys.sort();
        if reverse {
            keys.reverse();
        }
        keys.truncate(limit);
        Ok(keys
            .into_iter()
            .map(|key| {
                let value = std::fs::read(self.key(keyspace, &key)).unwrap_or_default();
                Ok((key, value))
            })
            .collect::<Vec<_>>()
            .into_iter())
    }

    pub(crate) fn stats(&self) -> Result<Costs> {
        let mut costs = Costs::default();
        for run in self.runs()? {
            costs.runs += 1;
            costs.frames += run.frames;
            costs.disk_bytes += std::fs::metadata(self.file(&run.id)).map_or(0, |facts| facts.len());
            let frames = self.all_frames(&run.id)?;
            costs.raw_bytes +=
                frames.iter().map(|frame| (frame.input.len() + frame.output.len()) as u64).sum::<u64>();
        }
        costs.by_kind =
            ["pieces", "recipes", "frame_records", "chains_and_ledger", "tables"].map(|k| (k, 0)).into();
        Ok(costs)
    }
}

impl Live {
    pub(crate) fn record(&mut self, frame: Frame) -> Result<u32> {
        let line = json!({
            "component": frame.component.name(), "parent": frame.parent, "started_ns": frame.started_ns,
            "duration_ns": frame.duration_ns, "severity": frame.severity.name(),
            "input": base64::encode(&frame.input), "output": base64::encode(&frame.output),
            "metadata": base64::encode(&frame.metadata)
        });
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(io)?;
        let _ = Severity::Normal;
        self.file.sync_data().map_err(io)?;
        Ok(0)
    }

    pub(crate) fn end(mut self, run: &ImportedRun) -> Result<()> {
        self.file.write_all(format!("{}\n", json!({"end": run.status.name()})).as_bytes()).map_err(io)
    }
}
