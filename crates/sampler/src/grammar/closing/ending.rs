//! The shortest text that ends a lexeme.
//!
//! A breadth-first search finds the exact end where it is near. Behind that, a second search follows few bytes at each
//! level, and the lexer remembers the states on the way to the end that it finds: strings of thousands of characters
//! would take too many states otherwise.

use std::collections::{HashMap, HashSet};

use llguidance::earley::regexvec::StateID;

use super::lexer::Lexer;
use super::rules::ENDLESS;

/// States that the exact search looks at.
const NEAR_STATES: usize = 1_000;
/// States that the second search finds at most.
const FAR_STATES: usize = 36_000;
/// Bytes of one lexeme's end at most.
pub const STRING_BYTES_MAX: usize = 32_768;
/// States of one level of the second search at most.
const LEVEL_STATES: usize = 16;
/// Bytes that the second search follows where they lead on: ends of strings and of bare texts, and plain characters.
const FAR_BYTES: [u8; 8] = *b"\"a<\n0A [";

/// The end of a lexeme.
#[derive(Debug, Clone)]
pub struct Ending {
    /// Bytes of the end and of all that comes behind it.
    pub cost: u64,
    /// The bytes of the end.
    pub bytes: Vec<u8>,
    /// The lexemes that end there.
    pub lexemes: Vec<u32>,
}

/// Ends that the second search has found, by the states on the way.
#[derive(Debug, Clone, Default)]
pub struct LongEndings {
    states: HashMap<StateID, Waypoint>,
    /// The lexemes of each end.
    lexemes: Vec<Vec<u32>>,
}

impl LongEndings {
    /// Adds the states of a way, behind which the end is `rest` bytes away.
    fn add(&mut self, way: &[(StateID, u8)], rest: u64, end: usize) {
        for (behind, (state, byte)) in (1..).zip(way.iter().rev()) {
            self.states.insert(*state, Waypoint { distance: rest + behind, byte: *byte, end });
        }
    }
}

/// A state on the way to an end.
#[derive(Debug, Clone, Copy)]
struct Waypoint {
    /// Bytes up to the end.
    distance: u64,
    /// The first of them, unless the end is here.
    byte: u8,
    /// The number of the end.
    end: usize,
}

/// States in the order in which a search found them: each with the one before it and the byte that led to it.
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

    /// The states and the bytes from the first state to one of them.
    fn way(&self, mut at: usize) -> Vec<(StateID, u8)> {
        let mut way = Vec::new();
        while at > 0 {
            let (_, before, byte) = self.states[at];
            way.push((self.states[before].0, byte));
            at = before;
        }
        way.reverse();
        way
    }
}

/// The cheapest end that a search has found: the state before its last byte, that byte, and what follows it.
struct Best {
    cost: u64,
    at: usize,
    last: Option<u8>,
    /// The lexemes that end, or the state from which the rest is remembered.
    rest: Result<Vec<u32>, StateID>,
}

impl Lexer {
    /// Looks for the cheapest end of the lexeme that has come to `from`. `begun`: it has a byte already, without which none
    /// may end. `behind` tells the cost of what comes behind some lexemes.
    pub fn ending(
        &mut self,
        from: StateID,
        begun: bool,
        mut behind: impl FnMut(&[u32]) -> u64,
    ) -> Option<Ending> {
        if begun && let Some(cost) = self.remembered_cost(from, &mut behind) {
            let (bytes, lexemes) = self.remembered(from);
            return Some(Ending { cost, bytes, lexemes });
        }
        match self.near_ending(from, begun, &mut behind) {
            (Some(ending), _) => Some(ending),
            (None, true) => None,
            (None, false) => self.far_ending(from, begun, &mut behind),
        }
    }

    /// The exact search; with it, whether it has looked at all states.
    fn near_ending(
        &mut self,
        from: StateID,
        begun: bool,
        behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> (Option<Ending>, bool) {
        let mut found = VisitedStates::new(from);
        let mut distances = vec![0_u64];
        let mut best: Option<Best> = None;
        let mut offer =
            |cost: u64, at: usize, last: Option<u8>, rest: Result<Vec<u32>, StateID>| {
                if cost != ENDLESS && best.as_ref().is_none_or(|best| cost < best.cost) {
                    best = Some(Best { cost, at, last, rest });
                }
                best.as_ref().map_or(ENDLESS, |best| best.cost)
            };
        // Where most of the work is done already, an eighth of it remains for ends that are near.
        let eighths = if self.is_nearly_exhausted() { 7 } else { 6 };
        let (mut at, mut least) = (0, ENDLESS);
        while let Some(&(state, ..)) = found.states.get(at) {
            let distance = distances[at];
            if distance >= least || at >= NEAR_STATES || self.has_used(eighths) {
                break;
            }
            if at > 0 || begun {
                let lexemes = self.ended(state);
                let cost = if lexemes.is_empty() { ENDLESS } else { behind(&lexemes) };
                least = offer(cost.saturating_add(distance), at, None, Ok(lexemes));
            }
            for byte in self.bytes_from(state) {
                let next = self.follow(state, byte);
                if let Some(lexemes) = self.ended_with(next) {
                    let cost = behind(&lexemes).saturating_add(distance + 1);
                    least = offer(cost, at, Some(byte), Ok(lexemes));
                } else if let Some(cost) = self.remembered_cost(next, behind) {
                    least = offer(cost.saturating_add(distance + 1), at, Some(byte), Err(next));
                } else if !next.is_dead() && found.add(next, at, byte) {
                    distances.push(distance + 1);
                }
            }
            at += 1;
        }
        let is_whole = at >= found.states.len();
        let Some(best) = best else { return (None, is_whole) };
        let mut bytes: Vec<u8> = found.way(best.at).into_iter().map(|(_, byte)| byte).collect();
        bytes.extend(best.last);
        let lexemes = best.rest.unwrap_or_else(|state| {
            let (rest, lexemes) = self.remembered(state);
            bytes.extend(rest);
            lexemes
        });
        (Some(Ending { cost: best.cost, bytes, lexemes }), is_whole)
    }

    /// One byte of each kind that may follow in a state.
    fn bytes_from(&mut self, state: StateID) -> Vec<u8> {
        self.forced_byte(state).map_or_else(|| self.bytes.clone(), |byte| vec![byte])
    }

    /// The second search: level by level, with few states in each.
    fn far_ending(
        &mut self,
        from: StateID,
        begun: bool,
        behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> Option<Ending> {
        let mut found = VisitedStates::new(from);
        let mut level = 0..1;
        for _ in 0..=STRING_BYTES_MAX {
            // A lexer that has used up its states or its work would fail for the whole text.
            if level.is_empty() || found.states.len() > FAR_STATES || self.is_nearly_exhausted() {
                return None;
            }
            let begin = found.states.len();
            for at in level {
                let state = found.states[at].0;
                let ended = if at > 0 || begun { self.ended(state) } else { Vec::new() };
                if !ended.is_empty() && behind(&ended) != ENDLESS {
                    return Some(self.remember(&found, at, None, ended, behind));
                }
                let forced = self.forced_byte(state);
                let few = forced.map_or(FAR_BYTES.to_vec(), |byte| vec![byte]);
                let before = found.states.len();
                for (number, byte) in few.iter().chain(&self.bytes.clone()).copied().enumerate() {
                    // All other bytes are followed only where these lead nowhere.
                    let is_led_on = number == few.len() && found.states.len() > before;
                    if is_led_on || found.states.len() - begin >= LEVEL_STATES {
                        break;
                    }
                    let next = self.follow(state, byte);
                    match self.ended_with(next) {
                        Some(ended) if behind(&ended) != ENDLESS => {
                            return Some(self.remember(&found, at, Some(byte), ended, behind));
                        }
                        None if self.remembered_cost(next, behind).is_some() => {
                            return Some(self.remember_up_to(&found, at, byte, next, behind));
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

    /// Remembers the way to an end: to a state and by one more byte, if there is one.
    fn remember(
        &mut self,
        found: &VisitedStates,
        at: usize,
        last: Option<u8>,
        lexemes: Vec<u32>,
        behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> Ending {
        let mut way = found.way(at);
        way.extend(last.map(|byte| (found.states[at].0, byte)));
        let end = self.long_endings.lexemes.len();
        if last.is_none() {
            let here = Waypoint { distance: 0, byte: 0, end };
            self.long_endings.states.insert(found.states[at].0, here);
        }
        self.long_endings.add(&way, 0, end);
        self.long_endings.lexemes.push(lexemes.clone());
        let cost = behind(&lexemes).saturating_add(way.len() as u64);
        Ending { cost, bytes: way.into_iter().map(|(_, byte)| byte).collect(), lexemes }
    }

    /// Remembers the way to a state of which the end is remembered already.
    fn remember_up_to(
        &mut self,
        found: &VisitedStates,
        at: usize,
        byte: u8,
        to: StateID,
        behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> Ending {
        let mut way = found.way(at);
        way.push((found.states[at].0, byte));
        let cost =
            self.remembered_cost(to, behind).unwrap_or(ENDLESS).saturating_add(way.len() as u64);
        if let Some(waypoint) = self.long_endings.states.get(&to).copied() {
            self.long_endings.add(&way, waypoint.distance, waypoint.end);
        }
        let (rest, lexemes) = self.remembered(to);
        let bytes = way.into_iter().map(|(_, byte)| byte).chain(rest).collect();
        Ending { cost, bytes, lexemes }
    }

    /// The cost of the end that is remembered for a state, where there is one that fits.
    fn remembered_cost(
        &self,
        state: StateID,
        behind: &mut impl FnMut(&[u32]) -> u64,
    ) -> Option<u64> {
        let waypoint = self.long_endings.states.get(&state)?;
        let cost = behind(&self.long_endings.lexemes[waypoint.end]);
        (cost != ENDLESS).then(|| cost.saturating_add(waypoint.distance))
    }

    /// The bytes and the lexemes of the end that is remembered for a state.
    fn remembered(&mut self, mut state: StateID) -> (Vec<u8>, Vec<u32>) {
        let mut bytes = Vec::new();
        let mut end = None;
        while let Some(waypoint) = self.long_endings.states.get(&state).copied() {
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
        let lexemes = end.map_or_else(Vec::new, |end| self.long_endings.lexemes[end].clone());
        (bytes, lexemes)
    }
}
