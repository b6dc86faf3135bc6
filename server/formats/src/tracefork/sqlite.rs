//! A reader for a part of SQLite's file format (sqlite.org/fileformat2.html): pages, table b-trees, overflow
//! chains, records. It reads whole tables. It writes nothing, reads no index, and runs no SQL.
//!
//! The bytes are hostile: a table's pages are read at most once each, so a cycle of pages cannot cause an
//! endless loop. Rows may not share bytes, so a table in memory is about as large as in the file.

use super::TapeRefusal;

/// The first bytes of every database.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";
/// Maximum number of columns of a row.
const COLUMNS_MAX: usize = 16;

/// The value of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SqliteValue {
    Null,
    Int(i64),
    Text(String),
    Blob(Vec<u8>),
}

impl SqliteValue {
    pub(super) fn text(&self) -> Result<&str, TapeRefusal> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(format!("a text is expected, not {}", other.kind())),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Int(_) => "a number",
            Self::Text(_) => "a text",
            Self::Blob(_) => "bytes",
        }
    }
}

/// A database in memory.
#[derive(Debug)]
pub(super) struct SqliteDatabase<'a> {
    bytes: &'a [u8],
    page_bytes: usize,
    /// Usable bytes of a page, without the reserved bytes at its end.
    usable: usize,
    seen: Vec<bool>,
}

impl<'a> SqliteDatabase<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, TapeRefusal> {
        let header = bytes.get(..100).filter(|header| header.starts_with(MAGIC));
        let header = header.ok_or("it is no SQLite database")?;
        let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            bytes if bytes >= 512 && bytes.is_power_of_two() => usize::from(bytes),
            bytes => return Err(format!("its pages of {bytes} bytes are not SQLite's")),
        };
        let usable = page_bytes - usize::from(header[20]);
        if usable < 480 || header[56..60] != [0, 0, 0, 1] {
            return Err("its pages or its encoding of text are not what tracefork writes".to_owned());
        }
        let pages = bytes.len() / page_bytes;
        Ok(Self { bytes, page_bytes, usable, seen: vec![false; pages] })
    }

    /// All rows of a table, in the order of their rowids. An INTEGER PRIMARY KEY is Null in them.
    pub(super) fn table(&mut self, name: &str) -> Result<Vec<Vec<SqliteValue>>, TapeRefusal> {
        let mut root = None;
        for row in self.rows(1)? {
            if let [SqliteValue::Text(kind), SqliteValue::Text(of), _, SqliteValue::Int(page), ..] =
                row.as_slice()
                && kind == "table"
                && of == name
            {
                root = u32::try_from(*page).ok();
            }
        }
        self.rows(root.ok_or_else(|| format!("it has no table {name:?}"))?)
    }

    fn rows(&mut self, root: u32) -> Result<Vec<Vec<SqliteValue>>, TapeRefusal> {
        self.seen.fill(false);
        let mut rows = Vec::new();
        // Each byte of the file belongs to one row at most.
        let mut row_bytes_left = self.bytes.len();
        // A stack: the next page to read is the last element.
        let mut pages = vec![root];
        while let Some(number) = pages.pop() {
            let page = self.page(number)?;
            let start = if number == 1 { 100 } else { 0 };
            let kind = slice_at(page, start, 1)?[0];
            let cells = usize::from(be16(page, start + 3)?);
            let first = start + if kind == 5 { 12 } else { 8 };
            let places = (0..cells).map(|cell| be16(page, first + 2 * cell).map(usize::from));
            let places = places.collect::<Result<Vec<_>, _>>()?;
            match kind {
                5 => {
                    pages.push(be32(page, start + 8)?);
                    for place in places.iter().rev() {
                        pages.push(be32(page, *place)?);
                    }
                }
                13 => {
                    for place in places {
                        let payload = self.payload(page, place)?;
                        row_bytes_left =
                            row_bytes_left.checked_sub(payload.len()).ok_or("its rows share bytes")?;
                        rows.push(parse_record(&payload)?);
                    }
                }
                kind => return Err(format!("page {number} is of kind {kind}, which is no table's")),
            }
        }
        Ok(rows)
    }

    fn page(&mut self, number: u32) -> Result<&'a [u8], TapeRefusal> {
        let index = (number as usize).checked_sub(1);
        let seen = index.and_then(|index| self.seen.get_mut(index));
        match seen {
            Some(seen) if !*seen => *seen = true,
            Some(_) => return Err(format!("page {number} is used twice")),
            None => return Err(format!("page {number} is not there")),
        }
        slice_at(self.bytes, (number as usize - 1) * self.page_bytes, self.page_bytes)
    }

    /// The payload of a leaf's cell, including its overflow pages.
    fn payload(&mut self, page: &[u8], mut place: usize) -> Result<Vec<u8>, TapeRefusal> {
        let len = varint(page, &mut place)?;
        let _rowid = varint(page, &mut place)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= self.bytes.len());
        let len = len.ok_or("a row is larger than the file")?;
        let usable = self.usable;
        let most = usable - 35;
        let local = match len {
            len if len <= most => len,
            len => {
                let least = (usable - 12) * 32 / 255 - 23;
                let rest = least + (len - least) % (usable - 4);
                if rest <= most { rest } else { least }
            }
        };
        let mut payload = slice_at(page, place, local)?.to_vec();
        if local < len {
            let mut next = be32(page, place + local)?;
            while payload.len() < len {
                let overflow = self.page(next)?;
                let count = (len - payload.len()).min(usable - 4);
                payload.extend_from_slice(slice_at(overflow, 4, count)?);
                next = be32(overflow, 0)?;
            }
        }
        Ok(payload)
    }
}

fn parse_record(bytes: &[u8]) -> Result<Vec<SqliteValue>, TapeRefusal> {
    let mut head = 0;
    let end = usize::try_from(varint(bytes, &mut head)?).map_err(|_| "a row's head is too long")?;
    let (mut body, mut row) = (end, Vec::new());
    while head < end {
        if row.len() == COLUMNS_MAX {
            return Err("a row has too many columns".to_owned());
        }
        let serial = varint(bytes, &mut head)?;
        let mut take = |len: u64| -> Result<&[u8], TapeRefusal> {
            let len = usize::try_from(len).map_err(|_| "a value is too long")?;
            let value = slice_at(bytes, body, len)?;
            body += len;
            Ok(value)
        };
        row.push(match serial {
            0 => SqliteValue::Null,
            1..=6 => {
                let value = take([1, 2, 3, 4, 6, 8][serial as usize - 1])?;
                let sign = if value[0] & 0x80 != 0 { -1 } else { 0 };
                SqliteValue::Int(value.iter().fold(sign, |number, byte| number << 8 | i64::from(*byte)))
            }
            8 | 9 => SqliteValue::Int(serial as i64 - 8),
            serial if serial >= 12 && serial % 2 == 0 => SqliteValue::Blob(take((serial - 12) / 2)?.to_vec()),
            serial if serial >= 13 => {
                let text = take((serial - 13) / 2)?.to_vec();
                SqliteValue::Text(String::from_utf8(text).map_err(|_| "a text is not UTF-8")?)
            }
            _ => return Err(format!("a value of the kind {serial} is not one of tracefork's")),
        });
    }
    Ok(row)
}

fn slice_at(bytes: &[u8], from: usize, len: usize) -> Result<&[u8], TapeRefusal> {
    let range = from.checked_add(len).and_then(|to| bytes.get(from..to));
    range.ok_or_else(|| "it ends in the middle of something".to_owned())
}

fn be16(bytes: &[u8], from: usize) -> Result<u16, TapeRefusal> {
    slice_at(bytes, from, 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

fn be32(bytes: &[u8], from: usize) -> Result<u32, TapeRefusal> {
    slice_at(bytes, from, 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

/// Reads an integer of one to nine bytes, the highest bits first. The ninth byte holds eight bits.
fn varint(bytes: &[u8], place: &mut usize) -> Result<u64, TapeRefusal> {
    let mut value = 0;
    for count in 0..9 {
        let byte = slice_at(bytes, *place, 1)?[0];
        *place += 1;
        if count == 8 {
            return Ok(value << 8 | u64::from(byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            break;
        }
    }
    Ok(value)
}
