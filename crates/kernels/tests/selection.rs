//! The list of levels, and the error for a missing level.

use puna_kernels::{best, level, levels};

#[test]
fn an_unavailable_level_is_refused_with_the_available_ones() {
    let error = level("quantum").unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("this machine has no kernel level `quantum`; it has portable"),
        "{text}"
    );
    assert_eq!(level("portable").unwrap().name, "portable");
}

/// Fails if a level is missing that the environment requires, as it does under an emulator.
#[test]
fn the_levels_that_the_environment_promises_run_here() {
    for name in std::env::var("PUNA_TEST_LEVELS").iter().flat_map(|names| names.split(',')) {
        assert!(level(name).is_ok(), "{}", level(name).unwrap_err());
    }
}

#[test]
fn names_are_distinct_and_portable_comes_first() {
    let mut names: Vec<_> = levels().iter().map(|level| level.name).collect();
    assert_eq!(names[0], "portable");
    assert_eq!(best().name, *names.last().unwrap());
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), levels().len());
}
