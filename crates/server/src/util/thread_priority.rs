//! Priority of threads.

/// Lowers the priority of the calling thread by this nice value, so that it takes little time from
/// threads that clients wait for.
pub(crate) fn lower_priority(nice: i32) {
    // On Linux the priority is that of the thread, elsewhere that of the whole process.
    #[cfg(target_os = "linux")]
    if nice != 0
        && let Err(error) = rustix::process::setpriority_process(None, nice)
    {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}
