//! Pages of weights: huge ones while every step reads them, and back to the system when they leave.

/// Bytes of a huge page on the processors that have kernel sets of their own.
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_PAGE: usize = 2 << 20;
/// `MADV_COLLAPSE` of Linux 6.1, which libc does not name for every C library.
#[cfg(all(target_os = "linux", not(miri)))]
const MADV_COLLAPSE: libc::c_int = 25;

/// Asks the system to keep this memory, which has been written, in huge pages. Nothing but speed depends on the answer, so a system
/// without huge pages is no error.
///
/// One row reads weights as fast as memory gives them. With pages of 4 KiB the processor's prefetch ends at each page, and a token
/// takes 1.25 to 1.46 times as long (`docs/results/serving.md`, "Huge pages").
///
/// Linux 6.1 and newer moves the memory now. Older ones do it in the background, for memory with this mark.
///
/// The advice covers whole huge pages, so also what lies beside the memory: the matrices of a module lie side by side, and most are
/// smaller than a huge page. Whole huge pages inside of each would be a third of the weights of 135M parameters in f32, and none in
/// int8.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn keep(memory: &[f32]) {
    let begin = memory.as_ptr().addr() & !(HUGE_PAGE - 1);
    let end = (memory.as_ptr().addr() + size_of_val(memory)).next_multiple_of(HUGE_PAGE);
    for advice in [libc::MADV_HUGEPAGE, MADV_COLLAPSE] {
        // SAFETY: neither advice changes contents or rights of any address, and addresses without memory only give an error.
        let _ = unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, advice) };
    }
}

/// Gives the pages of memory that will not be read any more back to the system. The memory is zero or as before from now on.
///
/// The allocator would keep them for some seconds, because most programs soon take as much again. Modules that leave a server make
/// room for others at once, so `serve.memory` would be exceeded by what left in these seconds (`docs/results/serving.md`, "All 256
/// paths under a limit").
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn give_back(memory: &mut [f32]) {
    // SAFETY: the call reads a constant of the system.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    if page == 0 {
        return;
    }
    // Pages at both ends may hold memory of others.
    let begin = memory.as_ptr().addr().next_multiple_of(page);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / page * page;
    if begin < end {
        // SAFETY: the pages lie in memory that is borrowed exclusively, and any bits are f32. An allocator with memory that can't
        // be given back gets an error, and nothing changes.
        let _ = unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) };
    }
}

/// Frees the values of a tensor that was packed. Their pages go back to the system at once, as those of weights that leave do.
pub fn free(mut values: Vec<f32>) {
    give_back(&mut values);
}

/// Other systems have no such advice, and Miri has no system.
#[cfg(any(not(target_os = "linux"), miri))]
pub(crate) fn keep(_: &[f32]) {}

/// As [`keep`].
#[cfg(any(not(target_os = "linux"), miri))]
pub(crate) fn give_back(_: &mut [f32]) {}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests {
    use crate::buffer::Buffer;
    use crate::test_support::is_resident;

    /// True if the system marks the mapping with this address for huge pages (`VmFlags` of `/proc/self/smaps`).
    fn is_marked(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bound = |text| usize::from_str_radix(text, 16).ok();
            if let Some((begin, end)) = range.and_then(|(begin, end)| Some((bound(begin)?, bound(end)?))) {
                inside = (begin..end).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:")
                && inside
            {
                return flags.split(' ').any(|flag| flag == "hg");
            }
        }
        panic!("no mapping has the address");
    }

    #[test]
    fn memory_that_is_given_back_leaves_the_process_and_no_neighbour_changes() {
        const LENGTH: usize = 4 << 20;
        // Begins and ends within a page.
        let given = 100..LENGTH - 200;
        let mut memory = vec![1f32; LENGTH];
        let address = |index: usize| memory.as_ptr().addr() + index * size_of::<f32>();
        let probes = [address(LENGTH / 8), address(LENGTH / 2), address(LENGTH - LENGTH / 8)];
        assert_eq!(probes.map(is_resident), [true; 3]);
        super::give_back(&mut memory[given.clone()]);
        assert_eq!(probes.map(is_resident), [false; 3]);
        assert!(memory[..given.start].iter().chain(&memory[given.end..]).all(|value| *value == 1.0));
    }

    #[test]
    fn weights_are_marked_where_the_system_has_huge_pages() {
        let system = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        // Also those that are smaller than a huge page.
        for length in [16 << 20, super::HUGE_PAGE / 16] {
            let mut weights = Buffer::default();
            weights.resize(length);
            weights.fill(1.0);
            super::keep(&weights);
            assert!(weights.iter().all(|value| *value == 1.0));
            for index in [0, length / 2, length - 1] {
                let address = weights[index..].as_ptr().addr();
                assert_eq!(is_marked(address), system, "element {index} of {length}");
            }
        }
    }
}
