//! The catalogue: names of namespaces and keyspaces, their numbers, and the history that keyspaces keep. It is a set of records
//! like all else, so it has no file of its own.
//!
//! A store keeps all names in memory: it reads their records when it is opened and when it is refreshed, and adds each
//! name that it makes. So a look-up reads nothing.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{NamespaceId, Seqno};
use crate::kv::core::Core;
use crate::kv::keys;
use crate::kv::keyspace::{History, Keyspace};
use crate::kv::store_reader::StoreReader;
use crate::kv::write::BatchWriter;
use crate::log::names::NamesFile;
use crate::log::record::{HistoryCode, RecordKind, SpaceHead};
use crate::log::segments::{lock, read_lock, write_lock};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, rank};

/// Greatest length of a namespace's or keyspace's name, in bytes.
const SPACE_NAME_BYTES_MAX: usize = 512;

/// See the module.
#[derive(Debug)]
pub struct Catalogue {
    /// Held from looking a name up until it is written. The file with all names, in a store open for writing.
    names: Mutex<Option<NamesFile>, { rank::SPACES }>,
    next_space: AtomicU32,
}

impl Catalogue {
    pub(super) fn new(next_space: u32) -> Self {
        Self { names: Mutex::new(None), next_space: AtomicU32::new(next_space) }
    }

    /// From now on, new definitions are also written to this file.
    pub(super) fn set_names_file(&self, file: NamesFile) {
        *lock(&self.names) = Some(file);
    }

    fn new_space(&self) -> u32 {
        self.next_space.fetch_add(1, Ordering::Relaxed)
    }
}

/// All names of a store at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct SpaceNames {
    /// In the order of their numbers.
    heads: Vec<SpaceHead>,
    namespaces: HashMap<String, NamespaceId>,
    keyspaces: HashMap<NamespaceId, HashMap<String, (u32, HistoryCode)>>,
}

impl SpaceNames {
    fn new(heads: Vec<SpaceHead>) -> Self {
        let mut names = Self::default();
        heads.into_iter().for_each(|head| names.add(head));
        names
    }

    /// Adds a definition. The first one of a name counts.
    fn add(&mut self, head: SpaceHead) {
        match &head {
            SpaceHead::Namespace { id, name } => {
                self.namespaces.entry(name.clone()).or_insert(*id);
            }
            SpaceHead::Keyspace { id, namespace, name, history } => {
                let named = self.keyspaces.entry(*namespace).or_default();
                named.entry(name.clone()).or_insert((*id, *history));
            }
        }
        self.heads.push(head);
    }
}

impl Core {
    /// The namespace of a name. A writer makes it if there is none.
    ///
    /// # Errors
    /// `NotFound` in a store open for reading; `Invalid` for the name.
    pub fn namespace(self: &Arc<Self>, name: &str) -> Result<NamespaceId> {
        check_text("a namespace's name", name, 1, SPACE_NAME_BYTES_MAX)?;
        let mut names = lock(&self.catalogue.names);
        if let Some(id) = self.space_names()?.namespaces.get(name) {
            return Ok(*id);
        }
        if !self.is_writer() {
            return Err(Error::not_found(format!("there is no namespace {name:?}")));
        }
        let id = NamespaceId(self.catalogue.new_space());
        write_space(self, &mut names, id, &SpaceHead::Namespace { id, name: name.to_owned() })?;
        Ok(id)
    }

    /// The keyspace of a name. A writer makes it, with this history policy, if there is none.
    ///
    /// # Errors
    /// `Conflict` where it exists with another policy; `NotFound` in a store open for reading; `Invalid` for its name.
    pub fn keyspace(
        self: &Arc<Self>,
        namespace: NamespaceId,
        name: &str,
        history: History,
    ) -> Result<Keyspace> {
        let mut names = lock(&self.catalogue.names);
        match self.find_checked_keyspace(namespace, name)? {
            Some(found) if found.history == History::from_code(history.code()) => Ok(found),
            Some(found) => Err(Error::conflict(format!(
                "keyspace {name:?} keeps {:?}, not {history:?}: name the policy that it has",
                found.history
            ))),
            None if !self.is_writer() => Err(Error::not_found(format!("there is no keyspace {name:?}"))),
            None => {
                let id = self.catalogue.new_space();
                let head =
                    SpaceHead::Keyspace { id, namespace, name: name.to_owned(), history: history.code() };
                write_space(self, &mut names, namespace, &head)?;
                write_lock(&self.index.policies).insert(id, history.code());
                Ok(Keyspace { core: self.clone(), namespace, id, history })
            }
        }
    }

    /// The keyspace of a name, if there is one.
    ///
    /// # Errors
    /// `Invalid` for its name; `Damaged`, `Unavailable`.
    pub fn find_checked_keyspace(
        self: &Arc<Self>,
        namespace: NamespaceId,
        wanted: &str,
    ) -> Result<Option<Keyspace>> {
        check_text("a keyspace's name", wanted, 1, SPACE_NAME_BYTES_MAX)?;
        self.find_keyspace(namespace, wanted)
    }

    /// As [`Core::find_checked_keyspace`], of a name that is known to be one.
    ///
    /// # Errors
    /// `Damaged`, `Unavailable`.
    pub fn find_keyspace(self: &Arc<Self>, wanted_in: NamespaceId, wanted: &str) -> Result<Option<Keyspace>> {
        let names = self.space_names()?;
        let found = names.keyspaces.get(&wanted_in).and_then(|named| named.get(wanted));
        Ok(found.map(|(id, history)| {
            let history = History::from_code(*history);
            Keyspace { core: self.clone(), namespace: wanted_in, id: *id, history }
        }))
    }
}

impl StoreReader {
    /// The definitions of all namespaces and keyspaces.
    pub fn list_spaces(&self) -> Result<Vec<SpaceHead>> {
        Ok(self.space_names()?.heads.clone())
    }

    /// The names in memory; read from the log if nothing did so yet.
    fn space_names(&self) -> Result<Arc<SpaceNames>> {
        if let Some(names) = &*read_lock(&self.spaces) {
            return Ok(names.clone());
        }
        Ok(Arc::new(SpaceNames::new(self.read_spaces()?)))
    }

    fn read_spaces(&self) -> Result<Vec<SpaceHead>> {
        let _pin = self.pin();
        let mut heads = Vec::new();
        for hit in self.index.scan_prefix(&keys::spaces(), Seqno(u64::MAX))? {
            let head = self.read_logical(keys::place(hit.value), RecordKind::Space, |logical| {
                crate::codec::decode(logical.head)
            })?;
            heads.push(head);
        }
        Ok(heads)
    }

    /// Takes over all names and the history policies of all keyspaces; returns all definitions.
    pub(super) fn load_catalogue(&self) -> Result<Vec<SpaceHead>> {
        let spaces = self.read_spaces()?;
        *write_lock(&self.spaces) = Some(Arc::new(SpaceNames::new(spaces.clone())));
        for head in &spaces {
            if let SpaceHead::Keyspace { id, history, .. } = head {
                write_lock(&self.index.policies).insert(*id, *history);
            }
        }
        Ok(spaces)
    }
}

fn write_space(
    core: &Arc<Core>,
    names: &mut Option<NamesFile>,
    namespace: NamespaceId,
    head: &SpaceHead,
) -> Result<()> {
    let bytes = crate::codec::encode(head).map_err(|e| Error::bug(e.to_string()))?;
    let mut writer = BatchWriter::new(core, namespace)?;
    writer.add_record(RecordKind::Space, &bytes, &[])?;
    match writer.submit_awaited(core.options.durability)? {
        Some((_, ticket)) => {
            ticket.wait()?;
            if let Some(known) = &mut *write_lock(&core.spaces) {
                Arc::make_mut(known).add(head.clone());
            }
            // The definition is in the log. If its copy fails, the next opening writes the file anew.
            let copied = names.as_mut().map(|names| names.add(head));
            if copied.is_some_and(|copied| copied.is_err()) {
                *names = None;
            }
            Ok(())
        }
        None => Err(Error::bug("a definition was not written")),
    }
}

/// Refuses text that is too short, too long, or has control characters.
pub fn check_text(what: &str, text: &str, min: usize, max: usize) -> Result<()> {
    if text.len() < min {
        return Err(Error::invalid(format!("{what} must not be empty")));
    }
    if text.len() > max {
        return Err(Error::invalid(format!("{what} has {} bytes; at most {max} are allowed", text.len())));
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(format!("{what} has the control character {bad:?}: leave it out")));
    }
    Ok(())
}
