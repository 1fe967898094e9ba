//! The time of an event as a number.

use time::{Date, Month, Time};

/// Reads the time of an event, `2026-01-31T23:59:59.123Z`, as seconds since 1970.
pub(crate) fn seconds_since_1970(text: &str) -> Option<f64> {
    let number = |from: usize, to: usize| -> Option<u16> { text.get(from..to)?.parse().ok() };
    let small = |from: usize, to: usize| u8::try_from(number(from, to)?).ok();
    let month = Month::try_from(small(5, 7)?).ok()?;
    let date = Date::from_calendar_date(i32::from(number(0, 4)?), month, small(8, 10)?).ok()?;
    let time = Time::from_hms_milli(small(11, 13)?, small(14, 16)?, small(17, 19)?, number(20, 23)?).ok()?;
    let moment = date.with_time(time).assume_utc();
    Some(moment.unix_timestamp() as f64 + f64::from(moment.millisecond()) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_event_is_that_of_its_text() {
        // date --utc --date 2026-02-28T23:59:59.250Z +%s
        assert_eq!(seconds_since_1970("2026-02-28T23:59:59.250Z"), Some(1_772_323_199.25));
        for wrong in
            ["", "2026-13-01T00:00:00.000Z", "2026-02-30T00:00:00.000Z", "now", "é026-01-01T00:00:00.000Z"]
        {
            assert_eq!(seconds_since_1970(wrong), None, "{wrong}");
        }
    }
}
