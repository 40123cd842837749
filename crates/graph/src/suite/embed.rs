//! Embeddings, rows of the step, and rows whose logits are returned.

use puna_quant::TensorType;

use super::elementwise::doubles;
use super::matmul::{type_name, weight_types};
use super::problem::{Matrix, Problem};
use super::schedule::{Schedule, Span};
use super::{Case, Tolerance};
use crate::selected_positions::SelectedPositions;
use crate::values::Index;

/// Rows of a table.
const ENTRIES: usize = 23;

/// Token id that stands for no token. The second row of each case has it.
const NO_TOKEN: usize = 9;

/// Decoding of a row: scales and values are products of few f32 numbers.
const DECODED: Tolerance = Tolerance::any(1e-12);

/// Table rows by token, list, position and number, given rows, and output rows.
pub(super) fn cases() -> Vec<Case> {
    let types = weight_types()
        .flat_map(|ty| [Lookup::Token, Lookup::Numbers].map(|lookup| embed(ty, lookup, 11)));
    let lookups = [Lookup::TokenOr, Lookup::List, Lookup::Position, Lookup::Fixed];
    let lookups = lookups.into_iter().flat_map(|lookup| {
        [TensorType::F32, TensorType::F16, TensorType::Q4_0, TensorType::Q6_K]
            .map(|ty| embed(ty, lookup, 5))
    });
    let input_rows = [(1, 64), (7, 33), (65, 96)].map(input_rows);
    let input_rows = input_rows.into_iter().chain([two_inputs()]);
    let outputs = [(1, 1), (8, 3), (65, 2)].map(outputs);
    let reduced = [
        ([1, 1], 4, false),
        ([2, 3], 9, false),
        ([1, 2], 1, false),
        ([1, 2], 16, true),
        ([20, 7], 4, true),
    ]
    .map(reduced_rows);
    types.chain(lookups).chain(input_rows).chain(outputs).chain(reduced).collect()
}

/// How the row of a table is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lookup {
    Token,
    TokenOr,
    List,
    Position,
    Fixed,
    Numbers,
}

impl Lookup {
    fn name(self) -> &'static str {
        match self {
            Lookup::Token => "token",
            Lookup::TokenOr => "token_or",
            Lookup::List => "list",
            Lookup::Position => "position",
            Lookup::Fixed => "fixed",
            Lookup::Numbers => "numbers",
        }
    }
}

fn embed(ty: TensorType, lookup: Lookup, rows: usize) -> Case {
    let cols = if ty.is_quantized() { 2 * ty.block_values() } else { 33 };
    let name = match lookup {
        Lookup::Numbers => format!("embed_listed type={} rows={rows} width={cols}", type_name(ty)),
        _ => {
            format!("embed type={} index={} rows={rows} width={cols}", type_name(ty), lookup.name())
        }
    };
    Case::new(name, DECODED, move || {
        let schedule = Schedule::one_step(rows).with_vocabulary(ENTRIES);
        let mut p = Problem::new(schedule.with_first_position(3));
        let table = p.random_tensor(ty, &[cols, ENTRIES]);
        let table_row = |number: usize| doubles(&table.values[number * cols..][..cols]);
        if lookup == Lookup::Numbers {
            let number = |token: usize, i: usize| (token * 5 + i * 7) % ENTRIES;
            let numbers =
                |token| (0..3).map(move |i| SelectedPositions::entry(number(token, i) as u32));
            let values = (0..ENTRIES).flat_map(numbers).collect();
            let numbers = p.input_of(&Matrix { cols: 3, values });
            let out = p.graph.embed_rows("out", table.id, cols, numbers.id);
            p.expect_rows(out, |token| (0..3).flat_map(|i| table_row(number(token, i))).collect());
            return p;
        }
        // A token id behind the end of the list stands for itself.
        let listed: Vec<u32> =
            (0..ENTRIES as u32 - 4).map(|token| token * 3 % ENTRIES as u32).collect();
        p.no_token = Some(NO_TOKEN);
        let index = match lookup {
            Lookup::TokenOr => Index::TokenOr(4),
            Lookup::List => Index::Remapped(p.integers(&[listed.len()], &listed)),
            Lookup::Position => Index::Position,
            Lookup::Fixed => Index::Fixed(9),
            Lookup::Token | Lookup::Numbers => Index::Token,
        };
        let out = p.graph.embed("out", table.id, cols, index);
        p.expect(out, |span: &Span| {
            let number = |i: usize| match index {
                Index::TokenOr(row) if span.tokens[i] == NO_TOKEN => row as usize,
                Index::Token | Index::TokenOr(_) => span.tokens[i],
                Index::Remapped(_) => {
                    listed.get(span.tokens[i]).map_or(span.tokens[i], |&x| x as usize)
                }
                Index::Position => span.first_position + i,
                Index::Fixed(number) => number as usize,
            };
            let is_zero = |i: usize| {
                let by_token = matches!(index, Index::Token | Index::Remapped(_));
                by_token && span.tokens[i] == NO_TOKEN
            };
            let row = |i: usize| if is_zero(i) { vec![0.0; cols] } else { table_row(number(i)) };
            span.indices().map(row).collect()
        });
        p
    })
}

fn input_rows((rows, cols): (usize, usize)) -> Case {
    Case::new(format!("input rows={rows} width={cols}"), Tolerance::EXACT, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        let x = p.input_rows(cols);
        p.expect_rows(x.id, |token| doubles(x.row(token)));
        p
    })
}

fn two_inputs() -> Case {
    Case::new("inputs=2 rows=9 width=17".into(), Tolerance::EXACT, move || {
        let mut p = Problem::new(Schedule::one_step(9));
        let (a, b) = (p.input_rows(5), p.input_rows(12));
        let out = p.graph.concat("out", b.id, a.id);
        p.expect_rows(out, |token| doubles(&[b.row(token), a.row(token)].concat()));
        p
    })
}

/// Blocks of rows that become one row: side by side, or their mean. Two sequences have this many
/// blocks.
fn reduced_rows((blocks, block, is_mean): ([usize; 2], usize, bool)) -> Case {
    let op = if is_mean { "mean_rows" } else { "concat_rows" };
    let tolerance = if is_mean { Tolerance::F32 } else { Tolerance::EXACT };
    Case::new(format!("{op} blocks={blocks:?} block={block} width=19"), tolerance, move || {
        let steps = [(0, blocks[0] * block), (1, blocks[1] * block)];
        let mut p = Problem::new(Schedule::steps(&[&steps]));
        p.output_stride = block;
        let x = p.input(19);
        let out = match is_mean {
            true => p.graph.mean_rows("out", x.id, block),
            false => p.graph.concat_rows("out", x.id, block),
        };
        p.expect(out, |span| {
            let of_block = |i: usize| {
                // Only the last row of a block is an output row.
                let first = i / block * block;
                let all: Vec<f64> =
                    (first..first + block).flat_map(|at| doubles(x.row(span.tokens[at]))).collect();
                let mean =
                    |column: usize| all.iter().skip(column).step_by(19).sum::<f64>() / block as f64;
                if is_mean { (0..19).map(mean).collect() } else { all }
            };
            span.indices().map(of_block).collect()
        });
        p
    })
}

fn outputs((rows, stride): (usize, usize)) -> Case {
    let name = format!("gather_outputs rows={rows} stride={stride} width=37");
    Case::new(name, Tolerance::EXACT, move || {
        let mut p = Problem::new(Schedule::one_step(rows));
        p.output_stride = stride;
        let x = p.input(37);
        let out = p.graph.gather_outputs(x.id);
        p.expect_rows(out, |token| doubles(x.row(token)));
        p
    })
}
