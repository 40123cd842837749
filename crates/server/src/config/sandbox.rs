//! The setting `sandbox`.

use super::effective::quoted;
use super::reader::SettingsReader;
use crate::runner::sandbox::SandboxMode;

/// Reads the setting.
pub(super) fn read(read: &mut SettingsReader<'_>) -> SandboxMode {
    let parse = |text: &str| {
        let error = || format!("is {text:?}: it must be auto, off or required");
        SandboxMode::from_name(text).ok_or_else(error)
    };
    read.strict("sandbox", SandboxMode::default(), parse, |mode| Some(quoted(mode.name())))
}
