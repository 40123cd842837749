//! Sandbox of runners and of file workers: a process that maps untrusted files gives up the
//! rights that it does not need.
//!
//! The server starts these processes with the variables of the list in `environment.rs` only. The
//! process enters the sandbox after it has received the paths of its files and before it reads any
//! of them. It has one thread at that time, so that all later threads inherit the restrictions. The
//! page `docs/design/sandbox.md` lists what stays allowed, and why.

pub(crate) mod environment;
pub(crate) mod files;
#[cfg(target_os = "linux")]
mod landlock;
mod mode;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod seccomp;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use mode::SandboxMode;

/// Name of the restriction to a list of files in a [`SandboxReport`].
const LANDLOCK: &str = "landlock";
/// Name of the restriction to a list of system calls in a [`SandboxReport`].
const SECCOMP: &str = "seccomp";

/// Restrictions that apply to a process, and those that the system does not offer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// Names of the restrictions that apply, such as `landlock`.
    pub active: Vec<String>,
    /// Restrictions that do not apply, each with its reason.
    pub missing: Vec<String>,
    /// Whether the settings turn the sandbox off.
    #[serde(default)]
    pub is_off: bool,
}

impl SandboxReport {
    /// Records the result of one restriction.
    #[cfg_attr(not(unix), expect(dead_code))]
    fn add(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.active.push(name.to_owned()),
            Err(reason) => self.missing.push(format!("{name} ({reason})")),
        }
    }

    /// Returns the reason why a process must not work in this sandbox, if the mode has one.
    pub(crate) fn refusal(&self, mode: SandboxMode) -> Option<String> {
        let has = |name: &str| self.active.iter().any(|active| active == name);
        if mode != SandboxMode::Required || has(LANDLOCK) && has(SECCOMP) {
            return None;
        }
        Some(format!(
            "the sandbox is required (sandbox = \"required\"), but this system lacks {}: use a kernel and a container with Landlock and seccomp, or set sandbox to \"auto\"",
            self.missing.join(", ")
        ))
    }
}

impl fmt::Display for SandboxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.active.as_slice() {
            _ if self.is_off => f.write_str("off"),
            [] => f.write_str("none"),
            active => f.write_str(&active.join(", ")),
        }
    }
}

/// Sandbox that this process has entered. It must live as long as the process reads system files,
/// because it keeps the entries of `/proc` open for which it has rules.
#[derive(Debug, Default)]
pub struct Sandbox {
    /// Restrictions that apply.
    pub report: SandboxReport,
    /// Reason why the process must not work.
    pub(crate) refusal: Option<String>,
    #[cfg(target_os = "linux")]
    _proc_path_fds: Vec<::landlock::PathFd>,
}

/// Returns the mode that the parent process has set.
pub(crate) fn inherited_mode() -> SandboxMode {
    let name = std::env::var(environment::SANDBOX_VARIABLE).unwrap_or_default();
    SandboxMode::from_name(&name).unwrap_or_default()
}

/// Enters the sandbox. Afterwards the process can read only `files`, all parts of split models
/// among them, `folders`, and a few system files.
///
/// The calling thread must be the only one: Landlock restricts the calling thread and the threads
/// that it starts later. A restriction that the system does not offer is reported, not an error.
pub fn enter(mode: SandboxMode, files: &[PathBuf], folders: &[PathBuf]) -> Sandbox {
    if mode == SandboxMode::Off {
        let report = SandboxReport { is_off: true, ..SandboxReport::default() };
        return Sandbox { report, ..Sandbox::default() };
    }
    let mut sandbox = restrict(files, folders);
    sandbox.refusal = sandbox.report.refusal(mode);
    sandbox
}

#[cfg(target_os = "linux")]
fn restrict(files: &[PathBuf], folders: &[PathBuf]) -> Sandbox {
    let mut report = SandboxReport::default();
    let core_dumps = forbid_core_dumps();
    let privileges = forbid_new_privileges();
    let tracing = forbid_tracing();
    let (proc_path_fds, landlock) = landlock::restrict(files, folders);
    // The filter denies the calls that the other restrictions need, so it comes last.
    report.add(LANDLOCK, landlock);
    report.add(SECCOMP, restrict_system_calls());
    report.add("no new privileges", privileges);
    report.add("not dumpable", tracing);
    report.add("no core dumps", core_dumps);
    Sandbox { report, refusal: None, _proc_path_fds: proc_path_fds }
}

#[cfg(not(target_os = "linux"))]
fn restrict(_: &[PathBuf], _: &[PathBuf]) -> Sandbox {
    let mut report = SandboxReport::default();
    #[cfg(unix)]
    report.add("no core dumps", forbid_core_dumps());
    report.missing.push("file and system call rules (this system has none)".to_owned());
    Sandbox { report, refusal: None }
}

/// Sets the size limit of core dumps to zero, because a dump contains prompts.
#[cfg(unix)]
fn forbid_core_dumps() -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(|error| error.to_string())
}

#[cfg(target_os = "linux")]
fn forbid_new_privileges() -> Result<(), String> {
    rustix::thread::set_no_new_privs(true).map_err(|error| error.to_string())
}

/// Clears the dumpable flag: other processes of the same user cannot trace this one or read its
/// memory.
#[cfg(target_os = "linux")]
fn forbid_tracing() -> Result<(), String> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| error.to_string())
}

#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
fn restrict_system_calls() -> Result<(), String> {
    seccomp::restrict()
}

#[cfg(all(
    target_os = "linux",
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))
))]
fn restrict_system_calls() -> Result<(), String> {
    Err("no filter for this processor architecture".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_active_and_missing_restrictions() {
        let mut report = SandboxReport::default();
        assert_eq!(report.to_string(), "none");
        report.add("landlock", Ok(()));
        report.add("seccomp", Err("the kernel has none".into()));
        report.add("no core dumps", Ok(()));
        assert_eq!(report.to_string(), "landlock, no core dumps");
        assert_eq!(report.missing, ["seccomp (the kernel has none)"]);
    }

    #[test]
    fn a_required_sandbox_that_the_system_lacks_is_a_refusal_with_the_reason() {
        let mut report = SandboxReport::default();
        report.add(LANDLOCK, Err("the kernel does not offer it".into()));
        report.add(SECCOMP, Ok(()));
        let refusal = report.refusal(SandboxMode::Required).unwrap();
        let reason = "this system lacks landlock (the kernel does not offer it): use a kernel";
        assert!(refusal.contains(reason) && refusal.contains("\"auto\""), "{refusal}");
        assert_eq!(report.refusal(SandboxMode::Auto), None);
        report.add(LANDLOCK, Ok(()));
        assert_eq!(report.refusal(SandboxMode::Required), None);
    }

    #[test]
    fn a_sandbox_that_is_off_restricts_nothing_and_says_so() {
        let sandbox = enter(SandboxMode::Off, &[], &[]);
        assert_eq!((sandbox.report.to_string(), sandbox.refusal), ("off".to_owned(), None));
        assert!(sandbox.report.active.is_empty() && sandbox.report.missing.is_empty());
    }
}
