//! Executes a Go template.

use std::sync::Arc;

use super::functions::{self, Environment};
use super::node::{Arg, Branch, Command, Expr, Node, Number, Pipe};
use super::parse::TemplateTrees;
use super::printf;
use super::value::{Value, print};
use crate::PromptError;
use crate::limits::{Budget, TemplateLimit};

/// Executes `nodes` as the main template with `data` as its dot. On an error, `out` contains the
/// text written before.
pub(super) fn run(
    source: &str,
    trees: &TemplateTrees,
    nodes: &[Node],
    data: &Value,
    env: &Environment,
    budget: &mut Budget,
    out: &mut String,
) -> Result<(), PromptError> {
    let vars = vec![("$", data.clone())];
    let mut exec = Exec { source, trees, env, budget, out, template: "", vars };
    exec.list(data, nodes).map(|_| ())
}

struct Exec<'t> {
    source: &'t str,
    trees: &'t TemplateTrees,
    env: &'t Environment,
    budget: &'t mut Budget,
    out: &'t mut String,
    /// Name of the template in execution.
    template: &'t str,
    /// Variables with their `$`, innermost last.
    vars: Vec<(&'t str, Value)>,
}

/// How a list of nodes ended.
#[derive(PartialEq)]
enum ControlFlow {
    Next,
    Break,
    Continue,
}

/// Source node of a function call. Its text is only computed for error messages.
#[derive(Clone, Copy)]
enum CallSite<'a> {
    Command(&'a Command),
    Arg(&'a Arg),
}

impl CallSite<'_> {
    fn pos(self) -> usize {
        match self {
            CallSite::Command(cmd) => cmd.pos,
            CallSite::Arg(arg) => arg.pos,
        }
    }

    fn text(self) -> String {
        match self {
            CallSite::Command(cmd) => cmd.to_string(),
            CallSite::Arg(arg) => arg.to_string(),
        }
    }
}

type ExecResult<T> = Result<T, PromptError>;

impl<'t> Exec<'t> {
    fn list(&mut self, dot: &Value, nodes: &'t [Node]) -> ExecResult<ControlFlow> {
        for node in nodes {
            self.charge(1, 0)?;
            let flow = match node {
                Node::Text(text) => {
                    self.write(text, 0)?;
                    ControlFlow::Next
                }
                Node::Action(pipe) => {
                    let value = self.pipe(dot, pipe)?;
                    if pipe.decl.is_empty() {
                        self.print(&value, pipe.cmds.first().map_or(0, |c| c.pos))?;
                    }
                    ControlFlow::Next
                }
                Node::If(branch) => self.branch(dot, branch, false)?,
                Node::With(branch) => self.branch(dot, branch, true)?,
                Node::Range(branch) => {
                    self.range(dot, branch)?;
                    ControlFlow::Next
                }
                Node::Template { pos, name, pipe } => {
                    self.call_template(dot, *pos, name, pipe.as_ref())?;
                    ControlFlow::Next
                }
                Node::Break => ControlFlow::Break,
                Node::Continue => ControlFlow::Continue,
            };
            if flow != ControlFlow::Next {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Next)
    }

    fn branch(
        &mut self,
        dot: &Value,
        branch: &'t Branch,
        is_with: bool,
    ) -> ExecResult<ControlFlow> {
        let pos = pipe_pos(&branch.pipe);
        self.enter(pos)?;
        let vars = self.vars.len();
        let value = self.pipe(dot, &branch.pipe)?;
        let flow = if value.is_true() {
            self.list(if is_with { &value } else { dot }, &branch.list)?
        } else if let Some(list) = &branch.else_list {
            self.list(dot, list)?
        } else {
            ControlFlow::Next
        };
        self.vars.truncate(vars);
        self.budget.leave();
        Ok(flow)
    }

    fn range(&mut self, dot: &Value, branch: &'t Branch) -> ExecResult<()> {
        let pos = pipe_pos(&branch.pipe);
        self.enter(pos)?;
        let vars = self.vars.len();
        let over = self.pipe(dot, &branch.pipe)?;
        let base = self.vars.len();
        let mut turns = 0usize;
        match &over {
            Value::List(list) => {
                for (i, item) in list.items().iter().enumerate() {
                    turns += 1;
                    if self.iteration(branch, base, index_value(i), item)? == ControlFlow::Break {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, item) in &map.entries {
                    turns += 1;
                    if self.iteration(branch, base, Value::Str(Arc::clone(key)), item)?
                        == ControlFlow::Break
                    {
                        break;
                    }
                }
            }
            Value::Int(n) => {
                if branch.pipe.decl.len() > 1 {
                    let message = format!("can't use {n} to iterate over more than one variable");
                    return Err(self.pipe_error(&branch.pipe, message));
                }
                for i in 0..*n {
                    turns += 1;
                    if self.iteration(branch, base, Value::Int(i), &Value::Int(i))?
                        == ControlFlow::Break
                    {
                        break;
                    }
                }
            }
            Value::Nil => {}
            other => {
                let message = format!("range can't iterate over {}", print(other));
                return Err(self.pipe_error(&branch.pipe, message));
            }
        }
        if let (0, Some(list)) = (turns, &branch.else_list) {
            self.list(dot, list)?;
        }
        self.vars.truncate(vars);
        self.budget.leave();
        Ok(())
    }

    /// Runs one iteration of a loop. `base` is the number of variables including the loop's.
    fn iteration(
        &mut self,
        branch: &'t Branch,
        base: usize,
        index: Value,
        item: &Value,
    ) -> ExecResult<ControlFlow> {
        self.charge(1, pipe_pos(&branch.pipe))?;
        let decl = &branch.pipe.decl;
        let values = match decl.len() {
            0 => vec![],
            1 => vec![item.clone()],
            _ => vec![index, item.clone()],
        };
        for (i, (name, value)) in decl.iter().zip(values).enumerate() {
            if branch.pipe.is_assign {
                self.assign(name, value, &branch.pipe)?;
            } else {
                self.vars[base - decl.len() + i].1 = value;
            }
        }
        let flow = self.list(item, &branch.list)?;
        self.vars.truncate(base);
        Ok(flow)
    }

    fn call_template(
        &mut self,
        dot: &Value,
        pos: usize,
        name: &'t str,
        pipe: Option<&'t Pipe>,
    ) -> ExecResult<()> {
        let Some((name, nodes)) = self.trees.get_key_value(name) else {
            let message = format!("template {name:?} not defined");
            let argument = pipe.map(|p| format!(" {p}")).unwrap_or_default();
            return Err(self.error(pos, &format!("{{{{template {name:?}{argument}}}}}"), message));
        };
        let dot = match pipe {
            Some(pipe) => self.pipe(dot, pipe)?,
            None => Value::Nil,
        };
        self.enter(pos)?;
        let vars = std::mem::replace(&mut self.vars, vec![("$", dot.clone())]);
        let caller = std::mem::replace(&mut self.template, name);
        self.list(&dot, nodes)?;
        self.template = caller;
        self.vars = vars;
        self.budget.leave();
        Ok(())
    }

    /// Evaluates a pipeline, and declares or assigns its variables.
    fn pipe(&mut self, dot: &Value, pipe: &'t Pipe) -> ExecResult<Value> {
        let pos = pipe_pos(pipe);
        self.enter(pos)?;
        let mut value = None;
        for cmd in &pipe.cmds {
            value = Some(self.command(dot, cmd, value)?);
        }
        let value = value.unwrap_or(Value::Nil);
        for name in &pipe.decl {
            if pipe.is_assign {
                self.assign(name, value.clone(), pipe)?;
            } else {
                self.vars.push((name, value.clone()));
            }
        }
        self.budget.leave();
        Ok(value)
    }

    fn assign(&mut self, name: &str, value: Value, pipe: &Pipe) -> ExecResult<()> {
        match self.vars.iter_mut().rev().find(|(n, _)| *n == name) {
            Some(var) => {
                var.1 = value;
                Ok(())
            }
            None => Err(self.pipe_error(pipe, format!("undefined variable: {name}"))),
        }
    }

    fn command(&mut self, dot: &Value, cmd: &'t Command, last: Option<Value>) -> ExecResult<Value> {
        let Some((first, rest)) = cmd.args.split_first() else { return Ok(Value::Nil) };
        let has_args = !rest.is_empty() || last.is_some();
        match &first.expr {
            Expr::Ident(name) => {
                return self.function(dot, name, CallSite::Command(cmd), first, rest, last);
            }
            Expr::Field(names) | Expr::Variable(names) | Expr::Chain(_, names) if has_args => {
                // Only methods take arguments, and values have no methods here.
                let value = self.arg(dot, first)?;
                let own = matches!(&first.expr, Expr::Variable(names) if names.len() == 1);
                let name = names.last().map_or("", String::as_str);
                let message = match value {
                    _ if own => format!("can't give argument to non-function {first}"),
                    _ => format!("{name} is not a method but has arguments"),
                };
                return Err(self.arg_error(first, message));
            }
            Expr::Pipe(pipe) if !has_args => return self.pipe(dot, pipe),
            Expr::Nil if !has_args => return Err(self.arg_error(first, "nil is not a command")),
            Expr::Pipe(_) if has_args => {
                let message = format!("can't give argument to non-function {first}");
                return Err(self.error(cmd.pos, &cmd.to_string(), message));
            }
            _ if has_args => {
                return Err(
                    self.arg_error(first, format!("can't give argument to non-function {first}"))
                );
            }
            _ => {}
        }
        self.arg(dot, first)
    }

    /// Calls a function. `site` is the source node for error messages.
    fn function(
        &mut self,
        dot: &Value,
        name: &str,
        site: CallSite<'_>,
        ident: &'t Arg,
        args: &'t [Arg],
        last: Option<Value>,
    ) -> ExecResult<Value> {
        if name == "and" || name == "or" {
            return self.short_circuit(dot, name == "or", ident, args, last);
        }
        let count = args.len() + usize::from(last.is_some());
        functions::check_arity(name, count).map_err(|message| self.arg_error(ident, message))?;
        let mut values = Vec::with_capacity(count);
        for arg in args {
            values.push(self.arg(dot, arg)?);
        }
        values.extend(last);
        self.check_types(name, site, args, &values)?;
        if !matches!(name, "len" | "index" | "slice" | "not") {
            let printed_size = values.iter().map(Value::printed_size).sum();
            self.budget.charge_text(printed_size).map_err(|limit| self.limit(site.pos(), limit))?;
        }
        if let ("printf", [Value::Str(format), args @ ..]) = (name, &values[..]) {
            let text = printf::sprintf(format, args, self.budget);
            return text.map(Value::str).map_err(|limit| self.limit(site.pos(), limit));
        }
        let result = functions::call(self.env, name, &values).map_err(|message| {
            self.error(site.pos(), &site.text(), format!("error calling {name}: {message}"))
        })?;
        // These functions create new texts: escaping lengthens a text, and slicing copies it.
        if let ("slice" | "html" | "js" | "urlquery" | "json", Value::Str(text)) = (name, &result) {
            self.budget.charge_text(text.len()).map_err(|limit| self.limit(site.pos(), limit))?;
        }
        Ok(result)
    }

    /// Errors that Go reports at an argument, before the call.
    fn check_types(
        &self,
        name: &str,
        site: CallSite<'_>,
        args: &[Arg],
        values: &[Value],
    ) -> ExecResult<()> {
        match (name, values.first(), args.first()) {
            ("printf", Some(Value::Str(_)), _) => Ok(()),
            ("printf", _, Some(arg)) if matches!(arg.expr, Expr::Number(..) | Expr::Bool(_)) => {
                Err(self.arg_error(arg, format!("expected string; found {arg}")))
            }
            ("printf", Some(value), Some(arg)) => {
                let message =
                    format!("wrong type for value; expected string; got {}", value.type_name());
                Err(self.arg_error(arg, message))
            }
            ("call", Some(value), Some(arg)) => {
                let what = match value {
                    Value::Nil => "call of nil".to_string(),
                    _ => format!("non-function {arg} of type {}", value.type_name()),
                };
                Err(self.error(site.pos(), &site.text(), format!("error calling call: {what}")))
            }
            _ => Ok(()),
        }
    }

    /// Evaluates `and` and `or`: returns the first operand that decides, or the last one.
    fn short_circuit(
        &mut self,
        dot: &Value,
        is_or: bool,
        ident: &'t Arg,
        args: &'t [Arg],
        last: Option<Value>,
    ) -> ExecResult<Value> {
        let mut value = None;
        for arg in args {
            let operand = self.arg(dot, arg)?;
            if operand.is_true() == is_or {
                return Ok(operand);
            }
            value = Some(operand);
        }
        last.or(value).ok_or_else(|| {
            let name = if is_or { "or" } else { "and" };
            self.arg_error(ident, format!("wrong number of args for {name}: want at least 1 got 0"))
        })
    }

    fn arg(&mut self, dot: &Value, arg: &'t Arg) -> ExecResult<Value> {
        self.charge(1, arg.pos)?;
        match &arg.expr {
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Number(Number::Int(n), _) => Ok(Value::Int(*n)),
            Expr::Number(Number::Float(f), _) => Ok(Value::Float(*f)),
            Expr::Number(Number::Overflow, text) => {
                Err(self.arg_error(arg, format!("{text} overflows int")))
            }
            Expr::Str { text, .. } => Ok(Value::Str(Arc::clone(text))),
            Expr::Nil => Ok(Value::Nil),
            Expr::Dot => Ok(dot.clone()),
            Expr::Field(names) => self.fields(arg, dot.clone(), names),
            Expr::Variable(names) => {
                let Some((name, rest)) = names.split_first() else { return Ok(Value::Nil) };
                match self.vars.iter().rev().find(|(n, _)| n == name) {
                    Some((_, value)) => self.fields(arg, value.clone(), rest),
                    None => Err(self.arg_error(arg, format!("undefined variable: {name}"))),
                }
            }
            Expr::Ident(name) => self.function(dot, name, CallSite::Arg(arg), arg, &[], None),
            Expr::Chain(inner, names) => {
                if matches!(inner.expr, Expr::Nil) {
                    return Err(self.arg_error(arg, "indirection through explicit nil"));
                }
                let value = self.arg(dot, inner)?;
                self.fields(arg, value, names)
            }
            Expr::Pipe(pipe) => self.pipe(dot, pipe),
        }
    }

    /// Evaluates the fields `.A.B` of `value`. A nil value stays nil; a nil field in between is an
    /// error, as in Go.
    fn fields(&mut self, arg: &Arg, mut value: Value, names: &[String]) -> ExecResult<Value> {
        let from_nil = matches!(value, Value::Nil);
        for name in names {
            self.charge(1, arg.pos)?;
            if from_nil {
                continue;
            }
            value = match &value {
                Value::Nil => {
                    let message = format!("nil pointer evaluating interface {{}}.{name}");
                    return Err(self.arg_error(arg, message));
                }
                Value::Map(map) if map.entries.contains_key(name.as_str()) => {
                    map.entries[name.as_str()].clone()
                }
                _ if name == "String" && value.custom_text().is_some() => {
                    Value::str(value.custom_text().unwrap_or_default())
                }
                Value::Map(_) => Value::Nil,
                Value::Struct(s) => match s.fields.iter().find(|f| f.name == name) {
                    Some(field) => field.value.clone(),
                    None if name == "ToTypeScriptType" => {
                        Value::str(functions::type_script(&value))
                    }
                    None => {
                        let message =
                            format!("can't evaluate field {name} in type {}", s.type_name);
                        return Err(self.arg_error(arg, message));
                    }
                },
                _ => {
                    let message = format!("can't evaluate field {name} in type interface {{}}");
                    return Err(self.arg_error(arg, message));
                }
            };
        }
        Ok(value)
    }

    fn print(&mut self, value: &Value, pos: usize) -> ExecResult<()> {
        match value {
            Value::Nil => self.write("<no value>", pos),
            Value::Str(s) => self.write(s, pos),
            other => {
                self.budget
                    .charge_text(other.printed_size())
                    .map_err(|limit| self.limit(pos, limit))?;
                self.write(&print(other), pos)
            }
        }
    }

    fn write(&mut self, text: &str, pos: usize) -> ExecResult<()> {
        self.budget.charge_text(text.len()).map_err(|limit| self.limit(pos, limit))?;
        // The whole output has the same limit as a text, but is charged only once.
        if self.out.len() + text.len() > crate::limits::MAX_TEXT_BYTES {
            return Err(self.limit(pos, TemplateLimit::Text));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn charge(&mut self, steps: u64, pos: usize) -> ExecResult<()> {
        self.budget.charge_steps(steps).map_err(|limit| self.limit(pos, limit))
    }

    fn enter(&mut self, pos: usize) -> ExecResult<()> {
        self.budget.enter().map_err(|limit| self.limit(pos, limit))
    }

    fn limit(&self, pos: usize, limit: TemplateLimit) -> PromptError {
        PromptError::Limit { line: self.line_and_column(pos).0, limit }
    }

    fn arg_error(&self, arg: &Arg, message: impl Into<String>) -> PromptError {
        self.error(arg.pos, &arg.to_string(), message.into())
    }

    /// An error in the value of a pipeline. Like Go, it names the first operand.
    fn pipe_error(&self, pipe: &Pipe, message: String) -> PromptError {
        let text = pipe.cmds.first().and_then(|c| c.args.first()).map(Arg::to_string);
        self.error(pipe_pos(pipe), &text.unwrap_or_default(), message)
    }

    fn error(&self, pos: usize, node: &str, message: String) -> PromptError {
        let (line, column) = self.line_and_column(pos);
        let node = node.to_string();
        PromptError::GoRender { template: self.template.to_string(), line, column, node, message }
    }

    fn line_and_column(&self, pos: usize) -> (usize, usize) {
        let before = &self.source.as_bytes()[..pos.min(self.source.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        (line, before.len() - start)
    }
}

fn pipe_pos(pipe: &Pipe) -> usize {
    pipe.cmds.first().and_then(|c| c.args.first()).map_or(0, |a| a.pos)
}

fn index_value(i: usize) -> Value {
    Value::Int(i64::try_from(i).unwrap_or(i64::MAX))
}
