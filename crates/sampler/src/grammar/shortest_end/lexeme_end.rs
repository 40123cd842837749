//! Searches the shortest text that ends a lexeme.
//!
//! A breadth-first search finds the exact end if it is near. For far ends, a beam search follows
//! few bytes at each level, and the lexer caches the states on the path to the end. Strings of
//! thousands of characters would take too many states otherwise.

use std::collections::{HashMap, HashSet};

use llguidance::earley::regexvec::StateID;

use super::lexer::Lexer;
use super::rules::INFINITE_COST;

/// Maximum number of states that the exact search visits.
const NEAR_STATES: usize = 1_000;
/// Maximum number of states that the beam search finds.
const FAR_STATES: usize = 36_000;
/// Maximum number of bytes of a lexeme's end.
pub const MAX_STRING_BYTES: usize = 32_768;
/// Maximum number of states in one level of the beam search.
const LEVEL_STATES: usize = 16;
/// Bytes that the beam search tries first: ends of strings and of unquoted texts, and plain
/// characters.
const FAR_BYTES: [u8; 8] = *b"\"a<\n0A [";

/// End of a lexeme.
#[derive(Debug, Clone)]
pub struct LexemeEnd {
    /// Bytes of this end and of the shortest rest of the text behind it.
    pub cost: u64,
    /// Bytes of this end.
    pub bytes: Vec<u8>,
    /// Lexemes that end there.
    pub lexemes: Vec<u32>,
}

/// Ends found by the beam search, by the states on the path to them.
#[derive(Debug, Clone, Default)]
pub struct EndCache {
    states: HashMap<StateID, Waypoint>,
    /// Lexemes of each end.
    lexemes: Vec<Vec<u32>>,
}

impl EndCache {
    /// Adds the states of a path that ends `rest` bytes before the end.
    fn add(&mut self, path: &[(StateID, u8)], rest: u64, end: usize) {
        for (behind, (state, byte)) in (1..).zip(path.iter().rev()) {
            self.states.insert(*state, Waypoint { distance: rest + behind, byte: *byte, end });
        }
    }
}

/// A state on the path to a cached end.
#[derive(Debug, Clone, Copy)]
struct Waypoint {
    /// Bytes to the end.
    distance: u64,
    /// First of these bytes. Unused if the distance is 0.
    byte: u8,
    /// Index of the end.
    end: usize,
}

/// States in the order of discovery, each with its predecessor and the byte that led to it.
struct VisitedStates {
    states: Vec<(StateID, usize, u8)>,
    seen: HashSet<StateID>,
}

impl VisitedStates {
    fn new(from: StateID) -> Self {
        Self { states: vec![(from, 0, 0)], seen: HashSet::from([from]) }
    }

    fn add(&mut self, state: StateID, before: usize, byte: u8) -> bool {
        let is_new = self.seen.insert(state);
        if is_new {
            self.states.push((state, before, byte));
        }
        is_new
    }

    /// States and bytes on the path from the first state to state `at`.
    fn path_to(&self, mut at: usize) -> Vec<(StateID, u8)> {
        let mut path = Vec::new();
        while at > 0 {
            let (_, before, byte) = self.states[at];
            path.push((self.states[before].0, byte));
            at = before;
        }
        path.reverse();
        path
    }
}

/// Cheapest end that a search has found: state before the last byte, that byte, and the rest.
struct BestEnd {
    cost: u64,
    at: usize,
    last: Option<u8>,
    /// Lexemes that end here, or the state from which a cached end continues.
    rest: Result<Vec<u32>, StateID>,
}

impl Lexer {
    /// Searches the cheapest end of the lexeme in state `from`. `has_begun`: the lexeme has at
    /// least one byte, without which it may not end. `cost_behind` returns the cost of the rest of
    /// the text behind some lexemes.
    pub fn lexeme_end(
        &mut self,
        from: StateID,
        has_begun: bool,
        mut cost_behind: impl FnMut(&[u32]) -> u64,
    ) -> Option<LexemeEnd> {
        if has_begun && let Some(cost) = self.cached_cost(from, &mut cost_behind) {
            let (bytes, lexemes) = self.cached_end(from);
            return Some(LexemeEnd { cost, bytes, lexemes });
        }
        match self.near_end(from, has_begun, &mut cost_behind) {
            (Some(ending), _) => Some(ending),
            (None, true) => None,
            (None, false) => self.far_end(from, has_begun, &mut cost_behind),
        }
    }

    /// Exact search. Also returns whether it has visited all reachable states.
    fn near_end(
        &mut self,
        from: StateID,
        has_begun: bool,
        cost_behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> (Option<LexemeEnd>, bool) {
        let mut found = VisitedStates::new(from);
        let mut distances = vec![0_u64];
        let mut best: Option<BestEnd> = None;
        let mut offer =
            |cost: u64, at: usize, last: Option<u8>, rest: Result<Vec<u32>, StateID>| {
                if cost != INFINITE_COST && best.as_ref().is_none_or(|best| cost < best.cost) {
                    best = Some(BestEnd { cost, at, last, rest });
                }
                best.as_ref().map_or(INFINITE_COST, |best| best.cost)
            };
        // If most of the lexer's work budget is used, near ends may use another eighth.
        let eighths = if self.is_nearly_exhausted() { 7 } else { 6 };
        let (mut at, mut min) = (0, INFINITE_COST);
        while let Some(&(state, ..)) = found.states.get(at) {
            let distance = distances[at];
            if distance >= min || at >= NEAR_STATES || self.has_used(eighths) {
                break;
            }
            if at > 0 || has_begun {
                let lexemes = self.ended(state);
                let cost = if lexemes.is_empty() { INFINITE_COST } else { cost_behind(&lexemes) };
                min = offer(cost.saturating_add(distance), at, None, Ok(lexemes));
            }
            for byte in self.bytes_from(state) {
                let next = self.follow(state, byte);
                if let Some(lexemes) = self.ended_with(next) {
                    let cost = cost_behind(&lexemes).saturating_add(distance + 1);
                    min = offer(cost, at, Some(byte), Ok(lexemes));
                } else if let Some(cost) = self.cached_cost(next, cost_behind) {
                    min = offer(cost.saturating_add(distance + 1), at, Some(byte), Err(next));
                } else if !next.is_dead() && found.add(next, at, byte) {
                    distances.push(distance + 1);
                }
            }
            at += 1;
        }
        let is_whole = at >= found.states.len();
        let Some(best) = best else { return (None, is_whole) };
        let mut bytes: Vec<u8> = found.path_to(best.at).into_iter().map(|(_, byte)| byte).collect();
        bytes.extend(best.last);
        let lexemes = best.rest.unwrap_or_else(|state| {
            let (rest, lexemes) = self.cached_end(state);
            bytes.extend(rest);
            lexemes
        });
        (Some(LexemeEnd { cost: best.cost, bytes, lexemes }), is_whole)
    }

    /// One byte of each byte class that may follow in a state.
    fn bytes_from(&mut self, state: StateID) -> Vec<u8> {
        self.forced_byte(state).map_or_else(|| self.bytes.clone(), |byte| vec![byte])
    }

    /// Beam search: level by level, with few states in each.
    fn far_end(
        &mut self,
        from: StateID,
        has_begun: bool,
        cost_behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> Option<LexemeEnd> {
        let mut found = VisitedStates::new(from);
        let mut level = 0..1;
        for _ in 0..=MAX_STRING_BYTES {
            // A lexer that exceeds its limits fails for the whole text.
            if level.is_empty() || found.states.len() > FAR_STATES || self.is_nearly_exhausted() {
                return None;
            }
            let begin = found.states.len();
            for at in level {
                let state = found.states[at].0;
                let ended = if at > 0 || has_begun { self.ended(state) } else { Vec::new() };
                if !ended.is_empty() && cost_behind(&ended) != INFINITE_COST {
                    return Some(self.cache_end(&found, at, None, ended, cost_behind));
                }
                let forced = self.forced_byte(state);
                let few = forced.map_or(FAR_BYTES.to_vec(), |byte| vec![byte]);
                let before = found.states.len();
                for (number, byte) in few.iter().chain(&self.bytes.clone()).copied().enumerate() {
                    // All other bytes are tried only if the preferred ones lead nowhere.
                    let is_led_on = number == few.len() && found.states.len() > before;
                    if is_led_on || found.states.len() - begin >= LEVEL_STATES {
                        break;
                    }
                    let next = self.follow(state, byte);
                    match self.ended_with(next) {
                        Some(ended) if cost_behind(&ended) != INFINITE_COST => {
                            return Some(self.cache_end(
                                &found,
                                at,
                                Some(byte),
                                ended,
                                cost_behind,
                            ));
                        }
                        None if self.cached_cost(next, cost_behind).is_some() => {
                            return Some(self.cache_path_to_cached(
                                &found,
                                at,
                                byte,
                                next,
                                cost_behind,
                            ));
                        }
                        None if !next.is_dead() => {
                            found.add(next, at, byte);
                        }
                        _ => {}
                    }
                }
            }
            level = begin..found.states.len();
        }
        None
    }

    /// Caches the path to an end: to state `at`, and then by the byte `last`, if any.
    fn cache_end(
        &mut self,
        found: &VisitedStates,
        at: usize,
        last: Option<u8>,
        lexemes: Vec<u32>,
        cost_behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> LexemeEnd {
        let mut path = found.path_to(at);
        path.extend(last.map(|byte| (found.states[at].0, byte)));
        let end = self.end_cache.lexemes.len();
        if last.is_none() {
            let here = Waypoint { distance: 0, byte: 0, end };
            self.end_cache.states.insert(found.states[at].0, here);
        }
        self.end_cache.add(&path, 0, end);
        self.end_cache.lexemes.push(lexemes.clone());
        let cost = cost_behind(&lexemes).saturating_add(path.len() as u64);
        LexemeEnd { cost, bytes: path.into_iter().map(|(_, byte)| byte).collect(), lexemes }
    }

    /// Caches the path to a state that has a cached end.
    fn cache_path_to_cached(
        &mut self,
        found: &VisitedStates,
        at: usize,
        byte: u8,
        to: StateID,
        cost_behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> LexemeEnd {
        let mut path = found.path_to(at);
        path.push((found.states[at].0, byte));
        let cost = self
            .cached_cost(to, cost_behind)
            .unwrap_or(INFINITE_COST)
            .saturating_add(path.len() as u64);
        if let Some(waypoint) = self.end_cache.states.get(&to).copied() {
            self.end_cache.add(&path, waypoint.distance, waypoint.end);
        }
        let (rest, lexemes) = self.cached_end(to);
        let bytes = path.into_iter().map(|(_, byte)| byte).chain(rest).collect();
        LexemeEnd { cost, bytes, lexemes }
    }

    /// Cost of the cached end of a state, if an end that may follow here is cached.
    fn cached_cost(
        &self,
        state: StateID,
        cost_behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> Option<u64> {
        let waypoint = self.end_cache.states.get(&state)?;
        let cost = cost_behind(&self.end_cache.lexemes[waypoint.end]);
        (cost != INFINITE_COST).then(|| cost.saturating_add(waypoint.distance))
    }

    /// Bytes and lexemes of the cached end of a state.
    fn cached_end(&mut self, mut state: StateID) -> (Vec<u8>, Vec<u32>) {
        let mut bytes = Vec::new();
        let mut end = None;
        while let Some(waypoint) = self.end_cache.states.get(&state).copied() {
            end = Some(waypoint.end);
            if waypoint.distance == 0 {
                break;
            }
            bytes.push(waypoint.byte);
            if waypoint.distance == 1 {
                break;
            }
            state = self.follow(state, waypoint.byte);
        }
        let lexemes = end.map_or_else(Vec::new, |end| self.end_cache.lexemes[end].clone());
        (bytes, lexemes)
    }
}
