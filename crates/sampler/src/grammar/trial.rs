//! A trial of a grammar's expressions before `llguidance` begins with them.
//!
//! The library bounds the work of finding whether an expression has a text at all, and of every step, but not that of the
//! first byte: where it looks which bytes an expression may begin with, it searches without an end. Here the same is done
//! within its bounds, and what cannot be done is never given to it.

use std::panic::AssertUnwindSafe;

use llguidance::ParserFactory;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;

use super::GrammarError;
use super::reason::{excess, reason};

/// Work for all first bytes together; about half a second.
const FUEL: u64 = 4_000_000;

/// The library's reading of a constraint: rules and expressions. `own` as for [`reason`].
///
/// # Errors
/// What is wrong with the constraint.
pub fn parts(
    factory: &ParserFactory,
    source: TopLevelGrammar,
    own: bool,
) -> Result<(Grammar, LexerSpec), String> {
    let (env, limits) = (factory.tok_env().clone(), factory.limits().clone());
    let read = AssertUnwindSafe(|| GrammarInit::Serialized(source).to_internal(Some(env), limits));
    catch_unwind(read).map_err(|error| reason(&error, own))
}

/// Looks at what expressions may begin with.
///
/// # Errors
/// [`GrammarError::TooHard`]
pub fn begins_soon(factory: &ParserFactory, expressions: &LexerSpec) -> Result<(), GrammarError> {
    let mut expressions = expressions.clone();
    expressions.add_extra_lexemes(&factory.extra_lexemes());
    let mut limits = factory.limits().clone();
    // What fails here fails there in the same way, and is told there.
    let Ok(mut states) = expressions.to_regex_vec(&mut limits) else { return Ok(()) };
    states.set_fuel(FUEL);
    let start = states.initial_state(&expressions.all_lexemes());
    for byte in 0..=u8::MAX {
        states.transition(start, byte);
        if let Some(error) = states.get_error() {
            return Err(GrammarError::TooHard(excess(&error).into()));
        }
    }
    Ok(())
}
