//! Assembles a body from the parts in which it arrives. The caller sets the limits of its length and memory.

use bytes::Bytes;

/// A body as far as it has come. Most bodies come as one part, which is not copied.
#[derive(Debug, Default)]
pub struct BodyAssembler {
    first: Bytes,
    all: Vec<u8>,
}

impl BodyAssembler {
    /// For a body that is about this long: its parts are copied as they come.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { first: Bytes::new(), all: Vec::with_capacity(bytes) }
    }

    /// Adds a part.
    pub fn push(&mut self, part: Bytes) {
        if self.first.is_empty() && self.all.capacity() == 0 {
            self.first = part;
            return;
        }
        self.all.extend_from_slice(&std::mem::take(&mut self.first));
        self.all.extend_from_slice(&part);
    }

    /// How many bytes have come.
    pub fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    /// Whether nothing has come.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets go of all that has come.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The body.
    pub fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_in_order() {
        for parts in [&[][..], &["a"], &["", "a"], &["a", "b"], &["a", "", "b", "c"]] {
            for capacity in [0, 1, 9] {
                let mut body = BodyAssembler::with_capacity(capacity);
                parts.iter().for_each(|part| body.push(Bytes::from_static(part.as_bytes())));
                assert_eq!((body.len(), body.is_empty()), (parts.concat().len(), parts.concat().is_empty()));
                assert_eq!(body.into_bytes(), parts.concat());
            }
        }
    }

    #[test]
    fn one_part_is_not_copied_and_cleared_ones_are_gone() {
        let (part, mut body) = (Bytes::from(vec![7; 9]), BodyAssembler::default());
        body.push(part.clone());
        assert_eq!(body.into_bytes().as_ptr(), part.as_ptr());
        let mut body = BodyAssembler::default();
        body.push(part.clone());
        body.push(part);
        body.clear();
        assert!(body.is_empty() && body.into_bytes().is_empty());
    }
}
