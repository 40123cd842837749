//! Switch of the sandbox.

/// Which restrictions runners and file workers apply to themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SandboxMode {
    /// Each restriction that the system offers.
    #[default]
    Auto,
    /// No restriction. The processes still start with a short environment.
    Off,
    /// All restrictions. Without Landlock or seccomp, the processes refuse to work.
    Required,
}

impl SandboxMode {
    /// All modes with their names in settings.
    const NAMES: [(&str, Self); 3] =
        [("auto", Self::Auto), ("off", Self::Off), ("required", Self::Required)];

    /// Returns the mode with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, mode)| *mode)
    }

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Required => "required",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_found_by_its_name() {
        for (name, mode) in SandboxMode::NAMES {
            assert_eq!((SandboxMode::from_name(name), mode.name()), (Some(mode), name));
        }
        assert_eq!(SandboxMode::from_name("on"), None);
    }
}
