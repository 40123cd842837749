//! Parsers of numbers on the command line, with errors in plain words.

/// Largest number of tokens of a step that `puna debug graph` plans.
const MAX_STEP_TOKENS: u64 = 1 << 24;
/// Largest number of sequences of a batch.
const MAX_SEQUENCES: u64 = 1 << 16;

/// Parses a whole number within a range.
fn within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let is_number = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        Ok(n) if n < min => Err(format!("it must be a number of at least {min}")),
        _ if is_number => Err(format!("it must be a number of at most {max}")),
        _ => Err(format!("it must be a number of at least {min}")),
    }
}

/// Parses a number that may be zero.
pub fn count(text: &str) -> Result<usize, String> {
    within(text, 0, usize::MAX as u64).map(|n| n as usize)
}

/// Parses a count of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    within(text, 1, usize::MAX as u64).map(|n| n as usize)
}

/// Parses a limit of at least 1.
pub fn limit(text: &str) -> Result<u32, String> {
    within(text, 1, u64::from(u32::MAX)).map(|n| n as u32)
}

/// Parses the number of a token.
pub fn token(text: &str) -> Result<u32, String> {
    within(text, 0, u64::from(u32::MAX)).map(|n| n as u32)
}

/// Parses the number of tokens of a step.
pub fn step_tokens(text: &str) -> Result<usize, String> {
    within(text, 1, MAX_STEP_TOKENS).map(|n| n as usize)
}

/// Parses the number of sequences of a batch.
pub fn sequences(text: &str) -> Result<usize, String> {
    within(text, 1, MAX_SEQUENCES).map(|n| n as usize)
}

/// Parses the number of tokens of a context.
pub fn context(text: &str) -> Result<usize, String> {
    within(text, 1, u64::from(u32::MAX)).map(|n| n as usize)
}

/// Parses the dimensions of an embedding. The server checks their range.
pub fn dimensions(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "it must be a whole number, such as 256".to_owned())
}

/// Parses a number of threads. More than a few per processor would only wait for each other.
pub fn threads(text: &str) -> Result<usize, String> {
    let max = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    let within = |n: &usize| (1..=max).contains(n);
    text.parse().ok().filter(within).ok_or_else(|| {
        format!("it must be a number from 1 to {max}, which is four times the number of processors")
    })
}
