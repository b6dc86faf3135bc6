//! Numbers as people read them: `1.8 s`, `3 h`, `12.4 KB`. The verbs that print text use them, too.

/// A duration.
#[must_use]
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0 => format!("{} ms", ns / 1_000_000),
        1..60 => format!("{seconds}.{} s", ns / 100_000_000 % 10),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// How long ago a time is, in its largest unit.
#[must_use]
pub fn age(now_ns: u64, then_ns: u64) -> String {
    let seconds = now_ns.saturating_sub(then_ns) / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A size.
#[must_use]
pub fn bytes(number: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB")];
    match UNITS.into_iter().find(|(unit, _)| number >= *unit) {
        Some((unit, name)) => {
            let tenths = number / (unit / 10);
            format!("{}.{} {name}", count(tenths / 10), tenths % 10)
        }
        None => format!("{number} B"),
    }
}

/// A count, with commas.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 frame`, `2 frames`.
#[must_use]
pub fn plural(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", count(number))
}

/// A cost.
#[must_use]
pub fn dollars(amount: f64) -> String {
    match amount {
        0.0 => "$0".to_owned(),
        amount if amount < 0.0001 => "under $0.0001".to_owned(),
        amount => format!("${amount:.4}"),
    }
}

/// A time in UTC.
#[must_use]
pub fn time(ns: u64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(ns));
    stamp.map_or_else(|_| format!("{ns} ns"), |stamp| format!("{stamp:.3}"))
}

#[cfg(test)]
mod tests {
    use super::{age, bytes, count, dollars, duration, time};

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1000, 1234567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let shown = [0, 999, 1000, 40_358, 31_000_000, 5_250_000_000].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.0 KB", "40.3 KB", "31.0 MB", "5.2 GB"]);
        assert_eq!(time(1_700_000_000_123_456_789), "2023-11-14T22:13:20.123Z");
        let spans = [7_000_000, 59_960_000_000, 245_000_000_000, 7_380_000_000_000].map(duration);
        assert_eq!(spans, ["7 ms", "59.9 s", "4m 05s", "2h 03m"]);
        assert_eq!([0.0, 0.000_099, 0.0001].map(dollars), ["$0", "under $0.0001", "$0.0001"]);
        let ages = [59, 60, 7200, 172_800].map(|seconds| age(seconds * 1_000_000_000, 0));
        assert_eq!(ages, ["59 s", "1 min", "2 h", "2 d"]);
    }
}
