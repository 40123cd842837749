//! Follows a text in a grammar, as Earley's parser does, and counts what the text lacks.
//!
//! A row holds the items of one place between two lexemes. With each row stands, for every symbol that an item of it waits
//! for, how many bytes the shortest rest of the whole text has once that symbol is complete: the rest of the item's own rule,
//! and the same number for the symbol on its left in the row where the item began. So the shortest end of a text is known at
//! once, without a search among texts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::regexvec::StateID;

use super::ending::Ending;
use super::lexer::{Lexer, Step};
use super::numbers::Run;
use super::rules::{END, ENDLESS, Rules};

/// Items of a row at most, as many as the library is allowed. An object has four for each property that may be left out.
pub const ITEMS_MAX: usize = 10_000;
/// Items and waits of all rows that are still needed at most; about 50 MB.
const ENTRIES_MAX: usize = 3_000_000;
/// Items and waits from which on rows that are not needed any more are looked for.
const COMPACTED_MIN: usize = 100_000;
/// Lexemes of a path at most.
const LEXEMES_MAX: usize = 65_536;
/// Bytes of a path at most.
pub const BYTES_MAX: usize = 65_536;
/// Marks the wait for the whole text, which has no item.
const WHOLE: u32 = u32::MAX;

/// What a grammar and all that follow it share.
#[derive(Debug)]
pub struct Parts {
    pub rules: Rules,
    pub spec: LexerSpec,
    /// Lexemes that may stand between others: blanks.
    pub skipped: HashSet<u32>,
    /// The shortest text of each lexeme.
    pub texts: Vec<Option<Text>>,
    /// Whether a lexeme is a number.
    pub numbers: Vec<bool>,
}

/// A text of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    Bytes(Vec<u8>),
    /// A token that is no text.
    Token(u32),
}

/// A rule with a dot, and the row in which the rule began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Item {
    dot: u32,
    row: u32,
}

/// A symbol that a row waits for.
#[derive(Debug, Clone, Copy)]
struct Wait {
    symbol: u32,
    /// Bytes behind the symbol up to the end of the text.
    cost: u64,
    /// The item that comes to this.
    item: u32,
}

#[derive(Debug, Clone)]
struct Row {
    /// The first of its items.
    items: usize,
    /// The first of its waits, which are in the order of their symbols.
    waits: usize,
    /// The state of the lexer at its beginning.
    state: StateID,
    /// Bytes up to the end of the text.
    cost: u64,
    /// The terminal to go on with; [`END`] where the text is complete.
    next: u32,
}

/// Where a text has come to.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    pub state: StateID,
    /// A lexeme has begun.
    pub begun: bool,
    /// The digits of the lexeme that has begun, as those of a number.
    pub run: Run,
}

/// A text in a grammar.
#[derive(Debug, Clone)]
pub struct Chart {
    pub parts: Arc<Parts>,
    pub lexer: Lexer,
    items: Vec<Item>,
    waits: Vec<Wait>,
    rows: Vec<Row>,
    pub at: Position,
    /// Items and waits at which rows that are not needed any more are removed.
    compact_at: usize,
}

/// What to go back to.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    rows: usize,
    items: usize,
    waits: usize,
    at: Position,
}

impl Chart {
    /// The beginning of a text; `None` for a grammar that is too large, or has no text.
    pub fn new(parts: Arc<Parts>, lexer: Lexer) -> Option<Self> {
        let at = Position { state: StateID::DEAD, begun: false, run: Run::default() };
        let (items, waits, rows) = (Vec::new(), Vec::new(), Vec::new());
        let mut chart = Self { parts, lexer, items, waits, rows, at, compact_at: COMPACTED_MIN };
        let rules = Arc::clone(&chart.parts);
        let rules = &rules.rules;
        let first =
            rules.symbol(rules.start).rules.iter().map(|&dot| Item { dot, row: 0 }).collect();
        chart.push_row(first, None).then_some(chart)
    }

    pub fn mark(&self) -> Mark {
        let (rows, items, waits) = (self.rows.len(), self.items.len(), self.waits.len());
        Mark { rows, items, waits, at: self.at }
    }

    /// Goes back to where a mark was made.
    pub fn go_back(&mut self, mark: Mark) {
        self.rows.truncate(mark.rows);
        self.items.truncate(mark.items);
        self.waits.truncate(mark.waits);
        self.at = mark.at;
    }

    /// Removes the rows that no rule of the last row began in, once there are many. No mark may be gone back to afterwards.
    pub fn compact(&mut self) {
        if self.entries() < self.compact_at {
            return;
        }
        let mut is_needed = vec![false; self.rows.len()];
        let mut left = vec![self.rows.len() - 1];
        while let Some(row) = left.pop() {
            if !std::mem::replace(&mut is_needed[row], true) {
                left.extend(self.row_items(row).iter().map(|item| item.row as usize));
            }
        }
        is_needed[0] = true;
        let (old_items, old_waits) =
            (std::mem::take(&mut self.items), std::mem::take(&mut self.waits));
        let old_rows = std::mem::take(&mut self.rows);
        // The numbers of rows and the first items of rows, before and after.
        let mut numbers = vec![0; old_rows.len()];
        for (number, row) in old_rows.iter().enumerate().filter(|(number, _)| is_needed[*number]) {
            let next = old_rows.get(number + 1);
            let items = row.items..next.map_or(old_items.len(), |next| next.items);
            let waits = row.waits..next.map_or(old_waits.len(), |next| next.waits);
            numbers[number] = self.rows.len() as u32;
            let moved = row.items - self.items.len();
            self.rows.push(Row { items: self.items.len(), waits: self.waits.len(), ..row.clone() });
            let renumbered = |item: &Item| Item { row: numbers[item.row as usize], ..*item };
            self.items.extend(old_items[items].iter().map(renumbered));
            let item =
                |wait: &Wait| if wait.item == WHOLE { WHOLE } else { wait.item - moved as u32 };
            self.waits
                .extend(old_waits[waits].iter().map(|wait| Wait { item: item(wait), ..*wait }));
        }
        self.compact_at = COMPACTED_MIN.max(2 * self.entries());
    }

    /// Whether so much is kept or worked out that the text should end.
    pub fn is_nearly_full(&self) -> bool {
        self.entries() > ENTRIES_MAX || self.lexer.is_nearly_exhausted()
    }

    /// Items and waits of all rows.
    pub fn entries(&self) -> usize {
        self.items.len() + self.waits.len()
    }

    /// Goes on by some bytes; `false` where they do not fit, which leaves the text at any place of them.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.push_byte(byte))
    }

    fn push_byte(&mut self, byte: u8) -> bool {
        match self.lexer.step(self.at.state, byte) {
            Step::Within(state) => {
                self.at = Position { state, begun: true, run: self.at.run.push(byte) };
                true
            }
            Step::EndsWith(lexemes) => self.scan(&lexemes),
            Step::EndsBefore(lexemes) => self.scan(&lexemes) && self.begin(byte),
            Step::Refused => false,
        }
    }

    /// Begins a lexeme, behind another one.
    fn begin(&mut self, byte: u8) -> bool {
        let state = self.lexer.follow(self.at.state, byte);
        if state.is_dead() {
            return false;
        }
        if state.has_lowest_match() || self.lexer.must_end(state) {
            return match self.lexer.step(self.at.state, byte) {
                Step::EndsWith(lexemes) => self.scan(&lexemes),
                _ => {
                    let lexemes = self.lexer.ended(state);
                    self.scan(&lexemes)
                }
            };
        }
        self.at = Position { state, begun: true, run: Run::default().push(byte) };
        true
    }

    /// Goes on by a token that is no text.
    pub fn push_token(&mut self, token: u32) -> bool {
        if self.at.begun {
            let ended = self.lexer.ended(self.at.state);
            if ended.is_empty() || !self.scan(&ended) {
                return false;
            }
        }
        let spec = &self.parts.spec;
        let possible = self.lexer.possible(self.at.state).into_iter();
        let fits = |lexeme: &u32| spec.lexemes[*lexeme as usize].contains_token(token);
        let lexemes: Vec<u32> = possible.filter(fits).collect();
        !lexemes.is_empty() && self.scan(&lexemes)
    }

    /// Goes on by a whole lexeme, of which several kinds are possible.
    fn scan(&mut self, lexemes: &[u32]) -> bool {
        let parts = Arc::clone(&self.parts);
        if lexemes.iter().any(|lexeme| parts.skipped.contains(lexeme)) {
            let state = self.rows.last().map_or(StateID::DEAD, |row| row.state);
            self.at = Position { state, begun: false, run: Run::default() };
            return true;
        }
        let rules = &parts.rules;
        let is_next = |item: &&Item| {
            let symbol = rules.behind(item.dot);
            symbol != END
                && rules.symbol(symbol).lexeme.is_some_and(|lexeme| lexemes.contains(&lexeme))
        };
        let items = self.row_items(self.rows.len() - 1).iter().filter(is_next);
        let items = items.map(|item| Item { dot: item.dot + 1, ..*item }).collect();
        self.push_row(items, lexemes.first().copied())
    }

    fn row_items(&self, row: usize) -> &[Item] {
        let end = self.rows.get(row + 1).map_or(self.items.len(), |next| next.items);
        &self.items[self.rows[row].items..end]
    }

    fn row_waits(&self, row: usize) -> &[Wait] {
        let end = self.rows.get(row + 1).map_or(self.waits.len(), |next| next.waits);
        &self.waits[self.rows[row].waits..end]
    }

    /// Bytes behind a symbol that began in a row, and the item that they come of.
    fn wait(&self, row: u32, symbol: u32) -> Option<&Wait> {
        let waits = self.row_waits(row as usize);
        waits.binary_search_by_key(&symbol, |wait| wait.symbol).ok().map(|at| &waits[at])
    }

    /// Adds a row that begins with some items, and all that follows of them. `last` is the lexeme before it.
    fn push_row(&mut self, first: Vec<Item>, last: Option<u32>) -> bool {
        if first.is_empty() || self.lexer.has_failed() {
            return false;
        }
        let parts = Arc::clone(&self.parts);
        let Some(items) = self.complete(&parts.rules, first) else { return false };
        let row = self.rows.len() as u32;
        let waits = self.count(&parts.rules, &items, row);
        let whole = |item: &Item| {
            item.row == 0
                && parts.rules.behind(item.dot) == END
                && parts.rules.left(item.dot) == parts.rules.start
        };
        let is_complete =
            items.iter().any(whole) || row == 0 && parts.rules.symbol(parts.rules.start).nullable;
        let terminals =
            waits.iter().filter(|wait| parts.rules.symbol(wait.symbol).lexeme.is_some());
        let total = |wait: &Wait| wait.cost.saturating_add(parts.rules.symbol(wait.symbol).cost);
        let next = terminals.map(|wait| (total(wait), wait.symbol)).min();
        let (cost, next) = if is_complete { (0, END) } else { next.unwrap_or((ENDLESS, END)) };
        // Also those of which no end is known.
        let behind =
            items.iter().map(|item| parts.rules.behind(item.dot)).filter(|symbol| *symbol != END);
        let allowed: Vec<u32> =
            behind.filter_map(|symbol| parts.rules.symbol(symbol).lexeme).collect();
        let blanks = blanks(&parts.spec, &allowed, last);
        let state = self.lexer.start(&parts.spec, allowed.into_iter().chain(blanks));
        self.rows.push(Row { items: self.items.len(), waits: self.waits.len(), state, cost, next });
        self.items.extend(items);
        self.waits.extend(waits);
        self.at = Position { state, begun: false, run: Run::default() };
        true
    }

    /// All items of a new row: those that it begins with, those of the rules that they wait for, and those that have waited
    /// for what is complete.
    fn complete(&self, rules: &Rules, first: Vec<Item>) -> Option<Vec<Item>> {
        let row = self.rows.len() as u32;
        let mut known: HashSet<Item> = first.iter().copied().collect();
        let mut items = first;
        let mut at = 0;
        while let Some(&item) = items.get(at) {
            at += 1;
            let mut add = |item: Item| {
                if known.insert(item) {
                    items.push(item);
                }
            };
            let symbol = rules.behind(item.dot);
            if symbol == END {
                let left = rules.left(item.dot);
                if item.row < row {
                    let waiting = self.row_items(item.row as usize).iter();
                    let waiting = waiting.filter(|other| rules.behind(other.dot) == left);
                    waiting.for_each(|other| add(Item { dot: other.dot + 1, ..*other }));
                }
                continue;
            }
            rules.symbol(symbol).rules.iter().for_each(|&dot| add(Item { dot, row }));
            if rules.symbol(symbol).nullable {
                add(Item { dot: item.dot + 1, ..item });
            }
            if items.len() > ITEMS_MAX {
                return None;
            }
        }
        Some(items)
    }

    /// What a new row waits for: the cheapest first, and what waits in the same row for something else with it.
    fn count(&self, rules: &Rules, items: &[Item], row: u32) -> Vec<Wait> {
        let mut queue = BinaryHeap::new();
        let mut own: Vec<(u32, u32)> = Vec::new();
        let first = self.items.len() as u32;
        for (number, item) in (first..).zip(items) {
            let (symbol, left) = (rules.behind(item.dot), rules.left(item.dot));
            if symbol == END {
                continue;
            }
            if item.row == row {
                own.push((left, number));
            } else if let Some(wait) = self.wait(item.row, left) {
                let cost = wait.cost.saturating_add(rules.rest(item.dot + 1));
                queue.push(Reverse((cost, symbol, number)));
            }
        }
        own.sort_unstable();
        if row == 0 {
            queue.push(Reverse((0, rules.start, WHOLE)));
        }
        let mut waits: Vec<Wait> = Vec::new();
        let mut known = HashSet::new();
        while let Some(Reverse((cost, symbol, item))) = queue.pop() {
            if cost == ENDLESS || !known.insert(symbol) {
                continue;
            }
            waits.push(Wait { symbol, cost, item });
            let begins = own.partition_point(|(left, _)| *left < symbol);
            for &(_, number) in own[begins..].iter().take_while(|(left, _)| *left == symbol) {
                let dot = items[(number - first) as usize].dot;
                let cost = cost.saturating_add(rules.rest(dot + 1));
                queue.push(Reverse((cost, rules.behind(dot), number)));
            }
        }
        waits.sort_unstable_by_key(|wait| wait.symbol);
        waits
    }

    /// The end of the lexeme that has begun.
    fn ending(&mut self) -> Option<Ending> {
        let Self { parts, lexer, waits, rows, at, .. } = self;
        let row = rows.last()?;
        let waits = &waits[row.waits..];
        let ending = lexer.ending(at.state, true, |lexemes| {
            match lexemes.iter().any(|lexeme| parts.skipped.contains(lexeme)) {
                true => row.cost,
                false => terminal(&parts.rules, waits, lexemes).map_or(ENDLESS, |wait| wait.cost),
            }
        });
        ending.filter(|_| !lexer.has_failed())
    }

    /// Bytes of the shortest end of the text, and the end of the lexeme that has begun; [`ENDLESS`] where none is known.
    pub fn cost(&mut self) -> (u64, Option<Ending>) {
        if !self.at.begun {
            return (self.rows.last().map_or(ENDLESS, |row| row.cost), None);
        }
        let ending = self.ending();
        (ending.as_ref().map_or(ENDLESS, |ending| ending.cost), ending)
    }

    /// The shortest end of the text, which begins with the end of a lexeme where one has begun; `None` where it is too long.
    pub fn path(&self, ending: Option<&Ending>) -> Option<Vec<Text>> {
        let mut path = Path::default();
        let row = self.rows.last()?;
        if let Some(ending) = ending {
            path.add(&Text::Bytes(ending.bytes.clone()))?;
            if !ending.lexemes.iter().any(|lexeme| self.parts.skipped.contains(lexeme)) {
                let wait = terminal(&self.parts.rules, &self.waits[row.waits..], &ending.lexemes)?;
                self.add_rest(wait.symbol, &mut path)?;
                return Some(path.texts);
            }
        }
        if row.next == END {
            return (row.cost == 0).then_some(path.texts);
        }
        let lexeme = self.parts.rules.symbol(row.next).lexeme?;
        path.add(self.parts.texts[lexeme as usize].as_ref()?)?;
        self.add_rest(row.next, &mut path)?;
        Some(path.texts)
    }

    /// Adds all that comes behind a symbol that the newest row waits for.
    fn add_rest(&self, symbol: u32, path: &mut Path) -> Option<()> {
        let rules = &self.parts.rules;
        let (mut row, mut symbol) = (self.rows.len() as u32 - 1, symbol);
        let mut lexemes = Vec::new();
        loop {
            let wait = self.wait(row, symbol)?;
            if wait.item == WHOLE {
                return Some(());
            }
            let item = self.items[wait.item as usize];
            lexemes.clear();
            if !rules.expand(rules.symbols_behind(item.dot + 1), &mut lexemes, LEXEMES_MAX) {
                return None;
            }
            for &lexeme in &lexemes {
                path.add(self.parts.texts[lexeme as usize].as_ref()?)?;
            }
            (row, symbol) = (item.row, rules.left(item.dot));
        }
    }
}

/// The terminal that is one of some lexemes, with the cheapest rest behind it.
fn terminal(rules: &Rules, waits: &[Wait], lexemes: &[u32]) -> Option<Wait> {
    let is_one = |wait: &&Wait| {
        rules.symbol(wait.symbol).lexeme.is_some_and(|lexeme| lexemes.contains(&lexeme))
    };
    waits.iter().filter(is_one).min_by_key(|wait| wait.cost).copied()
}

/// The blanks that may stand where some lexemes may: those of the lexeme before, or of each of them.
fn blanks(spec: &LexerSpec, allowed: &[u32], last: Option<u32>) -> Vec<u32> {
    let class = |lexeme: u32| spec.lexemes[lexeme as usize].class();
    let mut classes: Vec<_> = allowed.iter().map(|lexeme| class(*lexeme)).collect();
    if let Some(last) = last.map(class).filter(|last| classes.contains(last)) {
        classes = vec![last];
    }
    let mut blanks: Vec<u32> = classes.into_iter().map(|class| spec.skip_id(class).0).collect();
    blanks.sort_unstable();
    blanks.dedup();
    blanks
}

#[derive(Default)]
struct Path {
    texts: Vec<Text>,
    bytes: usize,
}

impl Path {
    fn add(&mut self, text: &Text) -> Option<()> {
        match (self.texts.last_mut(), text) {
            (Some(Text::Bytes(last)), Text::Bytes(bytes)) => last.extend(bytes),
            _ => self.texts.push(text.clone()),
        }
        if let Text::Bytes(bytes) = text {
            self.bytes += bytes.len();
        }
        (self.bytes <= BYTES_MAX && self.texts.len() <= BYTES_MAX).then_some(())
    }
}
