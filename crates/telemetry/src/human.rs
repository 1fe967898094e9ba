//! Numbers for people: bytes, durations, rates and counts, in the same form everywhere.

use std::time::Duration;

const BYTES: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
const COUNTS: [&str; 5] = ["", "k", "M", "G", "T"];

/// Bytes in powers of 1000: `512 B`, `20.1 MB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let (value, unit) = scaled(bytes as f64, &BYTES);
    format!("{} {unit}", digits(value, unit == "B"))
}

/// A part of a total: `12.4 of 20.1 MB`. The unit stands once if both have the same.
#[must_use]
pub fn bytes_of(done: u64, total: u64) -> String {
    let (done, total) = (bytes(done), bytes(total));
    match (done.split_once(' '), total.split_once(' ')) {
        (Some((value, a)), Some((_, b))) if a == b => format!("{value} of {total}"),
        _ => format!("{done} of {total}"),
    }
}

/// A large number in few digits: `950`, `41.2k`, `150.0M`.
#[must_use]
pub fn count(value: f64) -> String {
    let (scaled, unit) = scaled(value, &COUNTS);
    format!("{}{unit}", digits(scaled, unit.is_empty() && value.fract() == 0.0))
}

/// Bytes per second: `3.1 MB/s`.
#[must_use]
pub fn byte_rate(bytes_per_second: f64) -> String {
    let (value, unit) = scaled(bytes_per_second, &BYTES);
    format!("{} {unit}/s", digits(value, false))
}

/// Things per second: `41.2k tokens/s`. Slow rates are inverted: `2.5 s/step`.
#[must_use]
pub fn rate(per_second: f64, things: &str) -> String {
    if per_second > 0.0 && per_second < 0.5 {
        let thing = things.strip_suffix('s').unwrap_or(things);
        return format!("{} s/{thing}", digits(1.0 / per_second, false));
    }
    format!("{} {things}/s", count_rate(per_second))
}

fn count_rate(per_second: f64) -> String {
    let (scaled, unit) = scaled(per_second, &COUNTS);
    format!("{}{unit}", digits(scaled, false))
}

/// A duration in its two largest units: `350 ms`, `2 s`, `4 min 05 s`, `5 h 12 min`, `3 d 04 h`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{} ms", duration.as_millis());
    }
    if duration < Duration::from_secs(10) {
        return format!("{} s", digits(duration.as_secs_f64(), false));
    }
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if minutes == 0 => format!("{seconds} s"),
        () if hours == 0 => format!("{minutes} min {:02} s", seconds % 60),
        () if days == 0 => format!("{hours} h {:02} min", minutes % 60),
        () => format!("{days} d {:02} h", hours % 24),
    }
}

/// A remaining time, rounded to whole seconds, at least one.
#[must_use]
pub fn remaining(estimate: Duration) -> String {
    duration(Duration::from_secs(estimate.as_secs_f64().round().clamp(1.0, 1e15) as u64))
        .replace(".0 s", " s")
}

/// A whole number with separated thousands: `1,234,567`.
#[must_use]
pub fn integer(value: u64) -> String {
    let text = value.to_string();
    let mut out = String::with_capacity(text.len() + text.len() / 3);
    for (i, digit) in text.chars().enumerate() {
        if i > 0 && (text.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn scaled(mut value: f64, units: &[&'static str]) -> (f64, &'static str) {
    let mut unit = 0;
    // 999.95 would be rounded to 1000.0 of the smaller unit.
    while value.abs() >= if unit == 0 { 999.5 } else { 999.95 } && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    (value, units.get(unit).copied().unwrap_or_default())
}

fn digits(value: f64, whole: bool) -> String {
    if whole { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.0 kB");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(u64::MAX), "18446.7 PB");
        assert_eq!(bytes_of(12_400_000, 20_100_000), "12.4 of 20.1 MB");
        assert_eq!(bytes_of(900, 20_100_000), "900 B of 20.1 MB");
        assert_eq!(count(950.0), "950");
        assert_eq!(count(41_234.0), "41.2k");
        assert_eq!(byte_rate(3_100_000.0), "3.1 MB/s");
        assert_eq!(rate(41_200.0, "tokens"), "41.2k tokens/s");
        assert_eq!(rate(0.4, "steps"), "2.5 s/step");
        assert_eq!(rate(0.0, "steps"), "0.0 steps/s");
        assert_eq!(integer(1_234_567), "1,234,567");
        assert_eq!(integer(123), "123");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let cases: [(u64, &str); 7] = [
            (0, "0 ms"),
            (350, "350 ms"),
            (2_400, "2.4 s"),
            (59_999, "59 s"),
            (245_000, "4 min 05 s"),
            (18_720_000, "5 h 12 min"),
            (273_600_000, "3 d 04 h"),
        ];
        for (milliseconds, text) in cases {
            assert_eq!(duration(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(remaining(Duration::from_millis(1_600)), "2 s");
        assert_eq!(remaining(Duration::ZERO), "1 s");
    }
}
