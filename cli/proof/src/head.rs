//! Parses the heads of run and frame records: format.md, sections 1, 6 and 7.

use crate::Hash;
use crate::error::ProofError;

pub(crate) const RUN_KIND: u8 = 4;
pub(crate) const FRAME_KIND: u8 = 5;
const INLINE_BYTES_MAX: u64 = 4095;

#[derive(Debug)]
pub(crate) struct RunRecordHead {
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
    pub(crate) metadata: BodyReference,
}

#[derive(Debug)]
pub(crate) struct FrameRecordHead {
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
    pub(crate) bodies: [BodyReference; 3],
    /// The code of the component.
    code: u8,
    /// The link after this frame, if its own record holds it.
    link: Option<Hash>,
}

/// The values that lead to a frame's link. They prove the ids of which the record holds only the first bytes.
#[derive(Debug)]
pub(crate) struct ChainWitness {
    /// The link before the frame.
    pub(crate) before: Hash,
    pub(crate) input: Hash,
    pub(crate) output: Hash,
    /// Hash of the canonical metadata.
    pub(crate) metadata: Hash,
}

/// A reference to a body in a head.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyReference {
    /// Length and BLAKE3.
    Known(u64, Hash),
    /// Length and the first bytes of the BLAKE3: the frame's link proves the others.
    Front(u64, [u8; 8]),
    /// The same body as in the frame this many frames earlier.
    SameAsEarlier(u32),
}

struct HeadCursor<'a>(&'a [u8]);

impl<'a> HeadCursor<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], ProofError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| ProofError::refused("a record's head ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProofError> {
        let taken = self.take(N as u64)?;
        taken.try_into().map_err(|_| ProofError::refused("a record's head ends too early"))
    }

    fn u8(&mut self) -> Result<u8, ProofError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ProofError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ProofError> {
        self.array().map(u64::from_le_bytes)
    }

    fn boolean(&mut self) -> Result<bool, ProofError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ProofError::refused("a truth value in a record's head is neither 0 nor 1")),
        }
    }

    fn varint(&mut self) -> Result<u64, ProofError> {
        let mut value = 0u128;
        for index in 0..10 {
            let byte = self.u8()?;
            value |= u128::from(byte & 127) << (7 * index);
            if byte < 128 {
                let shortest = byte != 0 || index == 0;
                return u64::try_from(value)
                    .ok()
                    .filter(|_| shortest)
                    .ok_or_else(|| ProofError::refused("a number in a record's head is not well formed"));
            }
        }
        Err(ProofError::refused("a number in a record's head is too long"))
    }

    fn varint32(&mut self) -> Result<u32, ProofError> {
        u32::try_from(self.varint()?)
            .map_err(|_| ProofError::refused("a number in a record's head is too great"))
    }

    fn text(&mut self, count: u64) -> Result<String, ProofError> {
        let bytes = self.take(count)?.to_vec();
        String::from_utf8(bytes).map_err(|_| ProofError::refused("text in a record's head is not UTF-8"))
    }

    /// Text with a fixed-width length.
    fn fixed_text(&mut self) -> Result<String, ProofError> {
        let count = self.u64()?;
        self.text(count)
    }

    /// A reference. Only where the record's link proves an id may its first bytes stand alone.
    fn reference(&mut self, proved: bool) -> Result<BodyReference, ProofError> {
        let first = self.varint()?;
        let number = first >> 2;
        match first & 3 {
            0 if number <= INLINE_BYTES_MAX => {
                let bytes = self.take(number)?;
                Ok(BodyReference::Known(number, *blake3::hash(bytes).as_bytes()))
            }
            1 => Ok(BodyReference::Known(number, self.array()?)),
            2 if number >= 1 => u32::try_from(number)
                .map(BodyReference::SameAsEarlier)
                .map_err(|_| ProofError::refused("a body refers too far back")),
            3 if proved => Ok(BodyReference::Front(number, self.array()?)),
            _ => Err(ProofError::refused("a body reference has an unknown form")),
        }
    }

    fn expect_end(&self) -> Result<(), ProofError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(ProofError::refused("a record's head has bytes left over"))
        }
    }
}

impl RunRecordHead {
    pub(crate) fn parse(head: &[u8]) -> Result<Self, ProofError> {
        let mut head = HeadCursor(head);
        let len = head.varint()?;
        let mut f = HeadCursor(head.take(len)?);
        let (uid, namespace) = (f.u64()?, f.u32()?);
        let (name, agent, model) = (f.fixed_text()?, f.fixed_text()?, f.fixed_text()?);
        let tags = f.u64()?;
        for _ in 0..tags {
            // Each tag takes at least 16 bytes, so the head's length bounds this loop.
            f.fixed_text()?;
            f.fixed_text()?;
        }
        let (status, severity) = (f.u8()?, f.u8()?);
        let parent = match f.boolean()? {
            false => None,
            true => {
                let parent = (f.u64()?, f.u32()?);
                f.u32()?;
                Some(parent)
            }
        };
        let (started_ns, ended_ns, frames) = (f.u64()?, f.u64()?, f.u32()?);
        f.u64()?;
        let (fingerprint, gone) = (f.array()?, f.boolean()?);
        f.expect_end()?;
        let metadata = head.reference(false)?;
        head.expect_end()?;
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

impl FrameRecordHead {
    pub(crate) fn parse(head: &[u8]) -> Result<Self, ProofError> {
        let mut f = HeadCursor(head);
        let (run, seq) = (f.varint()?, f.varint32()?);
        let flags = u16::from_le_bytes(f.array()?);
        let flag = |bit: u32| flags >> bit & 1 == 1;
        if flags >> 10 != 0 || (flag(9) && !flag(8)) {
            return Err(ProofError::refused("a frame has unknown flags"));
        }
        let code = (flags & 15) as u8;
        let component = match code {
            0 => "user".to_owned(),
            1 => "llm".to_owned(),
            2 => "tool".to_owned(),
            3 => "planner".to_owned(),
            4 => "merge".to_owned(),
            5 => "nondet".to_owned(),
            15 => match f.varint()? {
                len @ 0..=64 => f.text(len)?,
                _ => return Err(ProofError::refused("a component's name is too long")),
            },
            _ => return Err(ProofError::refused("a frame is of an unknown component")),
        };
        let parent = match f.varint32()? {
            0 => 0,
            back if back < seq => seq - back,
            _ => return Err(ProofError::refused("a frame's parent is no earlier frame")),
        };
        let start = f.varint()?;
        let start_ns = (start >> 1) as i64 ^ -((start & 1) as i64);
        let duration_ns = f.varint()?;
        if flag(9) {
            f.varint32()?;
        }
        let link = match flag(8) {
            true => Some(f.array()?).filter(|_| !flag(9)),
            false => None,
        };
        let proved = link.is_some();
        let bodies = [f.reference(proved)?, f.reference(proved)?, f.reference(false)?];
        f.expect_end()?;
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
            code,
            link,
        })
    }

    /// Completes the ids of which the record holds only the first bytes. The witness must lead to the link.
    pub(crate) fn complete_ids(&mut self, witness: Option<&ChainWitness>) -> Result<(), ProofError> {
        let is_front = |body: &BodyReference| matches!(body, BodyReference::Front(..));
        let (witness, link) = match (witness, self.link, self.bodies.iter().any(is_front)) {
            (None, _, false) => return Ok(()),
            (Some(witness), Some(link), true) => (witness, link),
            (None, ..) => {
                return Err(ProofError::refused("a frame's body has only the first bytes of an id"));
            }
            (Some(_), ..) => return Err(ProofError::refused("a frame has a chain that it does not need")),
        };
        let mut digest = blake3::Hasher::new_derive_key("annals run frame 1");
        digest.update(&[self.code]);
        if self.code == 15 {
            digest.update(&(self.component.len() as u64).to_le_bytes());
            digest.update(self.component.as_bytes());
        }
        digest.update(&self.parent.to_le_bytes());
        digest.update(&[u8::from(self.open), u8::from(self.error)]);
        for hash in [&witness.input, &witness.output, &witness.metadata] {
            digest.update(hash);
        }
        let mut next = blake3::Hasher::new_derive_key("annals run link 1");
        next.update(&witness.before);
        next.update(digest.finalize().as_bytes());
        if *next.finalize().as_bytes() != link {
            return Err(ProofError::refused("a frame's chain does not lead to its link"));
        }
        for (body, id) in self.bodies.iter_mut().zip([&witness.input, &witness.output]) {
            match *body {
                BodyReference::Front(len, front) if id.starts_with(&front) => {
                    *body = BodyReference::Known(len, *id);
                }
                BodyReference::Known(_, known) if known == *id => {}
                BodyReference::SameAsEarlier(_) => {}
                _ => return Err(ProofError::refused("a frame's chain names another body than its record")),
            }
        }
        Ok(())
    }
}
