//! Vector code chosen at run time.

use pulp::{Arch, NullaryFnOnce};

/// Runs a loop compiled for the widest vector units of this processor: AVX-512, AVX2, or the baseline of the target.
#[inline(always)]
pub(crate) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    struct Loop<F>(F);

    impl<R, F: FnOnce() -> R> NullaryFnOnce for Loop<F> {
        type Output = R;

        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }

    Arch::new().dispatch(Loop(f))
}
