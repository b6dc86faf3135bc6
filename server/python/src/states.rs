//! States as JSON: the fast half of `annals.snapshots`.
//!
//! Plain data (None, bool, int, float, str, list, dict with texts as keys) is written here, byte for byte as Python's
//! `json.dumps` with `ensure_ascii=False` writes it. For everything else, and for what is refused, a function of Python
//! is called with the value and its path.

use std::io::Write as _;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

/// Maximum depth. The Python half refuses a deeper value.
const DEPTH_MAX: usize = 200;
/// Bytes of a text that are looked at together.
const BLOCK_BYTES: usize = 64;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_state, module)?)
}

/// The value as JSON. `other(value, path, above)` writes what is not plain; `above` has the ids and the paths of the
/// values that contain it.
#[pyfunction]
fn encode_state<'py>(value: &Bound<'py, PyAny>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(value.py(), &encode(value, other)?))
}

/// As [`encode_state`], for callers in Rust.
///
/// # Errors
/// Those that `other` raises.
pub(crate) fn encode(value: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut encoder = StateEncoder { json: Vec::new(), above: Vec::new(), other: other.clone() };
    encoder.value(value, &PathPart::Root)?;
    Ok(encoder.json)
}

/// The last part of a value's path.
enum PathPart<'a, 'py> {
    Root,
    Item(usize),
    Key(&'a Bound<'py, PyString>),
}

struct StateEncoder<'py> {
    json: Vec<u8>,
    /// The containers that are being written: their ids, and the ends of their paths.
    above: Vec<(usize, String)>,
    other: Bound<'py, PyAny>,
}

impl<'py> StateEncoder<'py> {
    fn value(&mut self, value: &Bound<'py, PyAny>, part: &PathPart<'_, 'py>) -> PyResult<()> {
        if let Ok(text) = value.cast_exact::<PyString>() {
            return self.text(text);
        }
        if value.is_none() {
            self.json.extend_from_slice(b"null");
        } else if let Ok(truth) = value.cast_exact::<PyBool>() {
            self.json.extend_from_slice(if truth.is_true() { b"true" } else { b"false" });
        } else if value.cast_exact::<PyInt>().is_ok() {
            match value.extract::<i64>() {
                Ok(number) => write!(self.json, "{number}")?,
                Err(_) => self.json.extend_from_slice(value.str()?.to_str()?.as_bytes()),
            }
        } else if let Ok(number) = value.cast_exact::<PyFloat>()
            && number.value().is_finite()
        {
            self.json.extend_from_slice(value.repr()?.to_str()?.as_bytes());
        } else if let Ok(list) = value.cast_exact::<PyList>()
            && self.may_enter(value)
        {
            self.enter(value, part)?;
            self.list(list)?;
            self.above.pop();
        } else if let Ok(map) = value.cast_exact::<PyDict>()
            && self.may_enter(value)
            && let Some(items) = plain_items(map)
        {
            self.enter(value, part)?;
            self.map(&items)?;
            self.above.pop();
        } else {
            self.other(value, part)?;
        }
        Ok(())
    }

    fn list(&mut self, list: &Bound<'py, PyList>) -> PyResult<()> {
        self.json.push(b'[');
        for (place, item) in list.iter().enumerate() {
            if place > 0 {
                self.json.push(b',');
            }
            self.value(&item, &PathPart::Item(place))?;
        }
        self.json.push(b']');
        Ok(())
    }

    fn map(&mut self, items: &[(Bound<'py, PyString>, Bound<'py, PyAny>)]) -> PyResult<()> {
        self.json.push(b'{');
        for (place, (key, item)) in items.iter().enumerate() {
            if place > 0 {
                self.json.push(b',');
            }
            self.text(key)?;
            self.json.push(b':');
            self.value(item, &PathPart::Key(key))?;
        }
        self.json.push(b'}');
        Ok(())
    }

    fn text(&mut self, text: &Bound<'py, PyString>) -> PyResult<()> {
        match text.to_str() {
            Ok(plain) => push_text(plain.as_bytes(), &mut self.json),
            // A lone surrogate has no UTF-8.
            Err(_) => {
                let bytes =
                    text.call_method1("encode", ("utf-8", "surrogatepass"))?.cast_into::<PyBytes>()?;
                push_text(bytes.as_bytes(), &mut self.json);
            }
        }
        Ok(())
    }

    /// Whether a container is neither too deep nor inside of itself.
    fn may_enter(&self, value: &Bound<'py, PyAny>) -> bool {
        let id = value.as_ptr() as usize;
        self.above.len() < DEPTH_MAX && !self.above.iter().any(|(above, _)| *above == id)
    }

    fn enter(&mut self, value: &Bound<'py, PyAny>, part: &PathPart<'_, 'py>) -> PyResult<()> {
        self.above.push((value.as_ptr() as usize, part_text(part)?));
        Ok(())
    }

    fn other(&mut self, value: &Bound<'py, PyAny>, part: &PathPart<'_, 'py>) -> PyResult<()> {
        let (above, mut path) = (PyDict::new(value.py()), String::new());
        for (id, part) in &self.above {
            path.push_str(part);
            above.set_item(id, &path)?;
        }
        path.push_str(&part_text(part)?);
        let written = self.other.call1((value, path, above))?.cast_into::<PyBytes>()?;
        self.json.extend_from_slice(written.as_bytes());
        Ok(())
    }
}

fn part_text(part: &PathPart<'_, '_>) -> PyResult<String> {
    Ok(match part {
        PathPart::Root => "$".to_owned(),
        PathPart::Item(place) => format!("[{place}]"),
        PathPart::Key(key) => format!(".{}", key.to_string_lossy()),
    })
}

/// The items of a dictionary whose keys are texts that do not begin with `$`, in its order. A copy: what is called for
/// an item may change the dictionary.
fn plain_items<'py>(map: &Bound<'py, PyDict>) -> Option<Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>> {
    let mut items = Vec::with_capacity(map.len());
    for (key, value) in map.iter() {
        let key = key.cast_into_exact::<PyString>().ok()?;
        if key.to_string_lossy().starts_with('$') {
            return None;
        }
        items.push((key, value));
    }
    Some(items)
}

/// Appends a text of JSON.
fn push_text(text: &[u8], json: &mut Vec<u8>) {
    json.reserve(text.len() + 2);
    json.push(b'"');
    let mut rest = text;
    loop {
        let (plain, after) = rest.split_at(plain_len(rest));
        json.extend_from_slice(plain);
        let Some((special, after)) = after.split_first() else { break };
        match special {
            b'"' => json.extend_from_slice(b"\\\""),
            b'\\' => json.extend_from_slice(b"\\\\"),
            b'\n' => json.extend_from_slice(b"\\n"),
            b'\r' => json.extend_from_slice(b"\\r"),
            b'\t' => json.extend_from_slice(b"\\t"),
            0x08 => json.extend_from_slice(b"\\b"),
            0x0c => json.extend_from_slice(b"\\f"),
            control => json.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = after;
    }
    json.push(b'"');
}

/// Number of bytes before the first one that JSON escapes. A whole block is tested without a branch for each byte.
fn plain_len(text: &[u8]) -> usize {
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    let mut before = 0;
    for block in text.chunks(BLOCK_BYTES) {
        if block.iter().fold(false, |any, byte| any | is_special(*byte)) {
            return before + block.iter().position(|byte| is_special(*byte)).unwrap_or(block.len());
        }
        before += block.len();
    }
    before
}
