//! Checks that the engine, the import of safetensors folders and the manual list the same
//! architectures.

use std::collections::{BTreeMap, BTreeSet};

/// Architectures of the engine without import from safetensors folders, each with the reason.
const WITHOUT_FOLDERS: &[(&str, &str)] = &[
    ("pockettts", "made of sound: nobody asks it for text"),
    ("qwen3tts", "made of sound: nobody asks it for text"),
    ("wavtokenizer-dec", "made of sound: nobody asks it for text"),
];

#[test]
fn safetensors_import_covers_the_engine_architectures() {
    let known: BTreeSet<&str> = puna_models::known_architectures().into_iter().collect();
    let imported = puna_convert::supported_architectures();
    let reasons: BTreeMap<&str, &str> = WITHOUT_FOLDERS.iter().copied().collect();
    assert!(reasons.values().all(|reason| !reason.is_empty()));
    let missing: BTreeSet<&str> = known.difference(&imported).copied().collect();
    assert_eq!(missing, reasons.keys().copied().collect(), "architectures without an importer");
    // An imported file without a supporting engine would be useless.
    let unread: Vec<&&str> = imported.difference(&known).collect();
    assert!(unread.is_empty(), "{unread:?}");
}

#[test]
fn the_manual_names_every_architecture_and_no_other() {
    let mut known: BTreeSet<&str> = puna_models::known_architectures().into_iter().collect();
    known.extend(puna_models::known_companions());
    let text = include_str!("../../../docs/reference/models.md");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let named: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split(['`', ',', ';', ' ']))
        .filter(|name| !name.is_empty())
        .collect();
    assert_eq!(named, known);
}

#[test]
fn store_and_models_agree_on_draft_and_audio_architectures() {
    assert_eq!(puna_models::known_companions(), puna_store::GgufInfo::DRAFT_ARCHITECTURES);
    let known = puna_models::known_architectures();
    assert!(puna_store::GgufInfo::AUDIO_ARCHITECTURES.iter().all(|name| known.contains(name)));
}
