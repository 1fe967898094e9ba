//! Memory of the machine, or of the control group that holds this process.

use std::fs;
use std::path::Path;

/// Memory that this process can have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All memory of the machine, or the limit of a control group if that is lower.
    pub total: u64,
    /// Memory that programs can still allocate.
    pub available: u64,
}

/// The names of a control group's files.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// Line of `memory.stat`: file pages that the system takes back when it needs them.
    reclaimable: &'static str,
}

const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };

/// Memory of this machine and of the control groups around this process (containers, Kubernetes, systemd); `None` where the
/// system does not report it.
#[must_use]
pub fn machine_memory() -> Option<MachineMemory> {
    below(Path::new("/"))
}

fn below(root: &Path) -> Option<MachineMemory> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let bytes = |name| bytes_after(&text, name);
    let mut memory = MachineMemory { total: bytes("MemTotal:")?, available: bytes("MemAvailable:")? };
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        // `HIERARCHY:CONTROLLERS:PATH`; without controllers it is version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (folder, files) = match controllers {
            "" => ("sys/fs/cgroup", VERSION_2),
            list if list.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", VERSION_1),
            _ => continue,
        };
        // A limit counts for all groups below it. A container may see none but the topmost folder.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            if let Some(group) = of_group(&root.join(folder).join(group), &files) {
                memory.total = memory.total.min(group.total);
                memory.available = memory.available.min(group.available);
            }
        }
    }
    Some(memory)
}

/// Limit and rest of a control group; `None` without a limit.
fn of_group(folder: &Path, files: &GroupFiles) -> Option<MachineMemory> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let total: u64 = read(files.limit)?.trim().parse().ok()?;
    let used: u64 = read(files.used)?.trim().parse().ok()?;
    let reclaimable =
        read("memory.stat").and_then(|text| number_after(&text, files.reclaimable)).unwrap_or(0);
    Some(MachineMemory { total, available: total.saturating_sub(used.saturating_sub(reclaimable)) })
}

/// The bytes in the line `NAME NUMBER kB` of a file of `/proc`.
#[must_use]
pub fn bytes_after(text: &str, name: &str) -> Option<u64> {
    number_after(text, name).map(|kilobytes| kilobytes.saturating_mul(1024))
}

/// The number in the line `NAME NUMBER …`.
fn number_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next()? == name { words.next()?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(files: &[(&str, &str)]) -> Option<MachineMemory> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        below(root.path())
    }

    const MACHINE: (&str, &str) =
        ("proc/meminfo", "MemTotal:  8000 kB\nMemFree: 1 kB\nMemAvailable:  4000 kB\n");

    #[test]
    fn the_lowest_limit_around_the_process_counts() {
        let machine = MachineMemory { total: 8_192_000, available: 4_096_000 };
        assert_eq!(system(&[MACHINE]), Some(machine));
        assert_eq!(system(&[]), None);
        let unlimited =
            [MACHINE, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")];
        assert_eq!(system(&unlimited), Some(machine));
        // The limit of the group above, of which 100 bytes are files that the system can drop.
        let limited = [
            MACHINE,
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "3000\n"),
            ("sys/fs/cgroup/a/memory.current", "1000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 900\ninactive_file 100\n"),
        ];
        assert_eq!(system(&limited), Some(MachineMemory { total: 3000, available: 2100 }));
        let first_version = [
            MACHINE,
            ("proc/self/cgroup", "5:cpu:/x\n4:memory,other:/a\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n"),
        ];
        assert_eq!(system(&first_version), Some(MachineMemory { total: 5000, available: 0 }));
    }
}
