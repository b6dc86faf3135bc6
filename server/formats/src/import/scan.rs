//! A JSON recogniser that takes one byte at a time and keeps only its position in the grammar.
//!
//! It cuts a stream into objects without holding the stream, and finds the line of the first wrong byte. A
//! parser that first reads a whole object would report a truncated line only at the end of the input. The
//! grammar is RFC 8259 with a limit on nesting; the stack has one bit per level.
//!
//! Invariant: the accepted bytes are one JSON object, except that bytes above 0x7f inside strings are not
//! checked. The UTF-8 of the text is checked once, when the object is complete.

/// Maximum nesting of arrays and objects in one object of an import.
pub const DEPTH_MAX: usize = 128;

/// Whether the object continues after a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanProgress {
    More,
    /// This byte closed the object.
    Done,
}

/// Why a byte is not allowed at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanError {
    Expected(&'static str),
    TooDeep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    Start,
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    After,
    Text,
    Escape,
    Hex(u8),
    Minus,
    Zero,
    Digits,
    Dot,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    Word(&'static [u8]),
}

/// The recogniser of one object.
#[derive(Debug)]
pub(super) struct ObjectScanner {
    state: ScanState,
    /// The current string is a key.
    in_key: bool,
    /// One bit per level, the innermost lowest: 1 for an object, 0 for an array.
    levels: u128,
    depth: usize,
}

impl ObjectScanner {
    pub(super) fn new() -> Self {
        Self { state: ScanState::Start, in_key: false, levels: 0, depth: 0 }
    }

    /// The input that is expected at the current position, for error messages.
    pub(super) fn expected(&self) -> &'static str {
        match self.state {
            ScanState::Start => "`{`",
            ScanState::Value => "a value",
            ScanState::ValueOrEnd => "a value or `]`",
            ScanState::KeyOrEnd => "a key or `}`",
            ScanState::Key => "a key",
            ScanState::Colon => "`:`",
            ScanState::After if self.in_object() => "`,` or `}`",
            ScanState::After => "`,` or `]`",
            ScanState::Text => "the rest of a string",
            ScanState::Escape => "an escape",
            ScanState::Hex(_) => "a hexadecimal digit",
            ScanState::Minus
            | ScanState::Dot
            | ScanState::Exponent
            | ScanState::ExponentSign
            | ScanState::ExponentDigits => "a digit",
            ScanState::Zero | ScanState::Digits | ScanState::Fraction => "the rest of a number",
            ScanState::Word(_) => "`true`, `false` or `null`",
        }
    }

    /// Takes the next byte.
    pub(super) fn push(&mut self, byte: u8) -> Result<ScanProgress, ScanError> {
        match self.state {
            ScanState::Text => self.text(byte),
            ScanState::Escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.go(ScanState::Text),
                b'u' => self.go(ScanState::Hex(4)),
                _ => self.unexpected(),
            },
            ScanState::Hex(left) if byte.is_ascii_hexdigit() => {
                self.go(if left > 1 { ScanState::Hex(left - 1) } else { ScanState::Text })
            }
            ScanState::Word([first, rest @ ..]) if *first == byte => {
                self.go(if rest.is_empty() { ScanState::After } else { ScanState::Word(rest) })
            }
            ScanState::Hex(_) | ScanState::Word(_) => self.unexpected(),
            ScanState::Minus
            | ScanState::Zero
            | ScanState::Digits
            | ScanState::Dot
            | ScanState::Fraction
            | ScanState::Exponent
            | ScanState::ExponentSign
            | ScanState::ExponentDigits => self.number(byte),
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => Ok(ScanProgress::More),
            ScanState::Start | ScanState::Value | ScanState::ValueOrEnd => self.value(byte),
            ScanState::KeyOrEnd if byte == b'}' => self.close(),
            ScanState::KeyOrEnd | ScanState::Key if byte == b'"' => {
                self.in_key = true;
                self.go(ScanState::Text)
            }
            ScanState::KeyOrEnd | ScanState::Key => self.unexpected(),
            ScanState::Colon if byte == b':' => self.go(ScanState::Value),
            ScanState::Colon => self.unexpected(),
            ScanState::After => match (byte, self.in_object()) {
                (b',', true) => self.go(ScanState::Key),
                (b',', false) => self.go(ScanState::Value),
                (b'}', true) | (b']', false) => self.close(),
                _ => self.unexpected(),
            },
        }
    }

    fn text(&mut self, byte: u8) -> Result<ScanProgress, ScanError> {
        match byte {
            b'"' => {
                let next = if self.in_key { ScanState::Colon } else { ScanState::After };
                self.in_key = false;
                self.go(next)
            }
            b'\\' => self.go(ScanState::Escape),
            0..=0x1f => self.unexpected(),
            _ => Ok(ScanProgress::More),
        }
    }

    fn value(&mut self, byte: u8) -> Result<ScanProgress, ScanError> {
        if self.state == ScanState::Start && byte != b'{' {
            return self.unexpected();
        }
        match byte {
            b'{' => self.open(1, ScanState::KeyOrEnd),
            b'[' => self.open(0, ScanState::ValueOrEnd),
            b']' if self.state == ScanState::ValueOrEnd => self.close(),
            b'"' => self.go(ScanState::Text),
            b'-' => self.go(ScanState::Minus),
            b'0' => self.go(ScanState::Zero),
            b'1'..=b'9' => self.go(ScanState::Digits),
            b't' => self.go(ScanState::Word(b"rue")),
            b'f' => self.go(ScanState::Word(b"alse")),
            b'n' => self.go(ScanState::Word(b"ull")),
            _ => self.unexpected(),
        }
    }

    fn number(&mut self, byte: u8) -> Result<ScanProgress, ScanError> {
        use ScanState::{Digits, Dot, Exponent, ExponentDigits, ExponentSign, Fraction, Minus, Zero};
        let next = match (self.state, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Digits, b'0'..=b'9') => Digits,
            (Zero | Digits, b'.') => Dot,
            (Dot | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Digits | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => ExponentDigits,
            (Zero | Digits | Fraction | ExponentDigits, _) => {
                // The number ended before this byte, which belongs to the enclosing value.
                self.state = ScanState::After;
                return self.push(byte);
            }
            _ => return self.unexpected(),
        };
        self.go(next)
    }

    fn open(&mut self, bit: u128, next: ScanState) -> Result<ScanProgress, ScanError> {
        if self.depth >= DEPTH_MAX {
            return Err(ScanError::TooDeep);
        }
        self.depth += 1;
        self.levels = self.levels << 1 | bit;
        self.go(next)
    }

    fn close(&mut self) -> Result<ScanProgress, ScanError> {
        self.depth = self.depth.saturating_sub(1);
        self.levels >>= 1;
        self.state = ScanState::After;
        Ok(if self.depth == 0 { ScanProgress::Done } else { ScanProgress::More })
    }

    fn in_object(&self) -> bool {
        self.levels & 1 == 1
    }

    fn go(&mut self, next: ScanState) -> Result<ScanProgress, ScanError> {
        self.state = next;
        Ok(ScanProgress::More)
    }

    fn unexpected(&self) -> Result<ScanProgress, ScanError> {
        Err(ScanError::Expected(self.expected()))
    }
}
