//! Running hot loops in code compiled for wider vectors, where the processor has them.
//!
//! The loops are ordinary Rust over arrays; only the instructions that the compiler may use differ. AVX2 brings no
//! fused multiply-add, so results are the same bits.

/// A piece of work. Implementations mark `run`, and what it calls, `#[inline(always)]`: code that is not inlined keeps
/// the narrow instructions.
pub(super) trait Job {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs a job with the best instructions there are.
#[inline]
pub(super) fn run<J: Job>(job: J) -> J::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn with_avx2<J: Job>(job: J) -> J::Output {
            job.run()
        }
        // SAFETY: the processor has AVX2.
        return unsafe { with_avx2(job) };
    }
    job.run()
}
