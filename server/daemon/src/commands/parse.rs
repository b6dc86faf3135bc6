//! Words as numbers and options, as Redis reads them.

use annals::{RUN_NAME_BYTES_MAX, RunReader};

use crate::turn::{Call, Refusal};
use annals_wire::resp::Reply;
use annals_wire::words::Arguments;

/// A number as Redis writes it: no sign but a minus, no zeros ahead, no space.
///
/// # Errors
/// Redis' own for anything else.
pub(super) fn integer(word: &[u8]) -> Result<i64, Refusal> {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
    let number = number.filter(|number| number.to_string().as_bytes() == word);
    number.ok_or_else(|| "ERR value is not an integer or out of range".into())
}

/// A number that is not negative, of a type of the engine's.
///
/// # Errors
/// Redis' own for anything else.
pub(super) fn number<T: TryFrom<i64>>(word: &[u8]) -> Result<T, Refusal> {
    T::try_from(integer(word)?).map_err(|_| "ERR value is not an integer or out of range".into())
}

/// A run's name.
///
/// # Errors
/// Where the bytes are none.
pub(super) fn run_name(word: &[u8]) -> Result<&str, Refusal> {
    let name = std::str::from_utf8(word).ok().filter(|name| (1..=RUN_NAME_BYTES_MAX).contains(&name.len()));
    name.ok_or_else(|| Refusal(format!("ERR a run's name is UTF-8 of 1 to {RUN_NAME_BYTES_MAX} bytes")))
}

/// The run that a word names.
///
/// # Errors
/// `NOTFOUND`; those of the store.
pub(super) fn run_of(call: &Call<'_, '_>, at: usize) -> Result<RunReader, Refusal> {
    Ok(call.work.space().run(run_name(call.word(at))?)?)
}

/// The words of a command from one on, as a grammar of options reads them.
pub(super) fn arguments(call: &Call<'_, '_>, from: usize) -> Arguments {
    let name = call.words.first().into_iter();
    Arguments::of(name.chain(call.rest(from)).cloned().collect()).1
}

/// A field of a map.
pub(super) fn field(name: &str, value: Reply) -> (Reply, Reply) {
    (Reply::text(name), value)
}

/// A number of the engine's.
pub(super) fn integer_of(number: u64) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Whether a word is this option, in whatever letters.
pub(super) fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

pub(super) fn syntax() -> Refusal {
    "ERR syntax error".into()
}

/// When a key ends, from what a command says: `amount` in units of so many milliseconds, from `from` (in milliseconds since 1970) on.
///
/// # Errors
/// Redis' own where that is before 1970 or past what 64 bits hold.
pub(super) fn deadline(amount: i64, unit: i64, from: u64, command: &str) -> Result<i64, Refusal> {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let deadline = amount.checked_mul(unit).and_then(|ms| ms.checked_add(from));
    deadline.ok_or_else(|| Refusal(format!("ERR invalid expire time in '{command}' command")))
}

/// A word as it is shown in an error.
pub(super) fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word.get(..128).unwrap_or(word)).into_owned()
}

/// The refusal of a subcommand that there is none of.
pub(super) fn no_subcommand(command: &str, word: &[u8]) -> Refusal {
    Refusal(format!("ERR unknown subcommand '{}'. Try {command} HELP.", shown(word)))
}

/// The error for a subcommand with too few or too many words.
pub(super) fn wrong_number_of(command: &str, word: &[u8]) -> Refusal {
    let name = String::from_utf8_lossy(word).to_ascii_lowercase();
    crate::turn::wrong_number(&format!("{command}|{name}"))
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn only_numbers_as_redis_writes_them_are_numbers() {
        for (word, number) in [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(word.as_bytes()).unwrap(), number);
        }
        for word in ["", "01", "+1", " 1", "1 ", "-0", "1.0", "9223372036854775808", "x"] {
            assert!(integer(word.as_bytes()).is_err(), "{word:?}");
        }
    }
}
