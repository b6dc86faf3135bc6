//! Decimal numbers of INCRBYFLOAT.
//!
//! Redis adds binary numbers of 80 bits and prints 17 decimals. Here numbers with up to 17 decimals are added
//! exactly, so `0.1` and `0.2` are `0.3` in both; where Redis shows the error of a binary number, there is
//! none here. Greater numbers are added as binary numbers of 64 bits.

use std::fmt;

/// Decimals that are kept.
const DECIMALS: u32 = 17;
const ONE: i128 = 10_i128.pow(DECIMALS);
/// Numbers below this are exact.
const EXACT_MAX: f64 = 1e20;

/// A finite number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decimal {
    /// In units of 10^-17.
    Exact(i128),
    Binary(f64),
}

impl Default for Decimal {
    fn default() -> Self {
        Self::Exact(0)
    }
}

impl Decimal {
    /// A number as C's `strtold` reads it, without spaces, hexadecimal digits, NaN and infinity.
    pub(super) fn parse(word: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(word).ok()?;
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let binary = text.parse::<f64>().ok().filter(|number| number.is_finite())?;
        if !text.chars().all(is_number) {
            return None;
        }
        let exact = (binary.abs() < EXACT_MAX).then(|| Self::exact(text)).flatten();
        Some(exact.unwrap_or(Self::Binary(binary)))
    }

    /// The digits of a number below [`EXACT_MAX`]; `None` if it has more decimals than are kept.
    fn exact(text: &str) -> Option<Self> {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{}", part.trim_end_matches('0'));
        let decimals = i32::try_from(part.trim_end_matches('0').len()).ok()?;
        let shift = i32::try_from(DECIMALS).ok()?.checked_add(exponent)?.checked_sub(decimals)?;
        let number = if digits.is_empty() { 0 } else { digits.parse::<i128>().ok()? };
        let scaled = match (number, u32::try_from(shift)) {
            (0, _) => 0,
            (number, Ok(shift)) => number.checked_mul(10_i128.checked_pow(shift)?)?,
            (_, Err(_)) => return None,
        };
        Some(Self::Exact(if is_negative { -scaled } else { scaled }))
    }

    /// The sum; `None` if it is not finite.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        if let (Self::Exact(left), Self::Exact(right)) = (self, other)
            && let Some(sum) = left.checked_add(right)
        {
            return Some(Self::Exact(sum));
        }
        let sum = self.binary() + other.binary();
        sum.is_finite().then_some(Self::Binary(sum))
    }

    fn binary(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "the sum is a binary number")]
            Self::Exact(units) => units as f64 / ONE as f64,
            Self::Binary(number) => number,
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(units) => {
                let sign = if *units < 0 { "-" } else { "" };
                let (whole, part) = (units.abs() / ONE, units.abs() % ONE);
                let part = format!("{part:017}");
                let part = part.trim_end_matches('0');
                let dot = if part.is_empty() { "" } else { "." };
                write!(f, "{sign}{whole}{dot}{part}")
            }
            Self::Binary(number) => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Decimal;

    fn sum(left: &str, right: &str) -> Option<String> {
        let number = |text: &str| Decimal::parse(text.as_bytes());
        Some(number(left)?.plus(number(right)?)?.to_string())
    }

    #[test]
    fn sums_of_decimals_are_exact() {
        for (left, right, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3.25", "-0.25"),
            ("-0.5", "0.5", "0"),
            ("1000.1", "0.1", "1000.2"),
            ("+1.", ".5", "1.5"),
            ("1e17", "0.00000000000000001", "100000000000000000.00000000000000001"),
            ("1e300", "1e300", &"2e300".parse::<f64>().unwrap().to_string()),
        ] {
            assert_eq!(sum(left, right).as_deref(), Some(expected), "{left} + {right}");
        }
        assert_eq!(sum("1.7e308", "1.7e308"), None, "not finite");
        // More decimals than are kept: added as binary numbers.
        assert_eq!(sum("1e-18", "1").as_deref(), Some("1"));
    }

    #[test]
    fn words_that_are_no_finite_numbers_are_refused() {
        for word in ["", " 1", "1 ", "x", "nan", "inf", "-infinity", "1e999", "0x10", "1,5", ".", "1e"] {
            assert_eq!(Decimal::parse(word.as_bytes()), None, "{word:?}");
        }
        assert_eq!(Decimal::parse(b"\xff"), None);
    }
}
