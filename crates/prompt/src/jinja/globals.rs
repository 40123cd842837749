//! Global functions of Jinja, and the two that transformers adds.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::args::{CallArgs, text};
use super::interp::{Interpreter, check_attribute};
use super::ops::take_items;
use super::text::to_str;
use super::value::{EvalError, EvalResult, SeqKind, Value};

/// Longest range, as in Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

const NAMES: [&str; 7] =
    ["cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"];

/// Finds a function by name.
pub(super) fn find(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|known| *known == name)
}

impl Interpreter {
    pub(super) fn global(&mut self, name: &str, args: CallArgs) -> EvalResult {
        match name {
            "range" => self.range(&args),
            "dict" => {
                let entries = self.dict_entries(args)?;
                Value::dict(entries, &mut self.budget)
            }
            "namespace" => {
                let mut attributes = indexmap::IndexMap::new();
                for (key, value) in self.dict_entries(args)? {
                    let key = text(&key)?;
                    check_attribute(&key)?;
                    attributes.insert(key, value);
                }
                self.budget.charge_steps(20)?;
                self.namespaces.push(attributes);
                Ok(Value::Namespace(self.namespaces.len() - 1))
            }
            "cycler" => {
                if args.pos.is_empty() {
                    return Err("at least one item has to be provided".into());
                }
                Value::cycler(args.pos)
            }
            "joiner" => {
                let [separator] = args.bind("joiner", ["sep"])?;
                let separator = to_str(&separator.unwrap_or_else(|| Value::str(", ")))?;
                Ok(Value::Joiner(Rc::new((Value::str(separator), Cell::new(false)))))
            }
            "raise_exception" => Err(EvalError::Raised(to_str(&args.one(name)?)?)),
            _ => {
                let format = text(&args.one(name)?)?;
                let now = jiff::fmt::strtime::format(&*format, self.now);
                let now = now.map_err(|e| format!("strftime_now: {e}"))?;
                self.budget.charge_text(now.len())?;
                Ok(Value::str(now))
            }
        }
    }

    fn range(&mut self, args: &CallArgs) -> EvalResult {
        let ends = args.pos.iter().map(Value::int).collect::<EvalResult<Vec<_>>>()?;
        let (start, stop, step) = match ends[..] {
            [stop] => (0, stop, 1),
            [start, stop] => (start, stop, 1),
            [start, stop, step] => (start, stop, step),
            _ => return Err(format!("range expected 1 to 3 arguments, got {}", ends.len()).into()),
        };
        if step == 0 {
            return Err("range() arg 3 must not be zero".into());
        }
        let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
        let count = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
        if count > MAX_RANGE {
            return Err(format!(
                "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE})."
            )
            .into());
        }
        take_items(usize::try_from(count).unwrap_or(0), &mut self.budget)?;
        let items = (0..count).map(|i| Value::Int(start + i * step)).collect();
        Value::seq(SeqKind::Range(start, stop, step), items)
    }

    /// `dict(mapping or pairs, **named)`.
    fn dict_entries(&mut self, args: CallArgs) -> EvalResult<Vec<(Value, Value)>> {
        let mut entries = Vec::new();
        match &args.pos[..] {
            [] => {}
            [Value::Dict(d)] => entries.extend(d.map.values().cloned()),
            [Value::Namespace(at)] => {
                let attributes = self.namespaces[*at].iter();
                entries.extend(attributes.map(|(k, v)| (Value::Str(Arc::clone(k)), v.clone())));
            }
            [pairs] => {
                for pair in pairs.iterate()? {
                    match <[Value; 2]>::try_from(pair.iterate()?) {
                        Ok([key, value]) => entries.push((key, value)),
                        Err(_) => {
                            return Err("dictionary update sequence element is not a pair".into());
                        }
                    }
                }
            }
            many => {
                return Err(format!("dict expected at most 1 argument, got {}", many.len()).into());
            }
        }
        entries.extend(args.named.into_iter().map(|(k, v)| (Value::Str(k), v)));
        take_items(entries.len(), &mut self.budget)?;
        Ok(entries)
    }
}
