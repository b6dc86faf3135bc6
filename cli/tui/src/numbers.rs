//! Numbers as people read them: `1.8 s`, `3 h`, `12.4 KB`.

/// A duration.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0 => format!("{} ms", ns / 1_000_000),
        1..60 => format!("{seconds}.{} s", ns / 100_000_000 % 10),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

/// How long ago a time is, in its largest unit.
pub(crate) fn age(now_ns: u64, then_ns: u64) -> String {
    let seconds = now_ns.saturating_sub(then_ns) / 1_000_000_000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A size.
pub(crate) fn bytes(number: u64) -> String {
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
pub(crate) fn count(number: u64) -> String {
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
pub(crate) fn plural(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", count(number))
}

/// A cost.
pub(crate) fn dollars(amount: f64) -> String {
    match amount {
        0.0 => "$0".to_owned(),
        amount if amount < 0.0001 => "under $0.0001".to_owned(),
        amount => format!("${amount:.4}"),
    }
}

/// A time in UTC.
pub(crate) fn time(ns: u64) -> String {
    let stamp = jiff::Timestamp::from_nanosecond(i128::from(ns));
    stamp.map_or_else(|_| format!("{ns} ns"), |stamp| format!("{stamp:.3}"))
}
