//! Whether this process may use tiles.
//!
//! A system saves the tiles of a process only after the process has asked for it. Without that permission `ldtilecfg` works, and
//! the first instruction on a tile ends the process. So nothing is tried out: processor and system are asked.

use std::fmt;
use std::sync::OnceLock;

use super::self_check;

/// Why tiles can't be used.
#[derive(Clone, Debug)]
pub(in crate::product) enum TileProblem {
    /// The processor has no tiles for bf16.
    NoInstructions,
    /// The system does not save tiles, or is one that this program can't ask.
    System,
    /// The system refuses the permission.
    Refused(String),
    /// The instructions compute other numbers than their model.
    Wrong(String),
}

impl TileProblem {
    /// True if the processor has tiles.
    pub(in crate::product) fn is_fault(&self) -> bool {
        !matches!(self, Self::NoInstructions)
    }
}

impl fmt::Display for TileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInstructions => f.write_str("this processor lacks AMX tiles for bf16"),
            Self::System => f.write_str("this system does not let programs use the processor's AMX tiles"),
            Self::Refused(reason) => write!(f, "the system refuses AMX tiles to this process ({reason})"),
            Self::Wrong(what) => write!(f, "the processor's AMX tiles fail their check ({what})"),
        }
    }
}

/// Asks for the permission to use tiles, and compares the instructions with their model. The answer stays the same for the
/// process, and counts for all its threads.
pub(in crate::product) fn ready() -> &'static Result<(), TileProblem> {
    static READY: OnceLock<Result<(), TileProblem>> = OnceLock::new();
    READY.get_or_init(|| {
        if !has_instructions() {
            return Err(TileProblem::NoInstructions);
        }
        if !is_saved() {
            return Err(TileProblem::System);
        }
        request()?;
        // SAFETY: the processor has the instructions, and the process has the permission.
        unsafe { self_check::run() }.map_err(TileProblem::Wrong)
    })
}

/// The processor's bits for tiles and their bf16 products.
fn has_instructions() -> bool {
    // Miri runs no such instruction.
    if cfg!(miri) {
        return false;
    }
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILE: u32 = 1 << 24;
    const BF16: u32 = 1 << 22;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (TILE | BF16) == TILE | BF16
}

/// Whether the system saves tiles and their configuration when it switches between threads.
fn is_saved() -> bool {
    use std::arch::x86_64::__cpuid;
    const SWITCHED_ON: u32 = 1 << 27;
    const STATES: u32 = 1 << 17 | 1 << 18;
    if __cpuid(1).ecx & SWITCHED_ON == 0 {
        return false;
    }
    let low: u32;
    // SAFETY: the system has switched `xgetbv` on. Register 0 tells what it saves.
    unsafe {
        std::arch::asm!(
            "xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags)
        );
    }
    low & STATES == STATES
}

#[cfg(target_os = "linux")]
fn request() -> Result<(), TileProblem> {
    /// `ARCH_GET_XCOMP_PERM` and `ARCH_REQ_XCOMP_PERM` of Linux.
    const GET: libc::c_long = 0x1022;
    const REQUEST: libc::c_long = 0x1023;
    /// The number of the tiles' state.
    const TILES: libc::c_long = 18;
    let refused = |code: libc::c_long| {
        (code != 0).then(|| TileProblem::Refused(std::io::Error::last_os_error().to_string()))
    };
    // SAFETY: the call changes nothing but the process's permissions.
    let code = unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILES) };
    if let Some(problem) = refused(code) {
        return Err(problem);
    }
    let mut permitted = 0u64;
    // SAFETY: the call writes one u64.
    let code = unsafe { libc::syscall(libc::SYS_arch_prctl, GET, &raw mut permitted) };
    match refused(code) {
        Some(problem) => Err(problem),
        None if permitted >> TILES & 1 == 1 => Ok(()),
        None => Err(TileProblem::Refused("the permission is not listed".to_owned())),
    }
}

#[cfg(not(target_os = "linux"))]
fn request() -> Result<(), TileProblem> {
    Err(TileProblem::System)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    /// Makes the system refuse `arch_prctl` to the calling thread, for good (seccomp(2)).
    fn refuse_permissions() -> std::io::Result<()> {
        const fn instruction(code: u32, when_equal: u8, otherwise: u8, value: u32) -> libc::sock_filter {
            libc::sock_filter { code: code as u16, jt: when_equal, jf: otherwise, k: value }
        }
        let mut filter = [
            // The call's number is the first field of what a filter reads.
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_arch_prctl as u32),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: both calls change the calling thread alone. The second one reads the program, which outlives it.
        let code = unsafe {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
                code => code,
            }
        };
        if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    // Also where the processor has no tiles: a refusal by the filter comes before the system's own answer.
    #[test]
    #[cfg_attr(miri, ignore = "Miri makes no such calls")]
    fn a_process_that_is_refused_learns_the_reason_of_the_system() {
        let thread = std::thread::spawn(|| {
            refuse_permissions().unwrap();
            request()
        });
        let problem = thread.join().unwrap().unwrap_err();
        assert!(problem.is_fault());
        assert_eq!(
            problem.to_string(),
            "the system refuses AMX tiles to this process (Operation not permitted (os error 1))"
        );
    }
}
