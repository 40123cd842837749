//! Earley parser that follows a text in a grammar and computes the length of its shortest end.
//!
//! A row holds the Earley items at one position between two lexemes. For every symbol that an item
//! of the row expects, the row stores a cost: bytes of the shortest rest of the whole text behind
//! that symbol. The cost is the shortest rest of the item's own rule, plus the cost of the rule's
//! left symbol in the row where the item began. So the length of the shortest end is known at once,
//! without a search among texts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use llguidance::earley::lexerspec::LexerSpec;
use llguidance::earley::regexvec::StateID;

use super::lexeme_end::LexemeEnd;
use super::lexer::{Lexer, LexerStep};
use super::numbers::DigitRun;
use super::rules::{END_OF_RULE, INFINITE_COST, Rules};

/// Maximum number of items in a row; the same limit as the library's. An object has four items for
/// each optional property.
pub const MAX_ITEMS: usize = 10_000;
/// Maximum number of items and expected symbols in all rows that are still needed; about 50 MB.
const MAX_ENTRIES: usize = 3_000_000;
/// Number of items and expected symbols from which on [`Chart::compact`] removes unneeded rows.
const COMPACTED_MIN: usize = 100_000;
/// Maximum number of lexemes in an end.
const MAX_LEXEMES: usize = 65_536;
/// Maximum number of bytes in an end.
pub const MAX_BYTES: usize = 65_536;
/// Item number of the start symbol, which no item expects.
const WHOLE_TEXT: u32 = u32::MAX;

/// Data of a grammar that all its charts share.
#[derive(Debug)]
pub struct GrammarData {
    pub rules: Rules,
    pub spec: LexerSpec,
    /// Lexemes that may stand between others: white space.
    pub skipped: HashSet<u32>,
    /// Shortest text of each lexeme.
    pub texts: Vec<Option<EndPiece>>,
    /// For each lexeme: whether it is a number.
    pub numbers: Vec<bool>,
}

/// A piece of the shortest end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndPiece {
    Bytes(Vec<u8>),
    /// A control token.
    Token(u32),
}

/// Earley item: a rule with a dot, and the row in which the rule began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Item {
    dot: u32,
    row: u32,
}

/// A symbol that a row expects.
#[derive(Debug, Clone, Copy)]
struct ExpectedSymbol {
    symbol: u32,
    /// Bytes of the shortest text from behind the symbol to the end.
    cost: u64,
    /// Item that gives this cost.
    item: u32,
}

#[derive(Debug, Clone)]
struct Row {
    /// Index of its first item.
    items: usize,
    /// Index of its first expected symbol. Expected symbols of a row are sorted by symbol.
    expected: usize,
    /// State of the lexer at the start of the row.
    state: StateID,
    /// Bytes of the shortest end from here.
    cost: u64,
    /// Terminal that starts the shortest end. [`END_OF_RULE`] if the text is complete.
    next: u32,
}

/// Position of a text within a lexeme.
#[derive(Debug, Clone, Copy)]
pub struct LexerPosition {
    pub state: StateID,
    /// Whether a lexeme has begun.
    pub begun: bool,
    /// Trailing digits of the lexeme that has begun, if it is a number.
    pub run: DigitRun,
}

/// State of a text in a grammar.
#[derive(Debug, Clone)]
pub struct Chart {
    pub data: Arc<GrammarData>,
    pub lexer: Lexer,
    items: Vec<Item>,
    expected: Vec<ExpectedSymbol>,
    rows: Vec<Row>,
    pub position: LexerPosition,
    /// Number of items and expected symbols at which [`Chart::compact`] runs next.
    compact_at: usize,
}

/// Sizes of a chart to restore.
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint {
    rows: usize,
    items: usize,
    expected: usize,
    position: LexerPosition,
}

impl Chart {
    /// Starts a text. `None` if the grammar is too large or has no text.
    pub fn new(data: Arc<GrammarData>, lexer: Lexer) -> Option<Self> {
        let position =
            LexerPosition { state: StateID::DEAD, begun: false, run: DigitRun::default() };
        let (items, expected, rows) = (Vec::new(), Vec::new(), Vec::new());
        let mut chart =
            Self { data, lexer, items, expected, rows, position, compact_at: COMPACTED_MIN };
        let rules = Arc::clone(&chart.data);
        let rules = &rules.rules;
        let first =
            rules.symbol(rules.start).rules.iter().map(|&dot| Item { dot, row: 0 }).collect();
        chart.push_row(first, None).then_some(chart)
    }

    pub fn checkpoint(&self) -> Checkpoint {
        let (rows, items, expected) = (self.rows.len(), self.items.len(), self.expected.len());
        Checkpoint { rows, items, expected, position: self.position }
    }

    /// Returns to a checkpoint.
    pub fn restore(&mut self, checkpoint: Checkpoint) {
        self.rows.truncate(checkpoint.rows);
        self.items.truncate(checkpoint.items);
        self.expected.truncate(checkpoint.expected);
        self.position = checkpoint.position;
    }

    /// Removes rows in which no rule of the last row began, once there are many rows. Checkpoints
    /// made before are invalid afterwards.
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
            (std::mem::take(&mut self.items), std::mem::take(&mut self.expected));
        let old_rows = std::mem::take(&mut self.rows);
        // Row numbers before and after.
        let mut numbers = vec![0; old_rows.len()];
        for (number, row) in old_rows.iter().enumerate().filter(|(number, _)| is_needed[*number]) {
            let next = old_rows.get(number + 1);
            let items = row.items..next.map_or(old_items.len(), |next| next.items);
            let expected = row.expected..next.map_or(old_waits.len(), |next| next.expected);
            numbers[number] = self.rows.len() as u32;
            let moved = row.items - self.items.len();
            self.rows.push(Row {
                items: self.items.len(),
                expected: self.expected.len(),
                ..row.clone()
            });
            let renumbered = |item: &Item| Item { row: numbers[item.row as usize], ..*item };
            self.items.extend(old_items[items].iter().map(renumbered));
            let item = |entry: &ExpectedSymbol| {
                if entry.item == WHOLE_TEXT { WHOLE_TEXT } else { entry.item - moved as u32 }
            };
            self.expected.extend(
                old_waits[expected]
                    .iter()
                    .map(|entry| ExpectedSymbol { item: item(entry), ..*entry }),
            );
        }
        self.compact_at = COMPACTED_MIN.max(2 * self.entries());
    }

    /// Whether the chart or the lexer is near its limit, so that the text should end.
    pub fn is_nearly_full(&self) -> bool {
        self.entries() > MAX_ENTRIES || self.lexer.is_nearly_exhausted()
    }

    /// Number of items and expected symbols of all rows.
    pub fn entries(&self) -> usize {
        self.items.len() + self.expected.len()
    }

    /// Advances by bytes. Returns `false` if they do not fit; the chart is then at an unspecified
    /// position within them.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.push_byte(byte))
    }

    fn push_byte(&mut self, byte: u8) -> bool {
        match self.lexer.step(self.position.state, byte) {
            LexerStep::Within(state) => {
                self.position =
                    LexerPosition { state, begun: true, run: self.position.run.push(byte) };
                true
            }
            LexerStep::EndsWith(lexemes) => self.scan(&lexemes),
            LexerStep::EndsBefore(lexemes) => self.scan(&lexemes) && self.begin_lexeme(byte),
            LexerStep::Refused => false,
        }
    }

    /// Starts a lexeme behind another one.
    fn begin_lexeme(&mut self, byte: u8) -> bool {
        let state = self.lexer.follow(self.position.state, byte);
        if state.is_dead() {
            return false;
        }
        if state.has_lowest_match() || self.lexer.must_end(state) {
            return match self.lexer.step(self.position.state, byte) {
                LexerStep::EndsWith(lexemes) => self.scan(&lexemes),
                _ => {
                    let lexemes = self.lexer.ended(state);
                    self.scan(&lexemes)
                }
            };
        }
        self.position = LexerPosition { state, begun: true, run: DigitRun::default().push(byte) };
        true
    }

    /// Advances by a control token.
    pub fn push_token(&mut self, token: u32) -> bool {
        if self.position.begun {
            let ended = self.lexer.ended(self.position.state);
            if ended.is_empty() || !self.scan(&ended) {
                return false;
            }
        }
        let spec = &self.data.spec;
        let possible = self.lexer.possible(self.position.state).into_iter();
        let fits = |lexeme: &u32| spec.lexemes[*lexeme as usize].contains_token(token);
        let lexemes: Vec<u32> = possible.filter(fits).collect();
        !lexemes.is_empty() && self.scan(&lexemes)
    }

    /// Advances by a complete lexeme, which may be of several kinds.
    fn scan(&mut self, lexemes: &[u32]) -> bool {
        let data = Arc::clone(&self.data);
        if lexemes.iter().any(|lexeme| data.skipped.contains(lexeme)) {
            let state = self.rows.last().map_or(StateID::DEAD, |row| row.state);
            self.position = LexerPosition { state, begun: false, run: DigitRun::default() };
            return true;
        }
        let rules = &data.rules;
        let is_next = |item: &&Item| {
            let symbol = rules.behind(item.dot);
            symbol != END_OF_RULE
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

    fn row_expected(&self, row: usize) -> &[ExpectedSymbol] {
        let end = self.rows.get(row + 1).map_or(self.expected.len(), |next| next.expected);
        &self.expected[self.rows[row].expected..end]
    }

    /// Cost of a symbol that a row expects.
    fn expected(&self, row: u32, symbol: u32) -> Option<&ExpectedSymbol> {
        let expected = self.row_expected(row as usize);
        expected.binary_search_by_key(&symbol, |entry| entry.symbol).ok().map(|at| &expected[at])
    }

    /// Adds a row that starts with the items `first`. `last` is the lexeme before it.
    fn push_row(&mut self, first: Vec<Item>, last: Option<u32>) -> bool {
        if first.is_empty() || self.lexer.has_failed() {
            return false;
        }
        let data = Arc::clone(&self.data);
        let Some(items) = self.closure(&data.rules, first) else { return false };
        let row = self.rows.len() as u32;
        let expected = self.expected_symbols(&data.rules, &items, row);
        let whole = |item: &Item| {
            item.row == 0
                && data.rules.behind(item.dot) == END_OF_RULE
                && data.rules.left(item.dot) == data.rules.start
        };
        let is_complete =
            items.iter().any(whole) || row == 0 && data.rules.symbol(data.rules.start).nullable;
        let terminals =
            expected.iter().filter(|entry| data.rules.symbol(entry.symbol).lexeme.is_some());
        let total = |entry: &ExpectedSymbol| {
            entry.cost.saturating_add(data.rules.symbol(entry.symbol).cost)
        };
        let next = terminals.map(|entry| (total(entry), entry.symbol)).min();
        let (cost, next) = if is_complete {
            (0, END_OF_RULE)
        } else {
            next.unwrap_or((INFINITE_COST, END_OF_RULE))
        };
        // Lexemes that may follow, including those without a known end.
        let behind = items
            .iter()
            .map(|item| data.rules.behind(item.dot))
            .filter(|symbol| *symbol != END_OF_RULE);
        let allowed: Vec<u32> =
            behind.filter_map(|symbol| data.rules.symbol(symbol).lexeme).collect();
        let blanks = blanks(&data.spec, &allowed, last);
        let state = self.lexer.start(&data.spec, allowed.into_iter().chain(blanks));
        self.rows.push(Row {
            items: self.items.len(),
            expected: self.expected.len(),
            state,
            cost,
            next,
        });
        self.items.extend(items);
        self.expected.extend(expected);
        self.position = LexerPosition { state, begun: false, run: DigitRun::default() };
        true
    }

    /// Closure of a new row: its first items, those that they predict, and those that completed
    /// rules advance.
    fn closure(&self, rules: &Rules, first: Vec<Item>) -> Option<Vec<Item>> {
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
            if symbol == END_OF_RULE {
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
            if items.len() > MAX_ITEMS {
                return None;
            }
        }
        Some(items)
    }

    /// Symbols that a new row expects, with their costs. Dijkstra's algorithm: takes the cheapest
    /// symbol, and adds the symbols that its rules expect in the same row.
    fn expected_symbols(&self, rules: &Rules, items: &[Item], row: u32) -> Vec<ExpectedSymbol> {
        let mut queue = BinaryHeap::new();
        let mut own: Vec<(u32, u32)> = Vec::new();
        let first = self.items.len() as u32;
        for (number, item) in (first..).zip(items) {
            let (symbol, left) = (rules.behind(item.dot), rules.left(item.dot));
            if symbol == END_OF_RULE {
                continue;
            }
            if item.row == row {
                own.push((left, number));
            } else if let Some(entry) = self.expected(item.row, left) {
                let cost = entry.cost.saturating_add(rules.rest(item.dot + 1));
                queue.push(Reverse((cost, symbol, number)));
            }
        }
        own.sort_unstable();
        if row == 0 {
            queue.push(Reverse((0, rules.start, WHOLE_TEXT)));
        }
        let mut expected: Vec<ExpectedSymbol> = Vec::new();
        let mut known = HashSet::new();
        while let Some(Reverse((cost, symbol, item))) = queue.pop() {
            if cost == INFINITE_COST || !known.insert(symbol) {
                continue;
            }
            expected.push(ExpectedSymbol { symbol, cost, item });
            let begins = own.partition_point(|(left, _)| *left < symbol);
            for &(_, number) in own[begins..].iter().take_while(|(left, _)| *left == symbol) {
                let dot = items[(number - first) as usize].dot;
                let cost = cost.saturating_add(rules.rest(dot + 1));
                queue.push(Reverse((cost, rules.behind(dot), number)));
            }
        }
        expected.sort_unstable_by_key(|entry| entry.symbol);
        expected
    }

    /// Cheapest end of the lexeme that has begun.
    fn lexeme_end(&mut self) -> Option<LexemeEnd> {
        let Self { data, lexer, expected, rows, position, .. } = self;
        let row = rows.last()?;
        let expected = &expected[row.expected..];
        let ending = lexer.lexeme_end(position.state, true, |lexemes| {
            match lexemes.iter().any(|lexeme| data.skipped.contains(lexeme)) {
                true => row.cost,
                false => terminal(&data.rules, expected, lexemes)
                    .map_or(INFINITE_COST, |entry| entry.cost),
            }
        });
        ending.filter(|_| !lexer.has_failed())
    }

    /// Bytes of the shortest end of the text, and end of the lexeme that has begun.
    /// [`INFINITE_COST`] if no end is known.
    pub fn cost(&mut self) -> (u64, Option<LexemeEnd>) {
        if !self.position.begun {
            return (self.rows.last().map_or(INFINITE_COST, |row| row.cost), None);
        }
        let ending = self.lexeme_end();
        (ending.as_ref().map_or(INFINITE_COST, |ending| ending.cost), ending)
    }

    /// Shortest end of the text, starting with the end of a lexeme that has begun. `None` if it is
    /// too long.
    pub fn path(&self, ending: Option<&LexemeEnd>) -> Option<Vec<EndPiece>> {
        let mut path = EndText::default();
        let row = self.rows.last()?;
        if let Some(ending) = ending {
            path.add(&EndPiece::Bytes(ending.bytes.clone()))?;
            if !ending.lexemes.iter().any(|lexeme| self.data.skipped.contains(lexeme)) {
                let entry =
                    terminal(&self.data.rules, &self.expected[row.expected..], &ending.lexemes)?;
                self.add_rest(entry.symbol, &mut path)?;
                return Some(path.texts);
            }
        }
        if row.next == END_OF_RULE {
            return (row.cost == 0).then_some(path.texts);
        }
        let lexeme = self.data.rules.symbol(row.next).lexeme?;
        path.add(self.data.texts[lexeme as usize].as_ref()?)?;
        self.add_rest(row.next, &mut path)?;
        Some(path.texts)
    }

    /// Appends the rest of the text behind a symbol that the last row expects.
    fn add_rest(&self, symbol: u32, path: &mut EndText) -> Option<()> {
        let rules = &self.data.rules;
        let (mut row, mut symbol) = (self.rows.len() as u32 - 1, symbol);
        let mut lexemes = Vec::new();
        loop {
            let entry = self.expected(row, symbol)?;
            if entry.item == WHOLE_TEXT {
                return Some(());
            }
            let item = self.items[entry.item as usize];
            lexemes.clear();
            if !rules.expand(rules.symbols_behind(item.dot + 1), &mut lexemes, MAX_LEXEMES) {
                return None;
            }
            for &lexeme in &lexemes {
                path.add(self.data.texts[lexeme as usize].as_ref()?)?;
            }
            (row, symbol) = (item.row, rules.left(item.dot));
        }
    }
}

/// Cheapest expected terminal among some lexemes.
fn terminal(rules: &Rules, expected: &[ExpectedSymbol], lexemes: &[u32]) -> Option<ExpectedSymbol> {
    let is_one = |entry: &&ExpectedSymbol| {
        rules.symbol(entry.symbol).lexeme.is_some_and(|lexeme| lexemes.contains(&lexeme))
    };
    expected.iter().filter(is_one).min_by_key(|entry| entry.cost).copied()
}

/// White space lexemes that may precede some lexemes: the lexemes of the previous lexeme's class,
/// or of all classes.
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
struct EndText {
    texts: Vec<EndPiece>,
    bytes: usize,
}

impl EndText {
    fn add(&mut self, text: &EndPiece) -> Option<()> {
        match (self.texts.last_mut(), text) {
            (Some(EndPiece::Bytes(last)), EndPiece::Bytes(bytes)) => last.extend(bytes),
            _ => self.texts.push(text.clone()),
        }
        if let EndPiece::Bytes(bytes) = text {
            self.bytes += bytes.len();
        }
        (self.bytes <= MAX_BYTES && self.texts.len() <= MAX_BYTES).then_some(())
    }
}
