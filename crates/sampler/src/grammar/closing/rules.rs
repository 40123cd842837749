//! The rules of a compiled grammar, with the least number of bytes that each symbol takes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use llguidance::earley::{CGrammar, CSymIdx};

/// Marks the end of a rule.
pub const END: u32 = u32::MAX;
/// The cost of what has no text.
pub const ENDLESS: u64 = u64::MAX;

/// A symbol of a grammar.
#[derive(Debug, Default)]
pub struct Symbol {
    /// Positions of the first symbols of its rules.
    pub rules: Vec<u32>,
    /// The lexeme, for a terminal.
    pub lexeme: Option<u32>,
    /// Whether the empty text is one of its texts.
    pub nullable: bool,
    /// Bytes of its shortest text.
    pub cost: u64,
    /// The rule of its shortest text, for what is neither a terminal nor nullable.
    best: u32,
}

/// The rules of a grammar.
#[derive(Debug)]
pub struct Rules {
    /// The symbols of all rules, one rule after the other, each with [`END`] behind it. A position in it is a rule with a
    /// dot.
    right: Vec<u32>,
    /// The symbol on the left of the rule at each position.
    left: Vec<u32>,
    /// Bytes of the shortest text behind each dot.
    rest: Vec<u64>,
    symbols: Vec<Symbol>,
    /// The symbol of whole texts.
    pub start: u32,
}

impl Rules {
    /// Reads the rules that a grammar's start leads to. `lexeme_cost` tells the bytes of the shortest text of a lexeme.
    pub fn read(grammar: &CGrammar, lexeme_cost: impl Fn(u32) -> u64) -> Self {
        let mut rules = Self {
            right: Vec::new(),
            left: Vec::new(),
            rest: Vec::new(),
            symbols: Vec::new(),
            start: 0,
        };
        let mut numbers = HashMap::from([(grammar.start(), 0)]);
        let mut found = vec![grammar.start()];
        let mut at = 0;
        while let Some(&symbol) = found.get(at) {
            let mut number = |symbol: &CSymIdx| {
                *numbers.entry(*symbol).or_insert_with(|| {
                    found.push(*symbol);
                    found.len() as u32 - 1
                })
            };
            let data = grammar.sym_data(symbol);
            let mut own = Vec::new();
            for rule in &data.rules {
                own.push(rules.right.len() as u32);
                rules.right.extend(grammar.rule_rhs(*rule).0.iter().map(&mut number));
                rules.right.push(END);
            }
            rules.left.resize(rules.right.len(), at as u32);
            let lexeme = data.lexeme.map(|lexeme| lexeme.0);
            let nullable = data.is_nullable;
            rules.symbols.push(Symbol { rules: own, lexeme, nullable, cost: ENDLESS, best: END });
            at += 1;
        }
        rules.count(lexeme_cost);
        rules
    }

    /// Finds the cost of each symbol: the cheapest first, and with it that of the rules which had only it to wait for.
    fn count(&mut self, lexeme_cost: impl Fn(u32) -> u64) {
        let mut waiting: Vec<Vec<u32>> = vec![Vec::new(); self.symbols.len()];
        // By the position of a rule: symbols to wait for, and the cost of the others.
        let mut open: HashMap<u32, (usize, u64)> = HashMap::new();
        for &rule in self.symbols.iter().flat_map(|symbol| &symbol.rules) {
            let symbols = self.symbols_behind(rule);
            open.insert(rule, (symbols.len(), 0));
            symbols.iter().for_each(|&symbol| waiting[symbol as usize].push(rule));
        }
        let mut queue = BinaryHeap::new();
        for (number, symbol) in (0..).zip(&self.symbols) {
            match symbol.lexeme {
                _ if symbol.nullable => queue.push(Reverse((0, number, END))),
                Some(lexeme) => queue.push(Reverse((lexeme_cost(lexeme), number, END))),
                None => {}
            }
        }
        while let Some(Reverse((cost, number, rule))) = queue.pop() {
            let symbol = &mut self.symbols[number as usize];
            if cost == ENDLESS || symbol.cost != ENDLESS {
                continue;
            }
            (symbol.cost, symbol.best) = (cost, rule);
            for rule in std::mem::take(&mut waiting[number as usize]) {
                let Some((missing, sum)) = open.get_mut(&rule) else { continue };
                (*missing, *sum) = (*missing - 1, sum.saturating_add(cost));
                if *missing == 0 {
                    queue.push(Reverse((*sum, self.left[rule as usize], rule)));
                }
            }
        }
        self.rest = vec![0; self.right.len()];
        for at in (0..self.right.len()).rev().filter(|at| self.right[*at] != END) {
            self.rest[at] =
                self.symbols[self.right[at] as usize].cost.saturating_add(self.rest[at + 1]);
        }
    }

    /// A symbol by its number.
    pub fn symbol(&self, number: u32) -> &Symbol {
        &self.symbols[number as usize]
    }

    /// The symbol behind a dot, or [`END`].
    pub fn behind(&self, dot: u32) -> u32 {
        self.right[dot as usize]
    }

    /// All symbols behind a dot.
    pub fn symbols_behind(&self, dot: u32) -> &[u32] {
        let rest = &self.right[dot as usize..];
        &rest[..rest.iter().position(|symbol| *symbol == END).unwrap_or(0)]
    }

    /// The symbol on the left of a rule.
    pub fn left(&self, dot: u32) -> u32 {
        self.left[dot as usize]
    }

    /// Bytes of the shortest text behind a dot.
    pub fn rest(&self, dot: u32) -> u64 {
        self.rest[dot as usize]
    }

    /// Appends the lexemes of the shortest text of some symbols; `false` where they are more than `most`.
    pub fn expand(&self, symbols: &[u32], lexemes: &mut Vec<u32>, most: usize) -> bool {
        let mut stack: Vec<u32> = symbols.iter().rev().copied().collect();
        while let Some(number) = stack.pop() {
            let symbol = self.symbol(number);
            match symbol.lexeme {
                _ if symbol.nullable => {}
                Some(lexeme) => lexemes.push(lexeme),
                None if symbol.best == END => return false,
                None => stack.extend(self.symbols_behind(symbol.best).iter().rev()),
            }
            if lexemes.len() > most {
                return false;
            }
        }
        true
    }
}
