//! Removes what no rule keeps.

use super::plan::{Plan, Removal, plan};
use super::rule::Rule;
use crate::error::MirrorError;
use crate::history::History;
use crate::library::Library;

/// What was removed, or would be.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Tags and manifests.
    pub removals: Vec<Removal>,
    /// Models that rules speak of and that stay, since no mirror has brought them.
    pub own: usize,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

impl Retained {
    /// Bytes of blobs that nothing needs any more.
    pub fn bytes(&self) -> u64 {
        self.removals.iter().fold(0, |sum, removal| sum.saturating_add(removal.bytes))
    }
}

/// Removes what no rule keeps of the repositories that rules speak of; or only says what that would be. Any number of mirrors
/// may do so at once: each thing is removed once, and none that came or moved meanwhile.
///
/// # Errors
/// The library or the notes beside it cannot be read or written. What cannot be removed is none.
pub async fn retain(
    library: &dyn Library,
    history: &History,
    rules: &[Rule],
    dry_run: bool,
) -> Result<Retained, MirrorError> {
    let mut retained = Retained::default();
    if rules.is_empty() {
        return Ok(retained);
    }
    history.learn(library.notes()).await?;
    let begun = history.now();
    // Tags first: a manifest that gets its tag between the two has just come.
    let (shown, holdings) = (library.shown().await?, library.holdings().await?);
    let Plan { removals, own } =
        plan(rules, &shown, &holdings, begun, &|name, tag, digest| history.times(name, tag, digest));
    retained.own = own;
    if dry_run {
        retained.removals = removals;
        return Ok(retained);
    }
    for removal in removals {
        let times = history.times(&removal.name, removal.tag.as_deref(), removal.digest);
        if times.used >= begun {
            continue;
        }
        match remove(library, &removal).await {
            Ok(true) => {
                let Removal { name, tag, digest, reason, bytes, .. } = &removal;
                tracing::info!(repository = %name, tag = tag.as_deref(), %digest, %reason, bytes, "removed by mirror.retention");
                retained.removals.push(removal);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(repository = %removal.name, tag = removal.tag.as_deref(), %error, "cannot be removed");
                retained.failed.push(format!("{}: {error}", removal.name));
            }
        }
    }
    history.forget(&shown, &holdings);
    history.gather(library.notes()).await?;
    Ok(retained)
}

/// Removes a tag, and its manifest where nothing else stands for it.
async fn remove(library: &dyn Library, removal: &Removal) -> Result<bool, MirrorError> {
    let Removal { name, tag, digest, is_last, .. } = removal;
    let mut removed = false;
    if let Some(tag) = tag {
        removed = library.retire(name, Some(tag), *digest).await?;
        if !removed {
            return Ok(false);
        }
    }
    if *is_last {
        removed |= library.retire(name, None, *digest).await?;
    }
    Ok(removed)
}
