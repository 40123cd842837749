//! Evaluates expressions, attributes and calls.

use std::rc::Rc;
use std::sync::Arc;

use super::args::CallArgs;
use super::ast::{Args, Expr, Postfix};
use super::format_method::braces;
use super::interp::Interpreter;
use super::methods::{self, Attribute};
use super::ops;
use super::value::{EvalResult, Loop, SeqKind, Value};

impl Interpreter {
    pub(super) fn eval(&mut self, expr: &Expr) -> EvalResult {
        self.budget.enter()?;
        let value = self.eval_inner(expr)?;
        self.budget.leave();
        Ok(value)
    }

    fn eval_inner(&mut self, expr: &Expr) -> EvalResult {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Int(n) => Ok(Value::Int(*n)),
            Expr::Float(f) => Ok(Value::Float(*f)),
            Expr::Str(s) => Ok(Value::Str(Arc::clone(s))),
            Expr::Name(name) => Ok(self.lookup(name)),
            Expr::List(items) => Value::list(self.eval_all(items)?),
            Expr::Tuple(items) => Value::tuple(self.eval_all(items)?),
            Expr::Dict(entries) => {
                let entries = entries
                    .iter()
                    .map(|(k, v)| Ok((self.eval(k)?, self.eval(v)?)))
                    .collect::<EvalResult<_>>()?;
                Value::dict(entries, &mut self.budget)
            }
            Expr::Postfix(base, postfixes) => {
                let base = self.eval(base)?;
                self.postfixes(base, postfixes)
            }
            Expr::Neg(operand) => ops::negate(&self.eval(operand)?),
            Expr::Pos(operand) => {
                let value = self.eval(operand)?;
                match value.number() {
                    Some(_) => Ok(value),
                    None => {
                        Err(format!("bad operand type for unary +: '{}'", value.type_name()).into())
                    }
                }
            }
            Expr::Not(operand) => Ok(Value::Bool(!self.eval(operand)?.is_true())),
            Expr::Chain(first, rest) => {
                let mut value = self.eval(first)?;
                for (op, operand) in rest {
                    let operand = self.eval(operand)?;
                    value = ops::binary(*op, &value, &operand, &mut self.budget)?;
                }
                Ok(value)
            }
            Expr::Concat(items) => {
                let items = self.eval_all(items)?;
                ops::concat(&items, &mut self.budget)
            }
            Expr::And(items) => self.first_with_truth(items, false),
            Expr::Or(items) => self.first_with_truth(items, true),
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (cmp, right) in rest {
                    let right = self.eval(right)?;
                    if !ops::compare(*cmp, &left, &right, &mut self.budget)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::Cond { test, yes, no } => match (self.eval(test)?.is_true(), no) {
                (true, _) => self.eval(yes),
                (false, Some(no)) => self.eval(no),
                (false, None) => Ok(Value::Undefined(
                    "the inline if-expression evaluated to false and no else section was defined."
                        .into(),
                )),
            },
        }
    }

    fn eval_all(&mut self, items: &[Expr]) -> EvalResult<Vec<Value>> {
        items.iter().map(|item| self.eval(item)).collect()
    }

    /// The first operand with the truth value `wanted`, or the last operand.
    fn first_with_truth(&mut self, items: &[Expr], wanted: bool) -> EvalResult {
        let mut value = Value::None;
        for item in items {
            value = self.eval(item)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    pub(super) fn postfixes(&mut self, mut value: Value, postfixes: &[Postfix]) -> EvalResult {
        for post in postfixes {
            self.budget.charge_steps(1)?;
            value = match post {
                Postfix::Attr(name) => self.attribute(&value, name)?,
                Postfix::Item(index) => {
                    let index = self.eval(index)?;
                    self.item(&value, &index)?
                }
                Postfix::Slice(start, stop, step) => {
                    let mut end = |e: &Option<Expr>| e.as_ref().map(|e| self.eval(e)).transpose();
                    let ends = [end(start)?, end(stop)?, end(step)?];
                    ops::slice(&value, ends, &mut self.budget)?
                }
                Postfix::Call(args) => {
                    let args = self.arguments(args)?;
                    self.call(&value, args)?
                }
                Postfix::Filter(name, args) => {
                    let args = self.arguments(args)?;
                    self.filter(name, &value, &args)?
                }
                Postfix::Test(name, args, negated) => {
                    let args = self.arguments(args)?;
                    Value::Bool(self.test(name, &value, &args)? != *negated)
                }
            };
        }
        Ok(value)
    }

    pub(super) fn arguments(&mut self, args: &Args) -> EvalResult<CallArgs> {
        let mut call = CallArgs::positional(self.eval_all(&args.pos)?);
        for (name, value) in &args.named {
            let value = self.eval(value)?;
            call.named.push((Arc::clone(name), value));
        }
        if let Some(star) = &args.star {
            let items = self.eval(star)?.iterate()?;
            ops::take_items(items.len(), &mut self.budget)?;
            call.pos.extend(items);
        }
        if let Some(star) = &args.star_star {
            match self.eval(star)? {
                Value::Dict(d) => {
                    ops::take_items(d.map.len(), &mut self.budget)?;
                    for (key, value) in d.map.values() {
                        let Value::Str(key) = key else {
                            return Err("keywords must be strings".into());
                        };
                        call.named.push((Arc::clone(key), value.clone()));
                    }
                }
                Value::Undefined(_) => {}
                other => {
                    let message =
                        format!("argument after ** must be a mapping, not {}", other.type_name());
                    return Err(message.into());
                }
            }
        }
        Ok(call)
    }

    /// `value.name`: looks up an attribute or method first, then an item.
    pub(super) fn attribute(&self, value: &Value, name: &str) -> EvalResult {
        match value {
            Value::Undefined(message) => return Err(message.to_string().into()),
            Value::Namespace(at) => {
                if let Some(value) = self.namespaces.get(*at).and_then(|ns| ns.get(name)) {
                    return Ok(value.clone());
                }
            }
            Value::Loop(state) => {
                if let Some(value) = self.loop_attribute(state, value, name)? {
                    return Ok(value);
                }
            }
            Value::Macro(m) => match name {
                "name" => return Ok(Value::Str(Arc::clone(&m.def.name))),
                "arguments" => {
                    let names = m.def.params.iter().map(|(name, _)| Value::Str(Arc::clone(name)));
                    return Value::tuple(names.collect());
                }
                "catch_varargs" => return Ok(Value::Bool(m.def.implicit_params.varargs)),
                "catch_kwargs" => return Ok(Value::Bool(m.def.implicit_params.kwargs)),
                "caller" => return Ok(Value::Bool(m.def.implicit_params.caller)),
                _ => {}
            },
            Value::Cycler(c) if name == "current" => {
                return Ok(c.items.get(c.at.get()).cloned().unwrap_or(Value::None));
            }
            Value::Seq(s) if s.kind == SeqKind::Tuple && s.items.len() == 2 => {
                // `groupby` returns pairs with named fields.
                match name {
                    "grouper" => return Ok(s.items[0].clone()),
                    "list" => return Ok(s.items[1].clone()),
                    _ => {}
                }
            }
            _ => {}
        }
        match methods::attribute(value, name) {
            Some(Attribute::Method(method)) => {
                return Ok(Value::Method(Rc::new((value.clone(), method))));
            }
            Some(Attribute::Unsafe) => {
                let message = format!(
                    "access to attribute '{}' of '{}' object is unsafe.",
                    shorten(name),
                    value.type_name()
                );
                return Ok(Value::Undefined(message.into()));
            }
            None => {}
        }
        if let Value::Dict(d) = value
            && let Some(value) = d.get_str(name)
        {
            return Ok(value.clone());
        }
        Ok(missing(value, &format!("attribute '{}'", shorten(name))))
    }

    /// `value[index]`: looks up an item first, then an attribute.
    pub(super) fn item(&mut self, value: &Value, index: &Value) -> EvalResult {
        if let Value::Undefined(message) = value {
            return Err(message.to_string().into());
        }
        if let Some(item) = ops::item(value, index, &mut self.budget)? {
            return Ok(item);
        }
        match index {
            Value::Str(name) => self.attribute(value, name),
            Value::Undefined(_) => Ok(missing(value, "element Undefined")),
            other => {
                let shown = super::text::to_str(other)?;
                self.budget.charge_read(shown.len())?;
                Ok(missing(value, &format!("element {}", shorten(&shown))))
            }
        }
    }

    fn loop_attribute(
        &self,
        state: &Rc<Loop>,
        value: &Value,
        name: &str,
    ) -> EvalResult<Option<Value>> {
        let (at, len) = (state.at.get(), state.items.len());
        let int = |n: usize| Some(Value::Int(n as i128));
        Ok(match name {
            "index" => int(at + 1),
            "index0" => int(at),
            "revindex" => int(len - at),
            "revindex0" => int(len - at - 1),
            "first" => Some(Value::Bool(at == 0)),
            "last" => Some(Value::Bool(at + 1 == len)),
            "length" => int(len),
            "depth" => int(state.level + 1),
            "depth0" => int(state.level),
            "previtem" => Some(match at.checked_sub(1).and_then(|at| state.items.get(at)) {
                Some(item) => item.clone(),
                None => Value::Undefined("there is no previous item".into()),
            }),
            "nextitem" => Some(match state.items.get(at + 1) {
                Some(item) => item.clone(),
                None => Value::Undefined("there is no next item".into()),
            }),
            "cycle" => Some(Value::Method(Rc::new((value.clone(), "cycle")))),
            "changed" => Some(Value::Method(Rc::new((value.clone(), "changed")))),
            _ => None,
        })
    }

    pub(super) fn call(&mut self, callee: &Value, args: CallArgs) -> EvalResult {
        self.budget.charge_steps(1)?;
        args.charge(&mut self.budget)?;
        match callee {
            Value::Undefined(message) => Err(message.to_string().into()),
            Value::Function(name) => self.global(name, args),
            Value::Macro(m) => {
                let m = Rc::clone(m);
                self.call_macro(&m, args)
            }
            Value::Method(m) => match (&m.0, m.1) {
                (Value::Loop(state), "cycle") => {
                    let at = state.at.get() % args.pos.len().max(1);
                    args.pos.get(at).cloned().ok_or_else(|| "no items for cycling given".into())
                }
                (Value::Loop(state), "changed") => {
                    let before = state.changed.replace(Some(args.pos.clone()));
                    let same = match before {
                        Some(before) if before.len() == args.pos.len() => {
                            let mut same = true;
                            for (a, b) in before.iter().zip(&args.pos) {
                                same &= ops::equal(a, b, &mut self.budget)?;
                            }
                            same
                        }
                        _ => false,
                    };
                    Ok(Value::Bool(!same))
                }
                (Value::Str(s), "format") => {
                    let text = braces(s, &args, self)?;
                    self.budget.charge_text(text.len())?;
                    Ok(Value::str(text))
                }
                (value, method) => methods::call(value, method, &args, &mut self.budget),
            },
            Value::Loop(state) => self.recurse(&Rc::clone(state), &args),
            Value::Joiner(j) => {
                args.none("joiner")?;
                Ok(if j.1.replace(true) { j.0.clone() } else { Value::str("") })
            }
            other => Err(format!("'{}' object is not callable", other.type_name()).into()),
        }
    }

    /// Calls `loop(items)` in a recursive loop.
    fn recurse(&mut self, state: &Rc<Loop>, args: &CallArgs) -> EvalResult {
        let Some((stmt, scope)) = &state.recursive else {
            return Err(
                "The loop must have the 'recursive' marker to be called recursively.".into()
            );
        };
        let items = args.one("loop")?;
        let back = std::mem::replace(&mut self.scope, *scope);
        let text = self.capture_output(|interp| interp.for_loop(stmt, &items, state.level + 1))?;
        self.scope = back;
        Ok(Value::str(text))
    }
}

/// Longest name in an error message, in bytes.
const MAX_SHOWN_CHARS: usize = 200;

/// The start of a name, for error messages; the name itself may be arbitrarily long.
pub(super) fn shorten(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_SHOWN_CHARS)]
}

/// The undefined value for a missing attribute or item of `value`.
fn missing(value: &Value, what: &str) -> Value {
    let object = match value {
        Value::None => "None".to_string(),
        Value::Namespace(_) => "jinja2.utils.Namespace object".to_string(),
        other => format!("{} object", other.type_name()),
    };
    let object = if what.starts_with("attribute") { format!("'{object}'") } else { object };
    Value::Undefined(format!("{object} has no {what}").into())
}
