//! The memory nodes of this machine (NUMA), and the processors that a process may use.
//!
//! A processor reads the memory of another node at a fraction of the rate. A worker on each node, with its threads on the
//! processors of that node, reads near memory only: the system gives a thread memory of the node on which it runs.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

/// Largest number of a processor in a list. It bounds the work that a text can ask for.
const LARGEST: usize = 1 << 16;

/// A set of processors, as the system writes it: `0-7,16-23`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors(BTreeSet<usize>);

/// An error of a set of processors.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessorsError {
    /// A text that is no list of processors.
    #[error("{text:?} is no list of processors: give numbers and ranges, as in 0-7,16")]
    List {
        /// The text.
        text: String,
    },
    /// The system does not bind this process to the processors.
    #[error("this process can't run on the processors {processors}: give some of those that it may use")]
    Use {
        /// The processors.
        processors: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

impl FromStr for Processors {
    type Err = ProcessorsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ProcessorsError::List { text: text.to_owned() };
        let number = |text: &str| match text.parse::<usize>() {
            Ok(number) if number <= LARGEST => Ok(number),
            _ => Err(wrong()),
        };
        let mut found = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            found.extend(first..=last);
        }
        Ok(Self(found))
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &number in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
        f.write_str(&ranges.into_iter().map(text).collect::<Vec<_>>().join(","))
    }
}

impl Processors {
    /// Number of processors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The processors that this process may use; `None` where the system does not tell.
    #[must_use]
    pub fn allowed() -> Option<Self> {
        allowed()
    }

    /// Lets this thread, and all threads that it starts from now on, run on these processors only.
    ///
    /// # Errors
    /// [`ProcessorsError::Use`] when this process may use none of them, or the system can't do it.
    pub fn use_only(&self) -> Result<(), ProcessorsError> {
        use_only(&self.0).map_err(|source| ProcessorsError::Use { processors: self.to_string(), source })
    }
}

#[cfg(target_os = "linux")]
fn allowed() -> Option<Processors> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).ok()?;
    Some(Processors((0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number)).collect()))
}

#[cfg(target_os = "linux")]
fn use_only(processors: &BTreeSet<usize>) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    // Others do not exist. A set without any processor is refused by the system.
    processors.iter().filter(|&&number| number < CpuSet::MAX_CPU).for_each(|&number| set.set(number));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> Option<Processors> {
    None
}

#[cfg(not(target_os = "linux"))]
fn use_only(_: &BTreeSet<usize>) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// The processors of each memory node that this process may use, in the order of the nodes. Empty where the system does not
/// tell, and one entry on a machine without several nodes.
#[must_use]
pub fn memory_nodes() -> Vec<Processors> {
    Processors::allowed()
        .map_or_else(Vec::new, |allowed| read(Path::new("/sys/devices/system/node"), &allowed))
}

/// The nodes of the folder `node*/cpulist` (sysfs of Linux).
fn read(folder: &Path, allowed: &Processors) -> Vec<Processors> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut nodes: Vec<(usize, Processors)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let all: Processors = std::fs::read_to_string(entry.path().join("cpulist")).ok()?.parse().ok()?;
            let usable = Processors(all.0.intersection(&allowed.0).copied().collect());
            // A node may be memory alone.
            (usable.count() > 0).then_some((number, usable))
        })
        .collect();
    nodes.sort_by_key(|(number, _)| *number);
    nodes.into_iter().map(|(_, processors)| processors).collect()
}

/// The number of workers on this machine where the user gives none: two, and one on each node of a machine with more.
#[must_use]
pub fn default_workers() -> usize {
    memory_nodes().len().max(2)
}

/// The processors of worker `number`, from 0, of so many on this machine; `None` if it may use all. Workers are bound to nodes
/// where each node gets as many: otherwise the workers of one node would wait while another's processors idle.
pub(crate) fn of_worker(nodes: &[Processors], number: usize, workers: usize) -> Option<&Processors> {
    (nodes.len() > 1 && workers > 0 && workers.is_multiple_of(nodes.len()))
        .then(|| nodes.get(number % nodes.len()))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Processors {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_of_processors_is_read_and_written_as_the_system_does() {
        for text in ["0", "0-7", "0-3,8-11", "1,3,5", "0-1,4"] {
            assert_eq!(list(text).to_string(), text);
        }
        assert_eq!((list("2,0-1\n").to_string(), list("0-7,16").count()), ("0-2".to_owned(), 9));
        for text in ["", ",", "a", "3-1", "0-", "-1", "0-99999999999"] {
            assert!(text.parse::<Processors>().is_err(), "{text}");
        }
    }

    #[test]
    fn nodes_are_read_in_order_without_processors_that_are_not_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let nodes =
            [("node0", "0-3"), ("node10", "12-15"), ("node2", "8-11"), ("node3", ""), ("possible", "0-1")];
        for (name, processors) in nodes {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("cpulist"), format!("{processors}\n")).unwrap();
        }
        assert_eq!(read(folder.path(), &list("0-63")), ["0-3", "8-11", "12-15"].map(list));
        assert_eq!(read(folder.path(), &list("2-9")), ["2-3", "8-9"].map(list));
        assert!(read(&folder.path().join("missing"), &list("0")).is_empty());
    }

    #[test]
    fn workers_are_bound_where_each_node_gets_as_many() {
        let nodes = ["0-3", "4-7"].map(list);
        let bound = |workers| {
            (0..workers).map(|number| of_worker(&nodes, number, workers).cloned()).collect::<Vec<_>>()
        };
        assert_eq!(bound(2), [Some(list("0-3")), Some(list("4-7"))]);
        assert_eq!(bound(4)[2], Some(list("0-3")));
        assert_eq!((bound(1), bound(3)), (vec![None], vec![None; 3]));
        assert_eq!(of_worker(&nodes[..1], 0, 1), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_keeps_to_its_processors_and_so_do_the_threads_that_it_starts() {
        std::thread::spawn(|| {
            let one = Processors(Processors::allowed().unwrap().0.into_iter().take(1).collect());
            one.use_only().unwrap();
            let inherited = std::thread::spawn(Processors::allowed).join().unwrap();
            assert_eq!((Processors::allowed(), inherited), (Some(one.clone()), Some(one)));
            assert_eq!(std::thread::available_parallelism().unwrap().get(), 1);
            let error = list("60000").use_only().unwrap_err().to_string();
            assert!(error.contains("60000"), "{error}");
        })
        .join()
        .unwrap();
    }
}
