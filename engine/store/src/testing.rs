//! What tests and fuzz targets of this crate and of those above it share. Not in ordinary builds.

/// Takes so many bytes from the front, or what is there.
pub fn take<'a>(data: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (front, rest) = data.split_at(len.min(data.len()));
    *data = rest;
    front
}

/// Takes a byte, 0 at the end.
pub fn byte(data: &mut &[u8]) -> u8 {
    take(data, 1).first().copied().unwrap_or(0)
}

/// Takes two bytes as a number, little-endian.
pub fn short(data: &mut &[u8]) -> usize {
    usize::from(byte(data)) | usize::from(byte(data)) << 8
}
