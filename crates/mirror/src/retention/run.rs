//! Executes retention.

use super::plan::{Plan, Removal, plan};
use super::rule::Rule;
use crate::blocking::blocking;
use crate::error::MirrorError;
use crate::retention::usage_log::UsageLog;
use crate::storage::{InventoryScope, Storage};

/// Number of tags and manifests that are removed together. The usage log is read again before each
/// batch, so that recent pulls on other mirrors count.
const BATCH_SIZE: usize = 500;

/// Result of a retention run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Removed tags and manifests, or in a dry run those that would be removed.
    pub removals: Vec<Removal>,
    /// Number of models that a rule matches but keeps, because no mirror has fetched or received
    /// them.
    pub kept_local_models: usize,
    /// Removals that failed, with the error.
    pub failed: Vec<String>,
}

impl RetentionReport {
    /// Bytes of blobs that became unreferenced.
    pub fn bytes(&self) -> u64 {
        self.removals.iter().fold(0, |sum, removal| sum.saturating_add(removal.bytes))
    }
}

/// Removes everything that no rule keeps in matching repositories; a dry run only reports it.
/// Several mirrors may run this at once: each item is removed once, and items that changed
/// meanwhile stay. Usage records of missing items are removed, whatever the rules.
///
/// # Errors
/// The storage or the usage notes cannot be read or written. A failed removal is no error.
pub async fn apply_retention(
    storage: &Storage,
    usage_log: &UsageLog,
    rules: &[Rule],
    dry_run: bool,
) -> Result<RetentionReport, MirrorError> {
    let started_at = usage_log.now();
    // Tags are read before manifests. A manifest that is tagged in between counts as new.
    let tag_entries = storage.inventory.tag_entries().await?;
    let stored_objects = storage.inventory.stored_objects(InventoryScope::All).await?;
    usage_log.read_other_notes(storage.inventory.usage_notes()).await?;
    let (rules, log) = (rules.to_vec(), usage_log.clone());
    let planned = blocking(move || {
        let plan = plan(&rules, &tag_entries, &stored_objects, started_at, &|name, tag, digest| {
            log.times(name, tag, digest)
        });
        Ok((plan, tag_entries, stored_objects))
    });
    let (Plan { removals, kept_local_models }, tag_entries, stored_objects) = planned.await?;
    let mut report = RetentionReport { kept_local_models, ..RetentionReport::default() };
    if dry_run {
        report.removals = removals;
        return Ok(report);
    }
    for batch in batches(removals) {
        remove_batch(storage, usage_log, batch, &mut report).await?;
    }
    usage_log.forget_missing(tag_entries, stored_objects).await?;
    usage_log.write_and_merge_notes(storage.inventory.usage_notes()).await?;
    Ok(report)
}

/// Splits removals into batches. A repository is never split, because its remaining tags decide
/// which manifests are removed.
fn batches(removals: Vec<Removal>) -> Vec<Vec<Removal>> {
    let mut batches: Vec<Vec<Removal>> = Vec::new();
    for removal in removals {
        let fits = |batch: &&mut Vec<Removal>| {
            batch.len() < BATCH_SIZE || batch.last().is_some_and(|last| last.name == removal.name)
        };
        match batches.last_mut().filter(fits) {
            Some(batch) => batch.push(removal),
            None => batches.push(vec![removal]),
        }
    }
    batches
}

/// Removes the items of a batch that no mirror has used since they were planned.
pub(super) async fn remove_batch(
    storage: &Storage,
    usage_log: &UsageLog,
    mut batch: Vec<Removal>,
    report: &mut RetentionReport,
) -> Result<(), MirrorError> {
    usage_log.read_other_notes(storage.inventory.usage_notes()).await?;
    batch.retain(|removal| {
        usage_log.times(&removal.name, removal.tag.as_deref(), removal.digest).last_used
            <= removal.last_used
    });
    let conditional = batch.iter().map(Removal::to_conditional).collect();
    let done = match storage.manifests.remove_unchanged(conditional).await {
        Ok(done) => done,
        Err(error) => vec![Err(error); batch.len()],
    };
    for (removal, done) in batch.into_iter().zip(done) {
        let Removal { name, tag, digest, reason, bytes, .. } = &removal;
        match done {
            Ok(true) => {
                tracing::info!(repository = %name, tag = tag.as_deref(), %digest, %reason, bytes, "removed manifest by mirror.retention");
                report.removals.push(removal);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(repository = %name, tag = tag.as_deref(), %error, "cannot remove manifest by mirror.retention");
                report.failed.push(format!("{name}: {error}"));
            }
        }
    }
    Ok(())
}
