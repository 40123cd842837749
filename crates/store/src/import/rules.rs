//! Rules: what a tensor of Hugging Face's name is called in a GGUF file, and what becomes of its rows. A family's rules are
//! lists of these; the first that knows a name counts.

use super::plan::Step;

/// One rule. Names are those of modules: `.weight` and `.bias` behind them stay what they are, and a tensor that has
/// neither there is a weight here.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    /// The name there, within its layer where it is of one; `{}` is the number of an expert or of a head.
    pub(super) there: &'static str,
    /// The name here; with a dot in it, the whole of it, which may end there.
    pub(super) here: &'static str,
    /// Names of the pieces, where it becomes several.
    pub(super) pieces: &'static [&'static str],
    pub(super) cut: Cut,
    pub(super) form: Form,
}

/// What stands where within the rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cut {
    /// One thing.
    Whole,
    /// Pieces of one size, one behind the other.
    Behind,
    /// Pieces in turns, row by row.
    Turns,
    /// All queries, all keys, all values.
    Qkv,
    /// The same behind gates, of which there are as many as queries.
    GatedQkv,
    /// For each key head its queries, its key and its value.
    Grouped,
    /// Heads of queries in turns: the first of each key head, then the second of each.
    Crossed,
}

/// What lies how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Plain,
    /// Inputs before outputs.
    Turned,
    /// What is cut and changes places are columns.
    Across,
    /// The matrices of all experts as one, their rows one behind the other.
    Stacked,
    /// The same, inputs before outputs.
    StackedTurned,
    /// Without dimensions of one.
    Squeezed,
    /// Without dimensions of one, between two of one.
    Lifted,
    /// A vector as a column.
    Column,
    /// A vector as a row for each group.
    Grouped,
    /// All values as one vector.
    Flat,
}

/// Sizes that tensors are checked against and cut by.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    /// Values of a head.
    pub(super) head: u32,
    /// Groups of states.
    pub(super) groups: u32,
    pub(super) experts: u32,
}

/// A tensor under its own name.
pub(super) const fn one(there: &'static str, here: &'static str) -> Rule {
    Rule { there, here, pieces: &[], cut: Cut::Whole, form: Form::Plain }
}

/// A tensor that becomes several.
pub(super) const fn pieces(there: &'static str, cut: Cut, pieces: &'static [&'static str]) -> Rule {
    Rule { there, here: "", pieces, cut, form: Form::Plain }
}

/// A tensor whose parts come behind one another here.
pub(super) const fn gathered(there: &'static str, cut: Cut, here: &'static str) -> Rule {
    Rule { there, here, pieces: &[], cut, form: Form::Plain }
}

/// A tensor that is not needed.
pub(super) const fn aside(there: &'static str) -> Rule {
    one(there, "")
}

/// Some rows of a tensor.
pub(super) struct Slice {
    pub(super) rows: u64,
    pub(super) step: Step,
}

impl Rule {
    pub(super) const fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// Whether it is about one tensor of many, each with a number.
    pub(super) fn is_numbered(&self) -> bool {
        self.there.contains("{}")
    }

    /// What stands behind the name there, where the rule knows it.
    pub(super) fn end<'n>(&self, name: &'n str) -> Option<&'n str> {
        match name.strip_prefix(self.there)? {
            "" => Some(".weight"),
            end @ (".weight" | ".bias") => Some(end),
            _ => None,
        }
    }

    /// The names here of a tensor with such an end.
    pub(super) fn names(&self, end: &str) -> Vec<String> {
        let whole = std::slice::from_ref(&self.here);
        let names = if self.pieces.is_empty() { whole } else { self.pieces };
        let full = |name: &&str| match name.strip_suffix('.') {
            Some(name) => name.to_owned(),
            None if name.contains('.') => (*name).to_owned(),
            None => format!("{name}{end}"),
        };
        names.iter().filter(|name| !name.is_empty()).map(full).collect()
    }

    /// What its rows, so many of each matrix, are cut into; nothing where they do not go up.
    pub(super) fn slices(&self, rows: u64, sizes: &Sizes) -> Option<Vec<Slice>> {
        let window = |each: u64, from: u64, take: u64| Step::Window { each, from, take };
        let head = u64::from(sizes.head);
        let (queries, keys) = (u64::from(sizes.heads) * head, u64::from(sizes.kv_heads) * head);
        let slices: Vec<Slice> = match self.cut {
            Cut::Whole => return Some(vec![Slice { rows, step: Step::Same }]),
            Cut::Behind => {
                let take = rows / self.pieces.len().max(1) as u64;
                let of = |i| Slice { rows: take, step: window(rows, i * take, take) };
                (0..self.pieces.len() as u64).map(of).collect()
            }
            Cut::Turns => {
                let step = self.pieces.len().max(1) as u64;
                let of = |first| Slice { rows: rows / step, step: Step::Every { step, first } };
                (0..step).map(of).collect()
            }
            Cut::Qkv => [(0, queries), (queries, keys), (queries + keys, keys)]
                .map(|(from, take)| Slice { rows: take, step: window(rows, from, take) })
                .into(),
            Cut::GatedQkv => {
                let each = [queries, queries, keys, keys];
                let from = |at: usize| each[..at].iter().sum::<u64>();
                (0..4)
                    .map(|at| Slice { rows: each[at], step: window(rows, from(at), each[at]) })
                    .collect()
            }
            Cut::Crossed => {
                let groups = u64::from(sizes.kv_heads);
                let each = u64::from(sizes.heads) / groups.max(1);
                let is_whole = queries == rows && groups * each == u64::from(sizes.heads);
                let slice = Slice { rows, step: Step::Crossed { groups, each, head } };
                return is_whole.then(|| vec![slice]).filter(|_| rows > 0);
            }
            Cut::Grouped => {
                if sizes.kv_heads == 0 || !sizes.heads.is_multiple_of(sizes.kv_heads) {
                    return None;
                }
                let group = queries / u64::from(sizes.kv_heads);
                let each = group + 2 * head;
                [(0, group, queries), (group, head, keys), (group + head, head, keys)]
                    .map(|(from, take, rows)| Slice { rows, step: window(each, from, take) })
                    .into()
            }
        };
        let goes_up = slices.iter().map(|slice| slice.rows).sum::<u64>() == rows;
        (goes_up && slices.iter().all(|slice| slice.rows > 0)).then_some(slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_ends() {
        let rule = one("attn.q", "attn_q");
        assert_eq!(rule.end("attn.q.bias"), Some(".bias"));
        assert_eq!(rule.end("attn.q"), Some(".weight"));
        assert_eq!((rule.end("attn.q_norm.weight"), rule.end("attn.q.scales")), (None, None));
        assert_eq!(rule.names(".bias"), ["attn_q.bias"]);
        assert_eq!(
            one("gate.expert_bias", "exp_probs_b.bias").names(".weight"),
            ["exp_probs_b.bias"]
        );
        assert_eq!(one("bias", "exp_probs_b.").names(".weight"), ["exp_probs_b"]);
        assert_eq!(
            pieces("up", Cut::Behind, &["a", "b"]).names(".weight"),
            ["a.weight", "b.weight"]
        );
        assert!(aside("x").names(".weight").is_empty());
    }

    #[test]
    fn rows_are_cut_where_they_go_up() {
        let sizes = Sizes { heads: 4, kv_heads: 2, head: 8, ..Sizes::default() };
        let of = |cut, rows| {
            let slices = pieces("x", cut, &["q", "k", "v"]).slices(rows, &sizes)?;
            Some(slices.iter().map(|slice| (slice.rows, slice.step)).collect::<Vec<_>>())
        };
        let window = |each, from, take| Step::Window { each, from, take };
        let qkv = vec![(32, window(64, 0, 32)), (16, window(64, 32, 16)), (16, window(64, 48, 16))];
        assert_eq!(of(Cut::Qkv, 64), Some(qkv));
        let grouped =
            vec![(32, window(32, 0, 16)), (16, window(32, 16, 8)), (16, window(32, 24, 8))];
        assert_eq!(of(Cut::Grouped, 64), Some(grouped));
        let slices = pieces("x", Cut::GatedQkv, &["g", "q", "k", "v"]).slices(96, &sizes).unwrap();
        let gated: Vec<_> = slices.iter().map(|slice| (slice.rows, slice.step)).collect();
        let parts = [(0, 32), (32, 32), (64, 16), (80, 16)];
        assert_eq!(gated, parts.map(|(from, take)| (take, window(96, from, take))));
        let odd = Sizes { heads: 1, kv_heads: 2, head: 1, ..Sizes::default() };
        assert!(gathered("x", Cut::Grouped, "y").slices(5, &odd).is_none());
        assert_eq!(
            (of(Cut::Grouped, 60), of(Cut::Behind, 64), of(Cut::Qkv, 0)),
            (None, None, None)
        );
        assert_eq!(of(Cut::Turns, 6).unwrap()[1], (2, Step::Every { step: 3, first: 1 }));
    }
}
