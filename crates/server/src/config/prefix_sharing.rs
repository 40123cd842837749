//! Which requests share cached prefixes.

use super::effective::{quoted, shown_text};
use super::reader::SettingsReader;

/// Which requests find each other's prefixes in the cache of a model. A request that finds a prefix
/// is answered sooner and reports it, so its sender learns that somebody has sent the same text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PrefixSharing {
    /// Requests with one API key, or from one address without keys.
    #[default]
    Key,
    /// Requests with keys of one group.
    Group,
    /// All requests.
    All,
}

impl PrefixSharing {
    const ALL: [(&str, Self); 3] = [("key", Self::Key), ("group", Self::Group), ("all", Self::All)];

    /// Reads the setting `prefix_sharing`.
    pub(super) fn read(read: &mut SettingsReader<'_>) -> Self {
        let parse = |text: &str| {
            let found = Self::ALL.iter().find(|(name, _)| *name == text);
            let error = || format!("is {}: it must be key, group or all", shown_text(text));
            found.map(|(_, sharing)| *sharing).ok_or_else(error)
        };
        let show = |sharing: &Self| {
            Self::ALL.iter().find(|(_, one)| one == sharing).map(|(name, _)| quoted(name))
        };
        read.strict("prefix_sharing", Self::default(), parse, show)
    }
}
