//! Parses words as numbers and options, as Redis does.

use annals::{RUN_NAME_BYTES_MAX, RunReader};

use crate::turn::{CommandCall, CommandRefusal};
use annals_wire::resp::Reply;
use annals_wire::words::CommandArguments;

/// A canonical integer: no sign but a minus, no leading zeros, no spaces.
///
/// # Errors
/// Redis' own error for anything else.
pub(super) fn integer(word: &[u8]) -> Result<i64, CommandRefusal> {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
    let number = number.filter(|number| number.to_string().as_bytes() == word);
    number.ok_or_else(|| "ERR value is not an integer or out of range".into())
}

/// A non-negative integer of any integer type.
///
/// # Errors
/// Redis' own error for anything else.
pub(super) fn number<T: TryFrom<i64>>(word: &[u8]) -> Result<T, CommandRefusal> {
    T::try_from(integer(word)?).map_err(|_| "ERR value is not an integer or out of range".into())
}

/// A run's name.
///
/// # Errors
/// The bytes are not a valid run name.
pub(super) fn run_name(word: &[u8]) -> Result<&str, CommandRefusal> {
    let name = std::str::from_utf8(word).ok().filter(|name| (1..=RUN_NAME_BYTES_MAX).contains(&name.len()));
    name.ok_or_else(|| {
        CommandRefusal(format!("ERR a run's name is UTF-8 of 1 to {RUN_NAME_BYTES_MAX} bytes"))
    })
}

/// The run named by a word.
///
/// # Errors
/// `NOTFOUND`; those of the store.
pub(super) fn run_reader(call: &CommandCall<'_, '_>, at: usize) -> Result<RunReader, CommandRefusal> {
    Ok(call.work.namespace().run(run_name(call.word(at))?)?)
}

/// The words of a command from `from` on, for the option parser.
pub(super) fn arguments(call: &CommandCall<'_, '_>, from: usize) -> CommandArguments {
    let name = call.words.first().into_iter();
    CommandArguments::of(name.chain(call.rest(from)).cloned().collect()).1
}

/// A field of a map.
pub(super) fn field(name: &str, value: Reply) -> (Reply, Reply) {
    (Reply::text(name), value)
}

/// An integer reply; values over `i64::MAX` are clamped.
pub(super) fn integer_reply(number: u64) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Whether a word is this option, ignoring case.
pub(super) fn word_is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

pub(super) fn syntax() -> CommandRefusal {
    "ERR syntax error".into()
}

/// The expiry time from `amount` in units of `unit` milliseconds, counted from `from` (milliseconds since
/// 1970).
///
/// # Errors
/// Redis' own error if the result does not fit into 64 bits.
pub(super) fn expiry_ms(amount: i64, unit: i64, from: u64, command: &str) -> Result<i64, CommandRefusal> {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let deadline = amount.checked_mul(unit).and_then(|ms| ms.checked_add(from));
    deadline.ok_or_else(|| CommandRefusal(format!("ERR invalid expire time in '{command}' command")))
}

/// A word for an error text, cut at 128 bytes.
pub(super) fn display_word(word: &[u8]) -> String {
    String::from_utf8_lossy(word.get(..128).unwrap_or(word)).into_owned()
}

/// The error for an unknown subcommand.
pub(super) fn no_subcommand(command: &str, word: &[u8]) -> CommandRefusal {
    CommandRefusal(format!("ERR unknown subcommand '{}'. Try {command} HELP.", display_word(word)))
}

/// The error for a subcommand with a wrong number of words.
pub(super) fn wrong_subcommand_arity(command: &str, word: &[u8]) -> CommandRefusal {
    let name = String::from_utf8_lossy(word).to_ascii_lowercase();
    crate::turn::wrong_arity(&format!("{command}|{name}"))
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn integer_accepts_only_canonical_redis_integers() {
        for (word, number) in [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(word.as_bytes()).unwrap(), number);
        }
        for word in ["", "01", "+1", " 1", "1 ", "-0", "1.0", "9223372036854775808", "x"] {
            assert!(integer(word.as_bytes()).is_err(), "{word:?}");
        }
    }
}
