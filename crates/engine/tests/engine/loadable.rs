//! Runs the body of the load fuzz target on pseudo-random inputs, always the same ones.
//! `PUNA_LOADS=N` runs other numbers of inputs. `fuzz/` has the same target for libFuzzer, which is
//! guided by coverage.

use super::body;

/// Number of inputs of one run.
const INPUTS: usize = 300;

#[test]
fn loadable_files_with_changed_contents_are_refused_or_run() {
    let inputs = std::env::var("PUNA_LOADS").ok().and_then(|count| count.parse().ok());
    // A small random number generator (xorshift64*).
    let mut state = 0x7075_6e61_u64;
    let mut random = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 56) as u8
    };
    let (mut refused, mut ran) = (0, 0);
    for _ in 0..inputs.unwrap_or(INPUTS) {
        let length = 8 + usize::from(random()) % 40;
        let input: Vec<u8> = (0..length).map(|_| random()).collect();
        match std::panic::catch_unwind(|| body::run(&input)) {
            Ok(Ok(())) => ran += 1,
            Ok(Err(_)) => refused += 1,
            Err(panic) => {
                eprintln!("the input is {input:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(ran > refused / 4 && refused > ran / 20, "{refused} were refused, {ran} ran");
}
