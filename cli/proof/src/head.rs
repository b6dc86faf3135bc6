//! Parses the heads of run and frame records: format.md, sections 1, 6 and 7.

use crate::Hash;
use crate::error::Error;

pub(crate) const RUN: u8 = 4;
pub(crate) const FRAME: u8 = 5;
const INLINE_MAX: u64 = 4095;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) uid: u64,
    pub(crate) namespace: u32,
    pub(crate) name: String,
    pub(crate) agent: String,
    pub(crate) model: String,
    pub(crate) status: u8,
    pub(crate) severity: u8,
    /// The run it was forked from, and the last frame that it shares.
    pub(crate) parent: Option<(u64, u32)>,
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) frames: u32,
    pub(crate) fingerprint: Hash,
    pub(crate) gone: bool,
    pub(crate) metadata: Reference,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) run: u64,
    pub(crate) seq: u32,
    pub(crate) parent: u32,
    pub(crate) component: String,
    pub(crate) severity: u8,
    pub(crate) open: bool,
    pub(crate) error: bool,
    pub(crate) start_ns: i64,
    pub(crate) duration_ns: u64,
    /// Input, output, metadata.
    pub(crate) bodies: [Reference; 3],
}

/// A reference to a body in a head.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reference {
    /// Length and BLAKE3.
    Known(u64, Hash),
    /// The same body as in the frame this many frames earlier.
    Same(u32),
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], Error> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or_else(|| Error::refused("a record's head ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = self.take(N as u64)?;
        taken.try_into().map_err(|_| Error::refused("a record's head ends too early"))
    }

    fn u8(&mut self) -> Result<u8, Error> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    fn bool(&mut self) -> Result<bool, Error> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::refused("a truth value in a record's head is neither 0 nor 1")),
        }
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0u128;
        for index in 0..10 {
            let byte = self.u8()?;
            value |= u128::from(byte & 127) << (7 * index);
            if byte < 128 {
                let shortest = byte != 0 || index == 0;
                return u64::try_from(value)
                    .ok()
                    .filter(|_| shortest)
                    .ok_or_else(|| Error::refused("a number in a record's head is not well formed"));
            }
        }
        Err(Error::refused("a number in a record's head is too long"))
    }

    fn varint32(&mut self) -> Result<u32, Error> {
        u32::try_from(self.varint()?).map_err(|_| Error::refused("a number in a record's head is too great"))
    }

    fn text(&mut self, count: u64) -> Result<String, Error> {
        let bytes = self.take(count)?.to_vec();
        String::from_utf8(bytes).map_err(|_| Error::refused("text in a record's head is not UTF-8"))
    }

    /// Text with a fixed-width length.
    fn fixed_text(&mut self) -> Result<String, Error> {
        let count = self.u64()?;
        self.text(count)
    }

    fn reference(&mut self) -> Result<Reference, Error> {
        let first = self.varint()?;
        let number = first >> 2;
        match first & 3 {
            0 if number <= INLINE_MAX => {
                let bytes = self.take(number)?;
                Ok(Reference::Known(number, *blake3::hash(bytes).as_bytes()))
            }
            1 => Ok(Reference::Known(number, self.array()?)),
            2 if number >= 1 => u32::try_from(number)
                .map(Reference::Same)
                .map_err(|_| Error::refused("a body refers too far back")),
            _ => Err(Error::refused("a body reference has an unknown form")),
        }
    }

    fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::refused("a record's head has bytes left over")) }
    }
}

impl Run {
    pub(crate) fn parse(head: &[u8]) -> Result<Self, Error> {
        let mut head = Bytes(head);
        let len = head.varint()?;
        let mut f = Bytes(head.take(len)?);
        let (uid, namespace) = (f.u64()?, f.u32()?);
        let (name, agent, model) = (f.fixed_text()?, f.fixed_text()?, f.fixed_text()?);
        let tags = f.u64()?;
        for _ in 0..tags {
            // Each tag takes at least 16 bytes, so the head's length bounds this loop.
            f.fixed_text()?;
            f.fixed_text()?;
        }
        let (status, severity) = (f.u8()?, f.u8()?);
        let parent = match f.bool()? {
            false => None,
            true => {
                let parent = (f.u64()?, f.u32()?);
                f.u32()?;
                Some(parent)
            }
        };
        let (started_ns, ended_ns, frames) = (f.u64()?, f.u64()?, f.u32()?);
        f.u64()?;
        let (fingerprint, gone) = (f.array()?, f.bool()?);
        f.end()?;
        let metadata = head.reference()?;
        head.end()?;
        Ok(Self {
            uid,
            namespace,
            name,
            agent,
            model,
            status,
            severity,
            parent,
            started_ns,
            ended_ns,
            frames,
            fingerprint,
            gone,
            metadata,
        })
    }
}

impl Frame {
    pub(crate) fn parse(head: &[u8]) -> Result<Self, Error> {
        let mut f = Bytes(head);
        let (run, seq) = (f.varint()?, f.varint32()?);
        let flags = u16::from_le_bytes(f.array()?);
        let flag = |bit: u32| flags >> bit & 1 == 1;
        if flags >> 10 != 0 || (flag(9) && !flag(8)) {
            return Err(Error::refused("a frame has unknown flags"));
        }
        let component = match flags & 15 {
            0 => "user".to_owned(),
            1 => "llm".to_owned(),
            2 => "tool".to_owned(),
            3 => "planner".to_owned(),
            4 => "merge".to_owned(),
            5 => "nondet".to_owned(),
            15 => match f.varint()? {
                len @ 0..=64 => f.text(len)?,
                _ => return Err(Error::refused("a component's name is too long")),
            },
            _ => return Err(Error::refused("a frame is of an unknown component")),
        };
        let parent = match f.varint32()? {
            0 => 0,
            back if back < seq => seq - back,
            _ => return Err(Error::refused("a frame's parent is no earlier frame")),
        };
        let start = f.varint()?;
        let start_ns = (start >> 1) as i64 ^ -((start & 1) as i64);
        let duration_ns = f.varint()?;
        if flag(9) {
            f.varint32()?;
        }
        if flag(8) {
            f.take(32)?;
        }
        let bodies = [f.reference()?, f.reference()?, f.reference()?];
        f.end()?;
        Ok(Self {
            run,
            seq,
            parent,
            component,
            severity: (flags >> 4 & 3) as u8,
            open: flag(6),
            error: flag(7),
            start_ns,
            duration_ns,
            bodies,
        })
    }
}
