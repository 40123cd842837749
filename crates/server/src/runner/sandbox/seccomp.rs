//! System call filter: a list of calls that a runner may make. All others fail with `EPERM`.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Calls that are allowed with any arguments. None of them opens a file, reaches another process
/// or changes what this process may do.
const ALLOWED_CALLS: &[c_long] = &[
    // The connection to the server, the log, and files that are already open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fadvise64,
    libc::SYS_ppoll,
    // Metadata of files; Landlock does not restrict it.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    // Memory. `mmap` and `mprotect` have conditions.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_brk,
    // Threads.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals of this process.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time, random numbers, and facts about this process and the machine.
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Further calls of x86-64, which newer architectures lack. `arch_prctl` requests AMX state.
#[cfg(target_arch = "x86_64")]
const ALLOWED_OLD_CALLS: &[c_long] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_time,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_OLD_CALLS: &[c_long] = &[];

/// Flags of `open` that write, create or truncate a file, or open one without a name.
const WRITE_FLAGS: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE) as u64
    & !(libc::O_DIRECTORY as u64);

/// Installs the filter for all threads of this process.
pub(super) fn restrict() -> Result<(), String> {
    let programs = compile().map_err(|error| error.to_string())?;
    for program in &programs {
        seccompiler::apply_filter_all_threads(program).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Compiles two filters. The kernel applies the stricter result of both.
fn compile() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // A filter cannot read the flags of `clone3`. With `ENOSYS`, libc uses `clone` instead.
    let clone3 = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        arch,
    )?;
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        ALLOWED_CALLS.iter().chain(ALLOWED_OLD_CALLS).map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.extend(conditional_rules()?);
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let calls = SeccompFilter::new(rules, denied, SeccompAction::Allow, arch)?;
    Ok([clone3.try_into()?, calls.try_into()?])
}

/// Calls that are allowed with some arguments only.
fn conditional_rules() -> Result<Vec<(c_long, Vec<SeccompRule>)>, seccompiler::BackendError> {
    let own_process = u64::from(std::process::id());
    let executable = libc::PROT_EXEC as u64;
    let new_thread = libc::CLONE_THREAD as u64;
    let mut rules = vec![
        (libc::SYS_openat, vec![without_bits(2, WRITE_FLAGS)?]),
        (libc::SYS_mmap, vec![without_bits(2, executable)?]),
        (libc::SYS_mprotect, vec![without_bits(2, executable)?]),
        (libc::SYS_clone, vec![has_bits(0, new_thread)?]),
        // A panic aborts the process.
        (libc::SYS_tgkill, vec![int_equals(0, own_process)?]),
        // Zero is the calling thread: the thread pool pins its own threads.
        (libc::SYS_sched_setaffinity, vec![int_equals(0, 0)?]),
        // `PRIO_PROCESS` is zero, and so is the calling thread. An ordinary user can only lower its
        // priority.
        (
            libc::SYS_setpriority,
            vec![SeccompRule::new(vec![
                int_condition(0, SeccompCmpOp::Eq, 0)?,
                int_condition(1, SeccompCmpOp::Eq, 0)?,
            ])?],
        ),
        // Without an address, a message goes to the server only.
        (libc::SYS_sendto, vec![pointer_is_null(4)?]),
        // Reading a limit, not setting one.
        (libc::SYS_prlimit64, vec![pointer_is_null(2)?]),
    ];
    let any_of = |index: u8, values: &[i32]| {
        values.iter().map(|value| int_equals(index, *value as u64)).collect::<Result<Vec<_>, _>>()
    };
    let file_commands =
        [libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL];
    rules.push((libc::SYS_fcntl, any_of(1, &file_commands)?));
    // Names of threads and of memory areas.
    rules.push((libc::SYS_prctl, any_of(0, &[libc::PR_SET_NAME, libc::PR_SET_VMA])?));
    #[cfg(target_arch = "x86_64")]
    rules.push((libc::SYS_open, vec![without_bits(1, WRITE_FLAGS)?]));
    Ok(rules)
}

/// Rule for an `int` argument that has all of these bits.
fn has_bits(index: u8, bits: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![int_condition(index, SeccompCmpOp::MaskedEq(bits), bits)?])
}

/// Rule for an `int` argument that has none of these bits.
fn without_bits(index: u8, bits: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![int_condition(index, SeccompCmpOp::MaskedEq(bits), 0)?])
}

/// Rule for an `int` argument with this value.
fn int_equals(index: u8, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![int_condition(index, SeccompCmpOp::Eq, value)?])
}

/// Rule for a pointer that is null. All 64 bits count.
fn pointer_is_null(index: u8) -> Result<SeccompRule, seccompiler::BackendError> {
    let length = SeccompCmpArgLen::Qword;
    SeccompRule::new(vec![SeccompCondition::new(index, length, SeccompCmpOp::Eq, 0)?])
}

/// Condition on the lower half of an argument. The kernel ignores the upper half of `int` arguments
/// and of flags.
fn int_condition(
    index: u8,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_and_allow_none_of_the_dangerous_calls() {
        assert!(compile().unwrap().iter().all(|program| !program.is_empty()));
        let conditional = conditional_rules().unwrap();
        let dangerous = [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_sendmsg,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_kill,
            libc::SYS_ioctl,
            libc::SYS_unlinkat,
            libc::SYS_renameat2,
            libc::SYS_openat2,
            libc::SYS_memfd_create,
            libc::SYS_io_uring_setup,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_setuid,
            libc::SYS_mount,
        ];
        for call in dangerous {
            assert!(!ALLOWED_CALLS.contains(&call) && !ALLOWED_OLD_CALLS.contains(&call), "{call}");
            assert!(conditional.iter().all(|(conditional, _)| *conditional != call), "{call}");
        }
        assert!(
            [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TMPFILE, libc::O_TRUNC]
                .iter()
                .all(|flag| *flag as u64 & WRITE_FLAGS != 0)
        );
        // The way in which files and folders are opened for reading.
        let reading = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_DIRECTORY | libc::O_NONBLOCK;
        assert_eq!(reading as u64 & WRITE_FLAGS, 0);
    }
}
