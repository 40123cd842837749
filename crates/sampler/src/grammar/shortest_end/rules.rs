//! Rules of a compiled grammar, with the shortest length in bytes of each symbol.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use llguidance::earley::{CGrammar, CSymIdx};

/// Marks the end of a rule.
pub const END_OF_RULE: u32 = u32::MAX;
/// Cost of a symbol without a finite text.
pub const INFINITE_COST: u64 = u64::MAX;

/// A symbol of a grammar.
#[derive(Debug, Default)]
pub struct Symbol {
    /// Positions of the first symbol of each of its rules.
    pub rules: Vec<u32>,
    /// Lexeme of a terminal.
    pub lexeme: Option<u32>,
    /// Whether the symbol matches the empty text.
    pub nullable: bool,
    /// Bytes of its shortest text.
    pub cost: u64,
    /// Rule of its shortest text. Unused for terminals and nullable symbols.
    cheapest_rule: u32,
}

/// The rules of a grammar.
#[derive(Debug)]
pub struct Rules {
    /// Right sides of all rules, each followed by [`END_OF_RULE`]. A position in this list
    /// represents a rule with a dot.
    right: Vec<u32>,
    /// Left symbol of the rule at each position.
    left: Vec<u32>,
    /// Bytes of the shortest text behind each dot.
    rest: Vec<u64>,
    symbols: Vec<Symbol>,
    /// Start symbol.
    pub start: u32,
}

impl Rules {
    /// Reads the rules that are reachable from a grammar's start symbol. `lexeme_cost` returns the
    /// bytes of a lexeme's shortest text.
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
                rules.right.push(END_OF_RULE);
            }
            rules.left.resize(rules.right.len(), at as u32);
            let lexeme = data.lexeme.map(|lexeme| lexeme.0);
            let nullable = data.is_nullable;
            rules.symbols.push(Symbol {
                rules: own,
                lexeme,
                nullable,
                cost: INFINITE_COST,
                cheapest_rule: END_OF_RULE,
            });
            at += 1;
        }
        rules.compute_costs(lexeme_cost);
        rules
    }

    /// Computes the cost of each symbol, cheapest first (Knuth's generalization of Dijkstra's
    /// algorithm). A rule's cost is known when the costs of all its symbols are.
    fn compute_costs(&mut self, lexeme_cost: impl Fn(u32) -> u64) {
        let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); self.symbols.len()];
        // For each rule: number of symbols without a cost, and sum of the others' costs.
        let mut open: HashMap<u32, (usize, u64)> = HashMap::new();
        for &rule in self.symbols.iter().flat_map(|symbol| &symbol.rules) {
            let symbols = self.symbols_behind(rule);
            open.insert(rule, (symbols.len(), 0));
            symbols.iter().for_each(|&symbol| dependents[symbol as usize].push(rule));
        }
        let mut queue = BinaryHeap::new();
        for (number, symbol) in (0..).zip(&self.symbols) {
            match symbol.lexeme {
                _ if symbol.nullable => queue.push(Reverse((0, number, END_OF_RULE))),
                Some(lexeme) => queue.push(Reverse((lexeme_cost(lexeme), number, END_OF_RULE))),
                None => {}
            }
        }
        while let Some(Reverse((cost, number, rule))) = queue.pop() {
            let symbol = &mut self.symbols[number as usize];
            if cost == INFINITE_COST || symbol.cost != INFINITE_COST {
                continue;
            }
            (symbol.cost, symbol.cheapest_rule) = (cost, rule);
            for rule in std::mem::take(&mut dependents[number as usize]) {
                let Some((missing, sum)) = open.get_mut(&rule) else { continue };
                (*missing, *sum) = (*missing - 1, sum.saturating_add(cost));
                if *missing == 0 {
                    queue.push(Reverse((*sum, self.left[rule as usize], rule)));
                }
            }
        }
        self.rest = vec![0; self.right.len()];
        for at in (0..self.right.len()).rev().filter(|at| self.right[*at] != END_OF_RULE) {
            self.rest[at] =
                self.symbols[self.right[at] as usize].cost.saturating_add(self.rest[at + 1]);
        }
    }

    /// Returns a symbol by number.
    pub fn symbol(&self, number: u32) -> &Symbol {
        &self.symbols[number as usize]
    }

    /// Symbol behind a dot, or [`END_OF_RULE`].
    pub fn behind(&self, dot: u32) -> u32 {
        self.right[dot as usize]
    }

    /// All symbols behind a dot.
    pub fn symbols_behind(&self, dot: u32) -> &[u32] {
        let rest = &self.right[dot as usize..];
        &rest[..rest.iter().position(|symbol| *symbol == END_OF_RULE).unwrap_or(0)]
    }

    /// Left symbol of a rule.
    pub fn left(&self, dot: u32) -> u32 {
        self.left[dot as usize]
    }

    /// Bytes of the shortest text behind a dot.
    pub fn rest(&self, dot: u32) -> u64 {
        self.rest[dot as usize]
    }

    /// Appends the lexemes of the shortest text of some symbols. Returns `false` if there are more
    /// than `max`.
    pub fn expand(&self, symbols: &[u32], lexemes: &mut Vec<u32>, max: usize) -> bool {
        let mut stack: Vec<u32> = symbols.iter().rev().copied().collect();
        while let Some(number) = stack.pop() {
            let symbol = self.symbol(number);
            match symbol.lexeme {
                _ if symbol.nullable => {}
                Some(lexeme) => lexemes.push(lexeme),
                None if symbol.cheapest_rule == END_OF_RULE => return false,
                None => stack.extend(self.symbols_behind(symbol.cheapest_rule).iter().rev()),
            }
            if lexemes.len() > max {
                return false;
            }
        }
        true
    }
}
