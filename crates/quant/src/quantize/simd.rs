//! Runs hot loops in code that is compiled for wider vectors, if the processor supports them.
//!
//! The loops are ordinary Rust over arrays. Only the instructions that the compiler may use differ.
//! AVX2 does not include fused multiply-add, so results are bit-identical.

/// A function to run. Implementations mark `run` and all functions that it calls
/// `#[inline(always)]`, since other functions keep the narrow instructions.
pub(super) trait Job {
    type Output;
    fn run(self) -> Self::Output;
}

/// Runs a job with the widest supported instructions.
#[inline]
pub(super) fn run<J: Job>(job: J) -> J::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn with_avx2<J: Job>(job: J) -> J::Output {
            job.run()
        }
        // SAFETY: the processor supports AVX2.
        return unsafe { with_avx2(job) };
    }
    job.run()
}
