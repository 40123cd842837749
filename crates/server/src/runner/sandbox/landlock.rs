//! Landlock rules: files that the process may read. Everything else on the file system, TCP, and
//! signals to other processes are denied.

use std::path::PathBuf;

use ::landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::files::{SYSTEM_PATHS, existing_files_with_parts};

/// Version of Landlock with the rules that the process requests (Linux 6.12). An older kernel
/// applies those that it knows.
const REQUESTED_ABI: ABI = ABI::V6;

/// Lets this thread, and the threads that it starts later, read only `files`, all parts of split
/// models among them, `folders`, and the system files. Returns the open system files: a rule for an
/// entry of `/proc` lasts only while the entry is in use.
pub(super) fn restrict(
    files: &[PathBuf],
    folders: &[PathBuf],
) -> (Vec<PathFd>, Result<(), String>) {
    let open = |path: PathBuf| PathFd::new(path).ok();
    let files: Vec<PathFd> =
        existing_files_with_parts(files).into_iter().filter_map(open).collect();
    let time_zones = std::env::var_os("TZDIR").map(PathBuf::from);
    let system = SYSTEM_PATHS.iter().map(PathBuf::from).chain(time_zones);
    // A rule for a folder needs another set of rights than one for a file.
    let (system_folders, system_files): (Vec<_>, Vec<_>) = system.partition(|path| path.is_dir());
    let folders = folders.iter().filter(|path| path.is_dir()).cloned();
    let folders: Vec<PathFd> = folders.chain(system_folders).filter_map(open).collect();
    let system_files: Vec<PathFd> = system_files.into_iter().filter_map(open).collect();
    let result = apply(files.iter().chain(&system_files), &folders);
    // Model files stay usable without their open paths, since the file system is still mounted.
    (system_files, result)
}

fn apply<'a>(files: impl Iterator<Item = &'a PathFd>, folders: &'a [PathFd]) -> Result<(), String> {
    let read_folder = AccessFs::ReadFile | AccessFs::ReadDir;
    let rules = files
        .map(|file| PathBeneath::new(file, AccessFs::ReadFile))
        .map(Ok::<_, RulesetError>)
        .chain(folders.iter().map(|folder| Ok(PathBeneath::new(folder, read_folder))));
    let restrict = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(REQUESTED_ABI))?
            .handle_access(AccessNet::from_all(REQUESTED_ABI))?
            .scope(Scope::from_all(REQUESTED_ABI))?
            .create()?
            .add_rules(rules)?
            .restrict_self()
    };
    match restrict().map_err(|error: RulesetError| error.to_string())?.ruleset {
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        RulesetStatus::NotEnforced => Err("the kernel does not offer it".to_owned()),
    }
}
