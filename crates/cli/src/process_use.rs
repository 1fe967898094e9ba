//! What a process has used of the machine, where the system reports it.

use std::time::Duration;

use dipaco_bench::ProcessUse;

/// What all threads of a process have used since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Processor time in the program, in whole ticks of the system: mostly 10 ms.
    pub(crate) user: Duration,
    /// Processor time in the system, as coarse.
    pub(crate) system: Duration,
    /// Pages that were touched for the first time, without reading a disk.
    pub(crate) minor_faults: u64,
}

impl From<Use> for ProcessUse {
    fn from(used: Use) -> Self {
        let Use { user, system, minor_faults } = used;
        Self { user: user.as_secs_f64(), system: system.as_secs_f64(), minor_faults }
    }
}

/// Processor time that all threads of this process have used, in programs and in the system.
pub(crate) fn time() -> Option<Duration> {
    of_this_process().map(|used| used.user + used.system)
}

/// The use by this process.
pub(crate) fn of_this_process() -> Option<Use> {
    of(&std::fs::read_to_string("/proc/self/stat").ok()?, rustix::param::clock_ticks_per_second())
}

/// The use by another process.
pub(crate) fn of_process(id: u32) -> Option<Use> {
    of(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?, rustix::param::clock_ticks_per_second())
}

/// `minflt`, `utime` and `stime` (proc(5), fields 10, 14 and 15); the times count ticks.
fn of(stat: &str, ticks_per_second: u64) -> Option<Use> {
    // The second field is the program's name in parentheses, which may hold spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 / ticks_per_second.max(1) as f64);
    Some(Use { user: time(number(14)?), system: time(number(15)?), minor_faults: number(10)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_program_and_of_the_system_and_faults_are_the_minor_ones() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 5 0 250 150 3 4 20 0 5 0 100 200 300";
        let expected =
            Use { user: Duration::from_millis(2500), system: Duration::from_millis(1500), minor_faults: 900 };
        assert_eq!(of(stat, 100), Some(expected));
        assert_eq!(of("7 (a) S 1", 100), None);
    }
}
