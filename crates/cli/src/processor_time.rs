//! Processor time of this process, where the system reports it.

use std::time::Duration;

/// Processor time that all threads of this process have used, in programs and in the system.
pub(crate) fn used() -> Option<Duration> {
    used_by(&std::fs::read_to_string("/proc/self/stat").ok()?, rustix::param::clock_ticks_per_second())
}

/// The sum of `utime` and `stime` (proc(5), fields 14 and 15), which count ticks.
fn used_by(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    // The second field is the program's name in parentheses, which may hold spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let ticks = times.next()??.checked_add(times.next()??)?;
    Some(Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_program_and_of_the_system() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 0 0 250 150 3 4 20 0 5 0 100 200 300";
        assert_eq!(used_by(stat, 100), Some(Duration::from_secs(4)));
        assert_eq!(used_by("7 (a) S 1", 100), None);
    }
}
