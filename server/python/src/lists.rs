//! Lists as the serializer of LangGraph wrote them: `annals.langgraph` serialises only the items that were not there at
//! the list's last put, or that have changed.
//!
//! A list in msgpack is a header with the number of items, and the items' bytes end to end. [`SerialisedList`] keeps
//! the items' bytes and what the items were made of. An item is unchanged if it consists of the same objects: the same
//! immutable values (or equal texts) in lists, tuples, dicts and messages of the same form. So a message that was
//! changed in place is serialised again. An item with anything else in it is serialised each time.

use std::slice::Iter;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::chunks::{DIGEST_BYTES, digest};

/// An item that contains more levels is serialised each time.
const DEPTH_MAX: usize = 32;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SerialisedList>()
}

/// One step of a walk through an item: a container with its length, or an immutable value.
enum ItemPart {
    Value(Py<PyAny>),
    List(usize),
    Tuple(usize),
    Dict(usize),
    /// Followed by the dicts of its fields and of its extra fields.
    Message(Py<PyType>),
}

/// The end of items that were serialised together.
#[derive(Clone, Copy, Default)]
struct ItemsEnd {
    items: usize,
    bytes: usize,
    parts: usize,
}

/// The serialised form of a list, and what its items were made of.
#[pyclass(module = "annals._annals")]
struct SerialisedList {
    /// The classes whose instances are what their fields are.
    messages: Vec<Py<PyType>>,
    /// Where the first chunk begins, and the bytes of a chunk.
    head_bytes: usize,
    chunk_bytes: usize,
    header: Vec<u8>,
    /// The bytes of all items.
    items: Vec<u8>,
    /// What the items were made of, up to the last end; behind it, the items that are to be serialised next.
    parts: Vec<ItemPart>,
    ends: Vec<ItemsEnd>,
    /// The number of items behind the last end; `None` if they are serialised each time.
    noted: Option<usize>,
    /// Digests of the first chunks, end to end.
    digests: Vec<u8>,
}

#[pymethods]
impl SerialisedList {
    #[new]
    fn new(messages: Vec<Py<PyType>>, head_bytes: usize, chunk_bytes: usize) -> PyResult<Self> {
        if chunk_bytes == 0 {
            return Err(PyValueError::new_err("a chunk has at least one byte"));
        }
        Ok(Self {
            messages,
            head_bytes,
            chunk_bytes,
            header: Vec::new(),
            items: Vec::new(),
            parts: Vec::new(),
            ends: Vec::new(),
            noted: None,
            digests: Vec::new(),
        })
    }

    /// Forgets the first item that is not what it was, and all after it; returns the number of items that are left.
    /// The rest of `value` is to be serialised, and given to `extend`.
    fn keep_unchanged(&mut self, value: &Bound<'_, PyList>) -> usize {
        let unchanged = self.unchanged_items(value);
        while self.ends.last().is_some_and(|end| end.items > unchanged) {
            self.ends.pop();
        }
        let end = self.ends.last().copied().unwrap_or_default();
        self.items.truncate(end.bytes);
        self.parts.truncate(end.parts);
        let known = (self.header.len() + end.bytes).saturating_sub(self.head_bytes) / self.chunk_bytes;
        self.digests.truncate(known * DIGEST_BYTES);
        let noted = value.iter().skip(end.items).all(|item| self.note(&item, 0));
        self.noted = noted.then(|| value.len().saturating_sub(end.items));
        end.items
    }

    /// Adds the items of `packed`, a list in msgpack: the serialised rest of `value`.
    fn extend(&mut self, value: &Bound<'_, PyList>, packed: &Bound<'_, PyBytes>) -> PyResult<()> {
        let (count, items) = unpack_list(packed.as_bytes())
            .ok_or_else(|| PyValueError::new_err("the serializer made no list of a list"))?;
        let last = self.ends.last().copied().unwrap_or_default();
        let header = list_header(last.items + count)
            .ok_or_else(|| PyValueError::new_err("msgpack has no list of so many items"))?;
        if header.len() != self.header.len() {
            // All chunks are moved.
            self.digests.clear();
        }
        self.header = header;
        self.items.extend_from_slice(items);
        // A thread may have changed items while they were serialised. Then nobody knows what the bytes are of.
        let rest = self.parts.get(last.parts..).unwrap_or_default();
        let mut parts = rest.iter();
        if count > 0
            && self.noted == Some(count)
            && value.len() == last.items + count
            && value.iter().skip(last.items).all(|item| is_same(&item, &mut parts))
        {
            let end =
                ItemsEnd { items: last.items + count, bytes: self.items.len(), parts: self.parts.len() };
            self.ends.push(end);
        }
        Ok(())
    }

    /// Bytes `start` up to and without `end` of the list.
    fn part<'py>(&self, py: Python<'py>, start: usize, end: usize) -> PyResult<Bound<'py, PyBytes>> {
        let part = if start >= self.header.len() {
            self.items
                .get(start - self.header.len()..end.saturating_sub(self.header.len()))
                .map(<[u8]>::to_vec)
        } else {
            let behind = end.checked_sub(self.header.len()).and_then(|end| self.items.get(..end));
            behind.map(|items| [&self.header[start..], items].concat())
        };
        let part = part.ok_or_else(|| PyValueError::new_err("the list has fewer bytes"))?;
        Ok(PyBytes::new(py, &part))
    }

    /// The digests of the first `count` chunks, end to end.
    fn chunk_digests<'py>(&mut self, py: Python<'py>, count: usize) -> PyResult<Bound<'py, PyBytes>> {
        let first = self.digests.len() / DIGEST_BYTES;
        if count > first {
            let at =
                |chunk: usize| (self.head_bytes + chunk * self.chunk_bytes).checked_sub(self.header.len());
            let chunks = at(first).zip(at(count)).and_then(|(start, end)| self.items.get(start..end));
            let chunks = chunks.ok_or_else(|| PyValueError::new_err("the list has fewer chunks"))?;
            let chunk_bytes = self.chunk_bytes;
            let more: Vec<u8> = py.detach(|| chunks.chunks_exact(chunk_bytes).flat_map(digest).collect());
            self.digests.extend_from_slice(&more);
        }
        let wanted = self.digests.get(..count * DIGEST_BYTES).unwrap_or_default();
        Ok(PyBytes::new(py, wanted))
    }

    fn __len__(&self) -> usize {
        self.header.len() + self.items.len()
    }

    /// About how many bytes of memory it takes, without the texts that its items share with the list.
    fn memory_bytes(&self) -> usize {
        self.items.capacity()
            + self.parts.capacity() * size_of::<ItemPart>()
            + self.ends.capacity() * size_of::<ItemsEnd>()
            + self.digests.capacity()
    }
}

impl SerialisedList {
    fn unchanged_items(&self, value: &Bound<'_, PyList>) -> usize {
        let end = self.ends.last().copied().unwrap_or_default();
        let mut parts = self.parts.get(..end.parts).unwrap_or_default().iter();
        value.iter().take(end.items).take_while(|item| is_same(item, &mut parts)).count()
    }

    /// Notes what an item is made of; `false` if it must be serialised each time.
    fn note(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> bool {
        if depth > DEPTH_MAX {
            return false;
        }
        if is_immutable(value) {
            self.parts.push(ItemPart::Value(value.clone().unbind()));
            return true;
        }
        if let Ok(list) = value.cast_exact::<PyList>() {
            self.parts.push(ItemPart::List(list.len()));
            return list.iter().all(|item| self.note(&item, depth + 1));
        }
        if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            self.parts.push(ItemPart::Tuple(tuple.len()));
            return tuple.iter().all(|item| self.note(&item, depth + 1));
        }
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            self.parts.push(ItemPart::Dict(dict.len()));
            return dict.iter().all(|(key, item)| self.note(&key, depth + 1) && self.note(&item, depth + 1));
        }
        let class = value.get_type();
        let Some((fields, extra)) =
            (self.messages.iter().any(|known| known.is(&class))).then(|| message_fields(value)).flatten()
        else {
            return false;
        };
        self.parts.push(ItemPart::Message(class.unbind()));
        self.note(&fields, depth + 1) && self.note(&extra, depth + 1)
    }
}

/// Whether a value consists of what was noted.
fn is_same(value: &Bound<'_, PyAny>, parts: &mut Iter<'_, ItemPart>) -> bool {
    match parts.next() {
        Some(ItemPart::Value(kept)) => kept.is(value) || is_same_text(kept.bind(value.py()), value),
        Some(ItemPart::List(len)) => value
            .cast_exact::<PyList>()
            .is_ok_and(|list| list.len() == *len && list.iter().all(|item| is_same(&item, parts))),
        Some(ItemPart::Tuple(len)) => value
            .cast_exact::<PyTuple>()
            .is_ok_and(|tuple| tuple.len() == *len && tuple.iter().all(|item| is_same(&item, parts))),
        Some(ItemPart::Dict(len)) => value.cast_exact::<PyDict>().is_ok_and(|dict| {
            dict.len() == *len && dict.iter().all(|(key, item)| is_same(&key, parts) && is_same(&item, parts))
        }),
        Some(ItemPart::Message(class)) => {
            value.get_type().is(class)
                && message_fields(value)
                    .is_some_and(|(fields, extra)| is_same(&fields, parts) && is_same(&extra, parts))
        }
        None => false,
    }
}

/// The dicts from which pydantic serialises a message.
fn message_fields<'py>(message: &Bound<'py, PyAny>) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let py = message.py();
    let fields = message.getattr(pyo3::intern!(py, "__dict__")).ok()?;
    let extra = message.getattr(pyo3::intern!(py, "__pydantic_extra__")).ok()?;
    Some((fields, extra))
}

fn is_immutable(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBytes>()
}

fn is_same_text(kept: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> bool {
    kept.is_exact_instance_of::<PyString>()
        && value.is_exact_instance_of::<PyString>()
        && kept.eq(value).unwrap_or(false)
}

/// The number of items of a list in msgpack, and their bytes.
fn unpack_list(packed: &[u8]) -> Option<(usize, &[u8])> {
    match packed {
        [first @ 0x90..=0x9f, items @ ..] => Some((usize::from(first & 0xf), items)),
        [0xdc, a, b, items @ ..] => Some((usize::from(u16::from_be_bytes([*a, *b])), items)),
        [0xdd, a, b, c, d, items @ ..] => {
            Some((usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok()?, items))
        }
        _ => None,
    }
}

/// The bytes before the items of a list in msgpack: the shortest form, as the serializer writes it.
fn list_header(count: usize) -> Option<Vec<u8>> {
    Some(match (u8::try_from(count), u16::try_from(count)) {
        (Ok(count @ ..16), _) => vec![0x90 | count],
        (_, Ok(count)) => [&[0xdc], &count.to_be_bytes()[..]].concat(),
        _ => [&[0xdd], &u32::try_from(count).ok()?.to_be_bytes()[..]].concat(),
    })
}
