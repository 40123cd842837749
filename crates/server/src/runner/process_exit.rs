//! Describes how a child process ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::protocol::is_out_of_memory;
use crate::model_scheduler::RunnerExit;

/// Describes an exit by its status and the last line of the log.
pub(crate) fn describe_exit(status: io::Result<ExitStatus>, last_line: &str) -> RunnerExit {
    let exit_description = match status {
        Err(e) => format!("cannot read its exit status: {e}"),
        Ok(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("signal: {}", signal_name(signal)),
            (_, code) => format!("exit status {}", code.unwrap_or(-1)),
        },
    };
    let reason = if last_line.is_empty() {
        exit_description
    } else {
        format!("{exit_description}: {last_line}")
    };
    let out_of_memory = is_out_of_memory(last_line);
    RunnerExit { reason, out_of_memory, is_invalid_model: false }
}

/// Whether a trimmed line belongs to a backtrace of Rust: its heading, a frame, the source of a
/// frame, or the hint about `RUST_BACKTRACE`.
pub(crate) fn is_backtrace_line(line: &str) -> bool {
    let is_frame = || {
        let number = line.split_once(": ").map_or("", |(number, _)| number);
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_hint = || line.starts_with("note: ") && line.contains("`RUST_BACKTRACE");
    line == "stack backtrace:" || line.starts_with("at ") || is_frame() || is_hint()
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error (the model file may have been truncated while in use)",
        8 => "arithmetic exception",
        9 => "killed (by a user, or by the system for lack of memory)",
        11 => "segmentation fault",
        15 => "terminated",
        _ => return signal.to_string(),
    };
    format!("{signal}, {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_no_lines_of_a_backtrace() {
        for cause in ["note: out of memory", "model: 12 of 13", ": x", "atlas", "12 of 13: gone"] {
            assert!(!is_backtrace_line(cause), "{cause}");
        }
    }

    #[test]
    fn exits_are_described_with_the_last_line_of_the_log() {
        let exit = |raw, last_line_text: &str| {
            describe_exit(Ok(ExitStatus::from_raw(raw)), last_line_text)
        };
        assert_eq!(exit(11, "").reason, "signal: 11, segmentation fault");
        assert_eq!(exit(101 << 8, "panicked at x").reason, "exit status 101: panicked at x");
        assert!(exit(6, "memory allocation of 99999 bytes failed").out_of_memory);
        assert!(!exit(9, "").out_of_memory);
        assert!(exit(101 << 8, "no memory for a buffer of 9999999999 elements").out_of_memory);
    }
}
