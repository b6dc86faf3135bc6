//! Times as RFC 3339 text. The engine only writes this form; parsing is left to the server and the CLI.

const DAY_S: u64 = 86_400;

/// Nanoseconds since 1970-01-01 UTC as RFC 3339 has them, to the second.
pub fn rfc3339(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, of_day) = (seconds / DAY_S, seconds % DAY_S);
    let (year, month, day) = civil_from_days(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day since 1970-01-01 in the Gregorian calendar (H. Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", 2021, `civil_from_days`): years begin in March, so that the leap day is the last one.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let from_march_0 = days + 719_468;
    let (era, of_era) = (from_march_0 / 146_097, from_march_0 % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_follows_the_gregorian_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_600_000_000, "2020-09-13T12:26:40Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds * 1_000_000_000 + 999), text);
        }
        assert_eq!(rfc3339(u64::MAX), "2554-07-21T23:34:33Z");
    }
}
