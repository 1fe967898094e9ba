//! Huge pages for weights that every step reads.

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
/// smaller than a huge page.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn keep(memory: &[f32]) {
    let begin = memory.as_ptr().addr() & !(HUGE_PAGE - 1);
    let end = (memory.as_ptr().addr() + size_of_val(memory)).next_multiple_of(HUGE_PAGE);
    for advice in [libc::MADV_HUGEPAGE, MADV_COLLAPSE] {
        // SAFETY: neither advice changes contents or rights of any address, and addresses without memory only give an error.
        let _ = unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, advice) };
    }
}

/// Other systems have no such advice, and Miri has no system.
#[cfg(any(not(target_os = "linux"), miri))]
pub(crate) fn keep(_: &[f32]) {}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests {
    use crate::buffer::Buffer;

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
    fn weights_are_marked_where_the_system_has_huge_pages() {
        let system = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        let mut weights = Buffer::default();
        weights.resize(16 << 20);
        weights.fill(1.0);
        super::keep(&weights);
        assert!(weights.iter().all(|value| *value == 1.0));
        for index in [0, weights.len() / 2, weights.len() - 1] {
            assert_eq!(is_marked(weights[index..].as_ptr().addr()), system, "element {index}");
        }
    }
}
