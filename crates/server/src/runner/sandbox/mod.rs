//! Sandbox of a runner: a process that maps files of strangers gives up the rights that it does not
//! need.
//!
//! The server starts a runner with the variables of the list in `environment.rs` only. The runner
//! closes the sandbox after it has received the paths of its files and before it reads any of them.
//! It has one thread at that time, so that all later threads inherit the restrictions. The page
//! `docs/design/sandbox.md` lists what stays allowed, and why.

pub(crate) mod environment;
#[cfg(target_os = "linux")]
mod files;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")
))]
mod seccomp;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::protocol::LoadSpec;

/// Restrictions that apply to a runner, and those that the system does not offer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxReport {
    /// Names of the restrictions that apply, such as `landlock`.
    pub active: Vec<String>,
    /// Restrictions that do not apply, each with its reason.
    pub missing: Vec<String>,
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
}

impl fmt::Display for SandboxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.active.as_slice() {
            [] => f.write_str("none"),
            active => f.write_str(&active.join(", ")),
        }
    }
}

/// Closed sandbox. It must live as long as the runner reads system files, because it keeps the
/// entries of `/proc` that its rules refer to.
#[derive(Debug, Default)]
pub struct Sandbox {
    /// Restrictions that apply.
    pub report: SandboxReport,
    #[cfg(target_os = "linux")]
    _anchors: Vec<::landlock::PathFd>,
}

/// Closes the sandbox around this process. Afterwards the process can open the files of `spec` and
/// `extra` for reading, and a few system files.
///
/// The calling thread must be the only one: Landlock restricts the calling thread and the threads
/// that it starts later. A restriction that the system does not offer is reported, not an error.
pub fn close(spec: &LoadSpec, extra: &[PathBuf]) -> Sandbox {
    let mut report = SandboxReport::default();
    #[cfg(target_os = "linux")]
    {
        let core_dumps = forbid_core_dumps();
        let privileges = forbid_new_privileges();
        let tracing = forbid_tracing();
        let (anchors, landlock) = landlock::restrict(spec, extra);
        // The filter denies the calls that the other restrictions need, so it comes last.
        report.add("landlock", landlock);
        report.add("seccomp", restrict_system_calls());
        report.add("no new privileges", privileges);
        report.add("not dumpable", tracing);
        report.add("no core dumps", core_dumps);
        Sandbox { report, _anchors: anchors }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (spec, extra);
        #[cfg(unix)]
        report.add("no core dumps", forbid_core_dumps());
        report.missing.push("file and system call rules (this system has none)".to_owned());
        Sandbox { report }
    }
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
}
