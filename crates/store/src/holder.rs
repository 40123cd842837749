//! Who holds a lock between processes: noted in the file that is locked, for those who wait.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::files::read_limited;

/// Bytes of such a note at most.
const LIMIT: u64 = 512;
/// Where Linux says what a machine is called, in which space of numbers a process has its own, and what tells this run of the machine
/// from all others: names are given to more than one machine, and the first space has the same number on each.
const HOST: &str = "/proc/sys/kernel/hostname";
const SPACE: &str = "/proc/self/ns/pid";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A process that holds a lock.
///
/// ```text
/// puna-tmp/<64 hex>.lock        <pid> <host> <space of process numbers> <run of the machine>
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pid: u32,
    host: String,
    space: String,
    /// Nothing in notes of older versions.
    boot: String,
}

impl Holder {
    /// This process.
    pub(crate) fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let space = fs::read_link(SPACE).map(|space| space.to_string_lossy().into_owned());
        let space = plain(&space.unwrap_or_default());
        Self { pid: std::process::id(), host: plain(&read(HOST)), space, boot: plain(&read(BOOT)) }
    }

    /// Notes it in the file that is locked. Without room for that, nobody learns who it is.
    pub(crate) fn note(&self, mut file: &File) {
        let text = format!("{} {} {} {}\n", self.pid, self.host, self.space, self.boot);
        let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
    }

    /// Who is noted in a file; nobody, where it cannot be read, as on systems where a lock keeps readers out.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let text = String::from_utf8(read_limited(path, LIMIT).ok()?).ok()?;
        let mut words = text.trim_end_matches('\n').split(' ');
        let pid = words.next()?.parse().ok()?;
        let mut word = || words.next().map(plain).unwrap_or_default();
        Some(Self { pid, host: word(), space: word(), boot: word() })
    }

    /// Whether it is of this machine and stands still, since somebody has stopped it (`SIGSTOP`, Ctrl-Z) or looks into it. Where the system does
    /// not say that, nobody does.
    pub fn is_stopped(&self) -> bool {
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid()?)).ok()?;
            // Behind its name, which may have anything in it.
            stat.rsplit_once(')')?.1.trim_start().chars().next()
        };
        matches!(state(), Some('T' | 't'))
    }

    /// Its number, where a signal that is sent from here reaches it, and surely no other process: not where it is not known whose it is.
    pub fn pid(&self) -> Option<u32> {
        let here = Self::here();
        let is_of_here = |(its, ours): (&String, &String)| !its.is_empty() && its == ours;
        let words =
            [(&self.host, &here.host), (&self.space, &here.space), (&self.boot, &here.boot)];
        words.into_iter().all(is_of_here).then_some(self.pid)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let here = Self::here();
        let differs = |its: &str, ours: &str| !its.is_empty() && its != ours;
        match () {
            () if differs(&self.host, &here.host) => {
                write!(f, "process {} of {}", self.pid, self.host)
            }
            () if differs(&self.boot, &here.boot) => {
                write!(f, "process {} of another machine called {}", self.pid, self.host)
            }
            () if differs(&self.space, &here.space) => {
                write!(f, "process {} of another container", self.pid)
            }
            () => write!(f, "process {}", self.pid),
        }
    }
}

/// One short word, whatever stands there.
fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_stands_in_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        fs::write(&path, "what a longer number of an earlier holder has left behind").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        Holder::here().note(&file);
        let holder = Holder::read(&path).unwrap();
        assert_eq!(holder, Holder::here());
        // Elsewhere nothing says which machine it is.
        assert_eq!(holder.pid(), cfg!(target_os = "linux").then(std::process::id));
        assert_eq!(holder.to_string(), format!("process {}", std::process::id()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_is_stopped_is_seen_to_be() {
        // One that is stopped never ends by itself, however this test ends.
        struct Sleeper(std::process::Child);
        impl Drop for Sleeper {
            fn drop(&mut self) {
                let _ = self.0.kill().and_then(|()| self.0.wait());
            }
        }
        let child = Sleeper(std::process::Command::new("sleep").arg("60").spawn().unwrap());
        let holder = Holder { pid: child.0.id(), ..Holder::here() };
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
        assert!(!Holder { host: "elsewhere".into(), ..holder.clone() }.is_stopped());
        signal("-CONT");
        assert!(comes(false));
    }

    #[test]
    fn a_number_of_elsewhere_is_no_number_of_here() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let here = Holder::here();
        fs::write(&path, format!("12 elsewhere {}\n", here.space)).unwrap();
        let holder = Holder::read(&path).unwrap();
        assert_eq!((holder.pid(), holder.to_string()), (None, "process 12 of elsewhere".into()));
        fs::write(&path, format!("12 {} pid:[1]\n", here.host)).unwrap();
        let holder = Holder::read(&path).unwrap();
        assert_eq!(
            (holder.pid(), holder.to_string()),
            (None, "process 12 of another container".into())
        );
        // Machines of one name, whose first spaces have one number; a note of before that was noted; and one that says nothing.
        let told = format!("process 12 of another machine called {}", here.host);
        for (note, told) in [
            (format!("12 {} {} another-run\n", here.host, here.space), &*told),
            (format!("12 {} {}\n", here.host, here.space), "process 12"),
            (format!("12  {} {}\n", here.space, here.boot), "process 12"),
            (format!("12 {}  {}\n", here.host, here.boot), "process 12"),
        ] {
            fs::write(&path, &note).unwrap();
            let holder = Holder::read(&path).unwrap();
            assert_eq!((holder.pid(), holder.to_string().as_str()), (None, told), "{note}");
        }
        for other in [&b""[..], b"pid", b"-1 a b", b"99999999999 a b", b"\xff", &[b'1'; 600]] {
            fs::write(&path, other).unwrap();
            assert_eq!(Holder::read(&path), None, "{other:?}");
        }
    }
}
