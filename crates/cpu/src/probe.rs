//! Measures the peaks of this machine: memory bandwidth, and multiply-adds of the units that a
//! kernel level uses. Reported speeds are compared with the peaks of the same run.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::topology::System;
use puna_kernels::KernelError;
use puna_kernels::huge_pages::advise_huge;

/// Least number of bytes that each thread reads: more than usual caches hold.
const BUFFER: usize = 128 << 20;
/// Largest number of bytes that all threads read because of a large cache, such as the cache of a
/// server that runs this machine as a guest.
const MOST_FOR_CACHE: usize = 1 << 30;
/// Largest number of bytes that all threads read.
const MOST_BUFFERS: usize = 4 << 30;
/// Number of passes over the buffers.
const PASSES: usize = 8;
/// Duration of a probe of arithmetic.
const ARITHMETIC: Duration = Duration::from_millis(120);

/// Peaks of the machine, all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachinePeaks {
    /// Reading memory in order, in 10⁹ bytes a second.
    pub read_gbs: f64,
    /// Multiply-adds of 8-bit integers, in 10⁹ a second; f32 at levels without 8-bit units.
    pub int8_gmacs: f64,
    /// Multiply-adds of bf16, in 10⁹ a second; f32 at levels without bf16 units.
    pub bf16_gmacs: f64,
}

impl MachinePeaks {
    /// The better of two measurements.
    pub fn best(self, other: Self) -> Self {
        Self {
            read_gbs: self.read_gbs.max(other.read_gbs),
            int8_gmacs: self.int8_gmacs.max(other.int8_gmacs),
            bf16_gmacs: self.bf16_gmacs.max(other.bf16_gmacs),
        }
    }
}

/// Measures the peaks of this machine with `threads` threads for a kernel level. Takes about a
/// second.
///
/// # Errors
/// The machine does not have the level.
pub fn machine_peaks(threads: usize, level: &str) -> Result<MachinePeaks, KernelError> {
    // Functions with special instructions are selected only by levels that were detected on this
    // machine.
    let level = puna_kernels::level(level)?.name;
    let threads = threads.max(1);
    let gmacs = |chains: Chains| {
        run_on_all_threads(threads, ARITHMETIC, &|until| arithmetic(chains, until))
    };
    let float = float_chains(level);
    Ok(MachinePeaks {
        read_gbs: read(threads),
        int8_gmacs: gmacs(int8_chains(level).unwrap_or(float)),
        bf16_gmacs: gmacs(bf16_chains(level).unwrap_or(float)),
    })
}

/// Rounds of independent multiply-adds in registers, and the number of multiply-adds per round.
type Chains = (fn(u32) -> f32, u64);

/// Rounds between two reads of the clock.
const ROUNDS: u32 = 4096;

/// Multiply-adds (10⁹) and seconds of one thread.
fn arithmetic((run, macs): Chains, until: Duration) -> (f64, f64) {
    black_box(run(ROUNDS));
    let start = Instant::now();
    let mut rounds = 0u64;
    while start.elapsed() < until {
        black_box(run(black_box(ROUNDS)));
        rounds += u64::from(ROUNDS);
    }
    ((rounds * macs) as f64 / 1e9, start.elapsed().as_secs_f64())
}

/// The sum of the rates of threads that work at the same time.
fn run_on_all_threads(
    threads: usize,
    time: Duration,
    work: &(dyn Fn(Duration) -> (f64, f64) + Sync),
) -> f64 {
    let barrier = Barrier::new(threads);
    let run = || {
        barrier.wait();
        work(time)
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles
            .into_iter()
            .filter_map(|handle| handle.join().ok())
            .map(|(amount, seconds)| amount / seconds)
            .sum()
    })
}

/// Bandwidth of all threads together in 10⁹ bytes a second: the best of a few passes, each from its
/// first start to its last end. A thread's own best time may be a time in which other threads
/// waited, and would count the bandwidth several times.
fn read(threads: usize) -> f64 {
    let (barrier, epoch) = (Barrier::new(threads), Instant::now());
    let beyond_cache =
        System::real().largest_cache().unwrap_or(0).saturating_mul(2).min(MOST_FOR_CACHE);
    let words = (beyond_cache / threads).max(BUFFER).min(MOST_BUFFERS / threads) / 8;
    let run = || {
        // Huge pages, since TLB misses would limit the rate. The kernel must be advised before the
        // pages are touched.
        let mut buffer = vec![0u64; words];
        advise_huge(buffer.as_mut_ptr().cast(), 8 * words);
        buffer.fill(1);
        [(); PASSES].map(|()| {
            barrier.wait();
            let start = epoch.elapsed();
            black_box(sum(&buffer));
            (start, epoch.elapsed())
        })
    };
    let times: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let rate = |pass: usize| {
        let first = times.iter().map(|times| times[pass].0).min()?;
        let last = times.iter().map(|times| times[pass].1).max()?;
        Some((8 * words * times.len()) as f64 / (last - first).as_secs_f64() / 1e9)
    };
    (0..PASSES).filter_map(rate).fold(0.0, f64::max)
}

/// A sum by the widest loads that need no level.
fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: just detected.
        return unsafe { sum_avx2(words) };
    }
    sum_plain(words)
}

/// By loads of 32 bytes: with 16 bytes, the first-level cache has too few loads outstanding.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum_plain(words)
}

/// A sum in many independent chains, so that nothing but memory limits it.
#[inline(always)]
fn sum_plain(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in words.chunks_exact(32) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Plain code, as in the portable level.
fn float_plain(rounds: u32) -> f32 {
    let (a, b) = (black_box([1.000_001f32; 8]), black_box([1e-9f32; 8]));
    let mut sums = [[0.5f32; 8]; 8];
    for _ in 0..rounds {
        for chain in &mut sums {
            for ((x, a), b) in chain.iter_mut().zip(&a).zip(&b) {
                *x = *x * a + b;
            }
        }
    }
    sums.iter().flatten().sum()
}

#[cfg(not(target_arch = "x86_64"))]
mod units {
    use super::{Chains, float_plain};

    pub(super) fn float_chains(_level: &str) -> Chains {
        (float_plain, 64)
    }

    pub(super) fn int8_chains(_level: &str) -> Option<Chains> {
        None
    }

    pub(super) fn bf16_chains(_level: &str) -> Option<Chains> {
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod units {
    use std::arch::x86_64::*;

    use super::{Chains, float_plain};

    /// Independent chains: enough to hide the latency of every unit.
    const CHAINS: usize = 12;

    pub(super) fn float_chains(level: &str) -> Chains {
        match level {
            name if name.starts_with("avx512") || name == "amx" => {
                // SAFETY: the level was found on this machine, and it has AVX-512F.
                (|rounds| unsafe { float_avx512(rounds) }, (CHAINS * 16) as u64)
            }
            // SAFETY: as above, AVX2 and FMA.
            "avx2" | "avxvnni" => (|rounds| unsafe { float_avx2(rounds) }, (CHAINS * 8) as u64),
            _ => (float_plain, 64),
        }
    }

    pub(super) fn int8_chains(level: &str) -> Option<Chains> {
        match level {
            // SAFETY: the level was found on this machine.
            "amx" => Some(unsafe { puna_kernels::tile_peaks() }[1]),
            "avx512vnni" => {
                // SAFETY: the level was found on this machine, and it has AVX-512 VNNI.
                Some((|rounds| unsafe { int8_vnni(rounds) }, (CHAINS * 64) as u64))
            }
            // SAFETY: as above, AVX-VNNI.
            "avxvnni" => Some((|rounds| unsafe { int8_avxvnni(rounds) }, (CHAINS * 32) as u64)),
            "avx2" | "avx512" => {
                // SAFETY: as above, AVX2.
                Some((|rounds| unsafe { int8_avx2(rounds) }, (CHAINS * 32) as u64))
            }
            _ => None,
        }
    }

    pub(super) fn bf16_chains(level: &str) -> Option<Chains> {
        if level == "amx" {
            // SAFETY: the level was found on this machine.
            return Some(unsafe { puna_kernels::tile_peaks() }[0]);
        }
        if level == "avx512vnni" && is_x86_feature_detected!("avx512bf16") {
            // SAFETY: just detected.
            return Some((|rounds| unsafe { bf16_avx512(rounds) }, (CHAINS * 32) as u64));
        }
        None
    }

    #[target_feature(enable = "avx512f")]
    fn float_avx512(rounds: u32) -> f32 {
        let (a, b) = (_mm512_set1_ps(1.000_001), _mm512_set1_ps(1e-9));
        let mut sums = [_mm512_set1_ps(0.5); CHAINS];
        for _ in 0..rounds {
            for x in &mut sums {
                *x = _mm512_fmadd_ps(*x, a, b);
            }
        }
        sums.into_iter().map(|x| _mm512_reduce_add_ps(x)).sum()
    }

    #[target_feature(enable = "avx2,fma")]
    fn float_avx2(rounds: u32) -> f32 {
        let (a, b) = (_mm256_set1_ps(1.000_001), _mm256_set1_ps(1e-9));
        let mut sums = [_mm256_set1_ps(0.5); CHAINS];
        for _ in 0..rounds {
            for x in &mut sums {
                *x = _mm256_fmadd_ps(*x, a, b);
            }
        }
        sums.into_iter().map(|x| _mm256_cvtss_f32(x)).sum()
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn int8_vnni(rounds: u32) -> f32 {
        let (a, b) = (_mm512_set1_epi8(3), _mm512_set1_epi8(-1));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for x in &mut sums {
                *x = _mm512_dpbusd_epi32(*x, a, b);
            }
        }
        sums.into_iter().map(|x| _mm512_reduce_add_epi32(x) as f32).sum()
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn int8_avxvnni(rounds: u32) -> f32 {
        let (a, b) = (_mm256_set1_epi8(3), _mm256_set1_epi8(-1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            for x in &mut sums {
                *x = _mm256_dpbusd_avx_epi32(*x, a, b);
            }
        }
        sums.into_iter().map(|x| _mm256_extract_epi32::<0>(x) as f32).sum()
    }

    /// Products of bytes, added in pairs to 16 and then to 32 bits: the replacement for VNNI.
    #[target_feature(enable = "avx2")]
    fn int8_avx2(rounds: u32) -> f32 {
        let (a, b, ones) = (_mm256_set1_epi8(3), _mm256_set1_epi8(-1), _mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for round in 0..rounds {
            // Another operand each round, so that the compiler does not hoist the products.
            let a = _mm256_xor_si256(a, _mm256_set1_epi8((round & 1) as i8));
            for x in &mut sums {
                let pairs =
                    _mm256_maddubs_epi16(_mm256_or_si256(a, _mm256_srli_epi32::<31>(*x)), b);
                *x = _mm256_add_epi32(*x, _mm256_madd_epi16(pairs, ones));
            }
        }
        sums.into_iter().map(|x| _mm256_extract_epi32::<0>(x) as f32).sum()
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bf16_avx512(rounds: u32) -> f32 {
        let one = _mm512_set1_ps(1e-6);
        let a = _mm512_cvtne2ps_pbh(one, one);
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            for x in &mut sums {
                *x = _mm512_dpbf16_ps(*x, a, a);
            }
        }
        sums.into_iter().map(|x| _mm512_reduce_add_ps(x)).sum()
    }
}

use units::{bf16_chains, float_chains, int8_chains};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_this_machine_has_positive_limits() {
        for level in puna_kernels::levels() {
            let gmacs = arithmetic(float_chains(level.name), Duration::from_millis(5));
            assert!(gmacs.0 > 0.0 && gmacs.1 > 0.0, "{}", level.name);
            for chains in [int8_chains(level.name), bf16_chains(level.name)].into_iter().flatten() {
                let (amount, seconds) = arithmetic(chains, Duration::from_millis(5));
                // Every core does 0.1 to 10⁴ multiply-adds a nanosecond with these units.
                let rate = amount / seconds;
                assert!((0.1..10_000.0).contains(&rate), "{}: {rate}", level.name);
            }
        }
        assert!(machine_peaks(1, "quantum").is_err());
    }

    #[test]
    fn the_probe_sums_all_words() {
        assert_eq!(sum(&[3; 64]), 192);
    }
}
