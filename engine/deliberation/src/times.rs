//! Times as ISO 8601 text with microseconds, and back.

/// Nanoseconds since 1970 as `2026-02-08T12:00:00.000000+00:00`.
pub(crate) fn iso_micros(ns: u64) -> String {
    let seconds = annals_store::timestamp::rfc3339(ns);
    format!("{}.{:06}+00:00", seconds.trim_end_matches('Z'), ns / 1000 % 1_000_000)
}

/// Nanoseconds since 1970 of an ISO 8601 time with date, time and an optional offset (none means UTC).
#[must_use]
pub fn parse_iso(text: &str) -> Option<i128> {
    let bytes = text.as_bytes();
    if !text.is_ascii() || bytes.len() < 19 {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let is_form = bytes.get(4) == Some(&b'-')
        && bytes.get(7) == Some(&b'-')
        && matches!(bytes.get(10), Some(b'T' | b't' | b' '))
        && bytes.get(13) == Some(&b':')
        && bytes.get(16) == Some(&b':');
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !is_form
        || !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let rest = text.get(19..)?;
    let (fraction, offset) = match rest.strip_prefix(['.', ',']) {
        None => (0, rest),
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                return None;
            }
            let nine = format!("{:0<9}", rest.get(..digits.min(9))?);
            (nine.parse::<i64>().ok()?, rest.get(digits..)?)
        }
    };
    let offset_s = match offset {
        "" | "Z" | "z" => 0,
        _ => {
            let sign = match offset.as_bytes().first()? {
                b'+' => 1,
                b'-' => -1,
                _ => return None,
            };
            let digits: String = offset.get(1..)?.chars().filter(|letter| *letter != ':').collect();
            let value = |from, to| digits.get(from..to)?.parse::<i64>().ok();
            if digits.len() != 4 {
                return None;
            }
            sign * (value(0, 2)? * 3600 + value(2, 4)? * 60)
        }
    };
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_s;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(fraction))
}

/// Days since 1970-01-01 in the Gregorian calendar (H. Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", 2021, `days_from_civil`).
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_and_offsets_count() {
        for ns in [0, 951_782_400_123_456_000, 1_600_000_000_000_000_000, 4_107_542_400_999_999_000] {
            assert_eq!(parse_iso(&iso_micros(ns)), Some(i128::from(ns)), "{}", iso_micros(ns));
        }
        assert_eq!(iso_micros(1_600_000_000_000_001_999), "2020-09-13T12:26:40.000001+00:00");
        let noon = parse_iso("2026-02-08T12:00:00Z");
        for same in ["2026-02-08T13:00:00+01:00", "2026-02-08 12:00:00", "2026-02-08T06:30:00.000-0530"] {
            assert_eq!(parse_iso(same), noon, "{same}");
        }
        for other in [
            "",
            "yesterday",
            "2026-02-08",
            "2026-13-08T12:00:00Z",
            "2026-02-08T12:00:00+1",
            "2026-02-08T12:00:00.Z",
        ] {
            assert_eq!(parse_iso(other), None, "{other}");
        }
    }
}
