//! Number of files that this process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits to try where the system refuses its own hard limit, as macOS does.
const FALLBACK_LIMITS: [u64; 2] = [1 << 16, 10_240];

/// Raises the soft limit of open files to the hard limit, as far as the system allows, and returns
/// the limit in force.
pub(crate) fn raise_open_file_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is no limit.
    let Some(soft) = current else { return u64::MAX };
    let raised = [maximum.unwrap_or(u64::MAX)].into_iter().chain(FALLBACK_LIMITS).find(|limit| {
        *limit > soft
            && maximum.is_none_or(|maximum| *limit <= maximum)
            && setrlimit(Resource::Nofile, Rlimit { current: Some(*limit), maximum }).is_ok()
    });
    raised.unwrap_or(soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        let raised = raise_open_file_limit();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current.unwrap_or(u64::MAX), raised);
        if cfg!(target_os = "linux") {
            assert_eq!(current, maximum);
        }
    }
}
