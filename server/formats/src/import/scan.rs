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
pub(super) enum Step {
    More,
    /// This byte closed the object.
    Done,
}

/// Why a byte is not allowed at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    Expected(&'static str),
    TooDeep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
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
pub(super) struct Scan {
    state: State,
    /// The current string is a key.
    in_key: bool,
    /// One bit per level, the innermost lowest: 1 for an object, 0 for an array.
    levels: u128,
    depth: usize,
}

impl Scan {
    pub(super) fn new() -> Self {
        Self { state: State::Start, in_key: false, levels: 0, depth: 0 }
    }

    /// The input that is expected at the current position, for error messages.
    pub(super) fn expected(&self) -> &'static str {
        match self.state {
            State::Start => "`{`",
            State::Value => "a value",
            State::ValueOrEnd => "a value or `]`",
            State::KeyOrEnd => "a key or `}`",
            State::Key => "a key",
            State::Colon => "`:`",
            State::After if self.in_object() => "`,` or `}`",
            State::After => "`,` or `]`",
            State::Text => "the rest of a string",
            State::Escape => "an escape",
            State::Hex(_) => "a hexadecimal digit",
            State::Minus | State::Dot | State::Exponent | State::ExponentSign | State::ExponentDigits => {
                "a digit"
            }
            State::Zero | State::Digits | State::Fraction => "the rest of a number",
            State::Word(_) => "`true`, `false` or `null`",
        }
    }

    /// Takes the next byte.
    pub(super) fn push(&mut self, byte: u8) -> Result<Step, Wrong> {
        match self.state {
            State::Text => self.text(byte),
            State::Escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.go(State::Text),
                b'u' => self.go(State::Hex(4)),
                _ => self.wrong(),
            },
            State::Hex(left) if byte.is_ascii_hexdigit() => {
                self.go(if left > 1 { State::Hex(left - 1) } else { State::Text })
            }
            State::Word([first, rest @ ..]) if *first == byte => {
                self.go(if rest.is_empty() { State::After } else { State::Word(rest) })
            }
            State::Hex(_) | State::Word(_) => self.wrong(),
            State::Minus
            | State::Zero
            | State::Digits
            | State::Dot
            | State::Fraction
            | State::Exponent
            | State::ExponentSign
            | State::ExponentDigits => self.number(byte),
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => Ok(Step::More),
            State::Start | State::Value | State::ValueOrEnd => self.value(byte),
            State::KeyOrEnd if byte == b'}' => self.close(),
            State::KeyOrEnd | State::Key if byte == b'"' => {
                self.in_key = true;
                self.go(State::Text)
            }
            State::KeyOrEnd | State::Key => self.wrong(),
            State::Colon if byte == b':' => self.go(State::Value),
            State::Colon => self.wrong(),
            State::After => match (byte, self.in_object()) {
                (b',', true) => self.go(State::Key),
                (b',', false) => self.go(State::Value),
                (b'}', true) | (b']', false) => self.close(),
                _ => self.wrong(),
            },
        }
    }

    fn text(&mut self, byte: u8) -> Result<Step, Wrong> {
        match byte {
            b'"' => {
                let next = if self.in_key { State::Colon } else { State::After };
                self.in_key = false;
                self.go(next)
            }
            b'\\' => self.go(State::Escape),
            0..=0x1f => self.wrong(),
            _ => Ok(Step::More),
        }
    }

    fn value(&mut self, byte: u8) -> Result<Step, Wrong> {
        if self.state == State::Start && byte != b'{' {
            return self.wrong();
        }
        match byte {
            b'{' => self.open(1, State::KeyOrEnd),
            b'[' => self.open(0, State::ValueOrEnd),
            b']' if self.state == State::ValueOrEnd => self.close(),
            b'"' => self.go(State::Text),
            b'-' => self.go(State::Minus),
            b'0' => self.go(State::Zero),
            b'1'..=b'9' => self.go(State::Digits),
            b't' => self.go(State::Word(b"rue")),
            b'f' => self.go(State::Word(b"alse")),
            b'n' => self.go(State::Word(b"ull")),
            _ => self.wrong(),
        }
    }

    fn number(&mut self, byte: u8) -> Result<Step, Wrong> {
        use State::{Digits, Dot, Exponent, ExponentDigits, ExponentSign, Fraction, Minus, Zero};
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
                self.state = State::After;
                return self.push(byte);
            }
            _ => return self.wrong(),
        };
        self.go(next)
    }

    fn open(&mut self, bit: u128, next: State) -> Result<Step, Wrong> {
        if self.depth >= DEPTH_MAX {
            return Err(Wrong::TooDeep);
        }
        self.depth += 1;
        self.levels = self.levels << 1 | bit;
        self.go(next)
    }

    fn close(&mut self) -> Result<Step, Wrong> {
        self.depth = self.depth.saturating_sub(1);
        self.levels >>= 1;
        self.state = State::After;
        Ok(if self.depth == 0 { Step::Done } else { Step::More })
    }

    fn in_object(&self) -> bool {
        self.levels & 1 == 1
    }

    fn go(&mut self, next: State) -> Result<Step, Wrong> {
        self.state = next;
        Ok(Step::More)
    }

    fn wrong(&self) -> Result<Step, Wrong> {
        Err(Wrong::Expected(self.expected()))
    }
}
