//! The process that holds a lock, named in the lock file for the processes that wait.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::files::read_limited;

/// Largest size of a lock holder in its file, in bytes.
const MAX_LOCK_INFO_BYTES: u64 = 512;
/// Linux files with the host name, the PID namespace of this process, and the boot id. The boot id
/// distinguishes machines with the same host name: the first PID namespace has the same number on
/// each machine.
const HOSTNAME_PATH: &str = "/proc/sys/kernel/hostname";
const PID_NAMESPACE_PATH: &str = "/proc/self/ns/pid";
#[cfg(target_os = "linux")]
const LOCK_TABLE_PATH: &str = "/proc/locks";
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// A process that holds a lock.
///
/// ```text
/// puna-tmp/<64 hex>.lock        <pid> <host> <pid namespace> <boot id>
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    pid: u32,
    host: String,
    pid_namespace: String,
    /// Empty in lock files of older versions.
    boot_id: String,
}

impl LockHolder {
    /// This process.
    pub(crate) fn current() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let pid_namespace = fs::read_link(PID_NAMESPACE_PATH)
            .map(|pid_namespace| pid_namespace.to_string_lossy().into_owned());
        let pid_namespace = plain(&pid_namespace.unwrap_or_default());
        Self {
            pid: std::process::id(),
            host: plain(&read(HOSTNAME_PATH)),
            pid_namespace,
            boot_id: plain(&read(BOOT_ID_PATH)),
        }
    }

    /// Writes the holder into the lock file. Errors, such as a full disk, are ignored.
    pub(crate) fn write_to(&self, mut file: &File) {
        let text = format!("{} {} {} {}\n", self.pid, self.host, self.pid_namespace, self.boot_id);
        let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    }

    /// The process that holds the lock of a file now. The kernel's table of locks counts more than
    /// the file, which any program can lock without writing into it.
    pub(crate) fn of_locked(file: &File, path: &Path) -> Option<Self> {
        let written = Self::read(path);
        match lock_table_pid(file) {
            Some(pid) if written.as_ref().is_none_or(|holder| holder.pid() != Some(pid)) => {
                Some(Self { pid, ..Self::current() })
            }
            _ => written,
        }
    }

    /// Reads the holder in a lock file. `None` if it cannot be read, as on systems where a lock
    /// excludes readers.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let text = String::from_utf8(read_limited(path, MAX_LOCK_INFO_BYTES).ok()?).ok()?;
        let mut words = text.trim_end_matches('\n').split(' ');
        let pid = words.next()?.parse().ok()?;
        let mut word = || words.next().map(plain).unwrap_or_default();
        Some(Self { pid, host: word(), pid_namespace: word(), boot_id: word() })
    }

    /// Whether the process runs on this machine and is stopped, by `SIGSTOP`, Ctrl-Z or a debugger.
    /// False if the system does not tell.
    pub fn is_stopped(&self) -> bool {
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()?)).ok()?;
            // The state follows the program's name, which may contain any character.
            stat.rsplit_once(')')?.1.trim_start().chars().next()
        };
        matches!(state(), Some('T' | 't'))
    }

    /// The process id, if a signal from this process would reach exactly that process. `None` if
    /// the machine, boot or PID namespace differs or is unknown.
    pub fn pid(&self) -> Option<u32> {
        let here = Self::current();
        let is_of_here = |(its, ours): (&String, &String)| !its.is_empty() && its == ours;
        let words = [
            (&self.host, &here.host),
            (&self.pid_namespace, &here.pid_namespace),
            (&self.boot_id, &here.boot_id),
        ];
        words.into_iter().all(is_of_here).then_some(self.pid)
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let here = Self::current();
        let differs = |its: &str, ours: &str| !its.is_empty() && its != ours;
        match () {
            () if differs(&self.host, &here.host) => {
                write!(f, "process {} of {}", self.pid, self.host)
            }
            () if differs(&self.boot_id, &here.boot_id) => {
                write!(f, "process {} of another machine named {}", self.pid, self.host)
            }
            () if differs(&self.pid_namespace, &here.pid_namespace) => {
                write!(f, "process {} of another container", self.pid)
            }
            () => write!(f, "process {}", self.pid),
        }
    }
}

/// Finds the process that holds the `flock` lock of a file in `/proc/locks`. `None` on other
/// systems, and for a process of another PID namespace.
fn lock_table_pid(file: &File) -> Option<u32> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        let meta = file.metadata().ok()?;
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        let id = format!("{major:02x}:{minor:02x}:{}", meta.ino());
        let table = fs::read_to_string(LOCK_TABLE_PATH).ok()?;
        // `1: FLOCK  ADVISORY  WRITE 4242 fd:01:1234 0 EOF`; lines of waiting processes have `->`.
        table.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_holder = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&&*id);
            is_holder.then(|| words[4].parse().ok().filter(|pid| *pid > 0))?
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        None
    }
}

/// Reduces a text to one printable word of at most 80 characters.
fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_names_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        fs::write(&path, "what a longer number of an earlier holder has left behind").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        LockHolder::current().write_to(&file);
        let holder = LockHolder::read(&path).unwrap();
        assert_eq!(holder, LockHolder::current());
        // Other systems do not name the machine.
        assert_eq!(holder.pid(), cfg!(target_os = "linux").then(std::process::id));
        assert_eq!(holder.to_string(), format!("process {}", std::process::id()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_stopped_process_is_detected() {
        // Kills the process when the test ends: a stopped process would stay for ever.
        struct Sleeper(std::process::Child);
        impl Drop for Sleeper {
            fn drop(&mut self) {
                let _ = self.0.kill().and_then(|()| self.0.wait());
            }
        }
        let child = Sleeper(std::process::Command::new("sleep").arg("60").spawn().unwrap());
        let holder = LockHolder { pid: child.0.id(), ..LockHolder::current() };
        let signal = |what: &str| {
            let pid = child.0.id().to_string();
            assert!(
                std::process::Command::new("kill").args([what, &pid]).status().unwrap().success()
            );
        };
        let comes = |wanted: bool| {
            (0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                holder.is_stopped() == wanted
            })
        };
        assert!(!holder.is_stopped());
        signal("-STOP");
        assert!(comes(true));
        assert!(!LockHolder { host: "elsewhere".into(), ..holder.clone() }.is_stopped());
        signal("-CONT");
        assert!(comes(false));
    }

    #[test]
    fn a_process_id_of_another_machine_or_namespace_is_not_returned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let here = LockHolder::current();
        fs::write(&path, format!("12 elsewhere {}\n", here.pid_namespace)).unwrap();
        let holder = LockHolder::read(&path).unwrap();
        assert_eq!((holder.pid(), holder.to_string()), (None, "process 12 of elsewhere".into()));
        fs::write(&path, format!("12 {} pid:[1]\n", here.host)).unwrap();
        let holder = LockHolder::read(&path).unwrap();
        assert_eq!(
            (holder.pid(), holder.to_string()),
            (None, "process 12 of another container".into())
        );
        // A machine of the same host name and PID namespace; a lock file without a boot id; lock
        // files without a host or namespace.
        let told = format!("process 12 of another machine named {}", here.host);
        for (text, told) in [
            (format!("12 {} {} another-run\n", here.host, here.pid_namespace), &*told),
            (format!("12 {} {}\n", here.host, here.pid_namespace), "process 12"),
            (format!("12  {} {}\n", here.pid_namespace, here.boot_id), "process 12"),
            (format!("12 {}  {}\n", here.host, here.boot_id), "process 12"),
        ] {
            fs::write(&path, &text).unwrap();
            let holder = LockHolder::read(&path).unwrap();
            assert_eq!((holder.pid(), holder.to_string().as_str()), (None, told), "{text}");
        }
        for other in [&b""[..], b"pid", b"-1 a b", b"99999999999 a b", b"\xff", &[b'1'; 600]] {
            fs::write(&path, other).unwrap();
            assert_eq!(LockHolder::read(&path), None, "{other:?}");
        }
    }
}
