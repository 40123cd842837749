//! Tests a grammar's expressions before `llguidance` uses them.
//!
//! The library limits the work of deciding whether an expression matches anything, and of every
//! step. It does not limit the search for bytes that an expression may start with. This module runs
//! that search with a limit, and rejects expressions that exceed it.

use std::panic::AssertUnwindSafe;

use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;

use super::library_error::{limit_message, reason};
use super::{Cancellation, GrammarError};

/// Work budget for all first bytes; about half a second.
const FUEL: u64 = 4_000_000;

/// Parses a constraint to rules and expressions. `own` as in [`reason`].
///
/// # Errors
/// A sentence about the error in the constraint.
pub fn load(
    factory: &ParserFactory,
    source: TopLevelGrammar,
    own: bool,
) -> Result<(Grammar, LexerSpec), String> {
    let (env, limits) = (factory.tok_env().clone(), factory.limits().clone());
    let read = AssertUnwindSafe(|| GrammarInit::Serialized(source).to_internal(Some(env), limits));
    catch_unwind(read).map_err(|error| reason(&error, own))
}

/// Computes the bytes that expressions may start with.
///
/// # Errors
/// [`GrammarError::TooComplex`] or [`GrammarError::Cancelled`]
pub fn check_first_bytes(
    factory: &ParserFactory,
    expressions: &LexerSpec,
    cancellation: &Cancellation<'_>,
) -> Result<(), GrammarError> {
    let mut expressions = expressions.clone();
    expressions.add_extra_lexemes(&factory.extra_lexemes());
    let mut limits = factory.limits().clone();
    // The library reports this error when it compiles the grammar.
    let Ok(mut states) = expressions.to_regex_vec(&mut limits) else { return Ok(()) };
    states.set_fuel(FUEL);
    let start = states.initial_state(&expressions.all_lexemes());
    for byte in 0..=u8::MAX {
        cancellation.check()?;
        states.transition(start, byte);
        if let Some(error) = states.get_error() {
            return Err(GrammarError::TooComplex(limit_message(&error).into()));
        }
    }
    Ok(())
}
