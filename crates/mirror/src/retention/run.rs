//! Removes what no rule keeps.

use super::plan::{Plan, Removal, plan};
use super::rule::Rule;
use crate::error::MirrorError;
use crate::history::History;
use crate::library::Library;
use crate::waiting::blocking;

/// So many tags and manifests are removed together: what is known of their use is no older than that takes.
const PART: usize = 500;

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
/// may do so at once: each thing is removed once, and none that came or moved meanwhile. What is remembered of things that are gone is
/// forgotten, whatever the rules.
///
/// # Errors
/// The library or the notes beside it cannot be read or written. What cannot be removed is none.
pub async fn retain(
    library: &dyn Library,
    history: &History,
    rules: &[Rule],
    dry_run: bool,
) -> Result<Retained, MirrorError> {
    let begun = history.now();
    // Tags first: a manifest that gets its tag between the two has just come.
    let (shown, holdings) = (library.shown().await?, library.holdings().await?);
    history.learn(library.notes()).await?;
    let (rules, asked) = (rules.to_vec(), history.clone());
    let judged = blocking(move || {
        let plan = plan(&rules, &shown, &holdings, begun, &|name, tag, digest| {
            asked.times(name, tag, digest)
        });
        Ok((plan, shown, holdings))
    });
    let (Plan { removals, own }, shown, holdings) = judged.await?;
    let mut retained = Retained { own, ..Retained::default() };
    if dry_run {
        retained.removals = removals;
        return Ok(retained);
    }
    for part in parts(removals) {
        remove(library, history, part, &mut retained).await?;
    }
    history.forget(shown, holdings).await?;
    history.gather(library.notes()).await?;
    Ok(retained)
}

/// So many at once, and all of a repository: what is left of it decides which manifests go.
fn parts(removals: Vec<Removal>) -> Vec<Vec<Removal>> {
    let mut parts: Vec<Vec<Removal>> = Vec::new();
    for removal in removals {
        let fits = |part: &&mut Vec<Removal>| {
            part.len() < PART || part.last().is_some_and(|last| last.name == removal.name)
        };
        match parts.last_mut().filter(fits) {
            Some(part) => part.push(removal),
            None => parts.push(vec![removal]),
        }
    }
    parts
}

/// Removes what nobody has used since it was judged, as far as others have noted it by now.
pub(super) async fn remove(
    library: &dyn Library,
    history: &History,
    mut part: Vec<Removal>,
    retained: &mut Retained,
) -> Result<(), MirrorError> {
    history.learn(library.notes()).await?;
    part.retain(|removal| {
        history.times(&removal.name, removal.tag.as_deref(), removal.digest).used <= removal.used
    });
    let done = match library.retire(part.iter().map(Removal::doomed).collect()).await {
        Ok(done) => done,
        Err(error) => vec![Err(error); part.len()],
    };
    for (removal, done) in part.into_iter().zip(done) {
        let Removal { name, tag, digest, reason, bytes, .. } = &removal;
        match done {
            Ok(true) => {
                tracing::info!(repository = %name, tag = tag.as_deref(), %digest, %reason, bytes, "removed by mirror.retention");
                retained.removals.push(removal);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(repository = %name, tag = tag.as_deref(), %error, "cannot be removed");
                retained.failed.push(format!("{name}: {error}"));
            }
        }
    }
    Ok(())
}
