//! Executes Jinja templates: statements, scopes, output.

use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::args::CallArgs;
use super::ast::{Body, Expr, For, Macro, Name, Postfix, Stmt, StmtKind, Target};
use super::text::str_to;
use super::value::{EvalError, EvalResult, Loop, MacroValue, Value};
use crate::PromptError;
use crate::limits::{Budget, MAX_TEXT_BYTES, TemplateLimit};

/// Cost of defining a macro, in steps: its scope is kept until the end of the rendering.
const MACRO_STEPS: u64 = 100;

/// Variables of one block. The first scope contains the context and the top-level variables.
struct Scope {
    vars: IndexMap<Name, Value>,
    parent: Option<usize>,
    /// A macro was defined in this scope or an inner one, so that the scope must outlive its block.
    captured: bool,
}

pub(super) struct Interpreter {
    scopes: Vec<Scope>,
    /// Index of the current scope.
    pub(super) scope: usize,
    pub(super) namespaces: Vec<IndexMap<Name, Value>>,
    /// Output buffers, innermost capture last.
    out: Vec<String>,
    line: usize,
    pub(super) budget: Budget,
    pub(super) now: jiff::civil::DateTime,
}

/// How a list of statements ended.
#[derive(PartialEq)]
enum ControlFlow {
    Next,
    Break,
    Continue,
}

/// Renders `body` with the variables of `context`.
pub(super) fn run(
    body: &Body,
    context: Vec<(Name, Value)>,
    now: jiff::civil::DateTime,
) -> Result<String, PromptError> {
    let root = Scope { vars: context.into_iter().collect(), parent: None, captured: true };
    let mut interp = Interpreter {
        scopes: vec![root],
        scope: 0,
        namespaces: Vec::new(),
        out: vec![String::new()],
        line: 1,
        budget: Budget::new(),
        now,
    };
    match interp.exec(body) {
        Ok(_) => Ok(interp.out.pop().unwrap_or_default()),
        Err(fail) => {
            let line = interp.line;
            Err(match fail {
                EvalError::Error(message) => PromptError::JinjaRender { line, message },
                EvalError::Raised(message) => PromptError::Raised { line, message },
                EvalError::Limit(limit) => PromptError::Limit { line, limit },
            })
        }
    }
}

impl Interpreter {
    fn exec(&mut self, body: &Body) -> EvalResult<ControlFlow> {
        self.budget.enter()?;
        for stmt in body {
            self.budget.charge_steps(1)?;
            let flow = self.statement(stmt)?;
            if flow != ControlFlow::Next {
                self.budget.leave();
                return Ok(flow);
            }
        }
        self.budget.leave();
        Ok(ControlFlow::Next)
    }

    fn statement(&mut self, stmt: &Stmt) -> EvalResult<ControlFlow> {
        self.line = stmt.line;
        match &stmt.kind {
            StmtKind::Text(text) => self.write(text)?,
            StmtKind::Print(expr) => {
                let value = self.eval(expr)?;
                self.print(&value)?;
            }
            StmtKind::If(branches, else_body) => return self.if_statement(branches, else_body),
            StmtKind::For(stmt) => {
                let items = self.eval(&stmt.iter)?;
                self.for_loop(stmt, &items, 0)?;
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(target, filters, body) => {
                let value = self.filtered_block(filters, body)?;
                self.assign(target, value)?;
            }
            StmtKind::Filter(filters, body) => {
                let value = self.filtered_block(filters, body)?;
                self.print(&value)?;
            }
            StmtKind::Macro(def) => {
                let value = self.macro_value(def)?;
                self.set(&def.name, value);
            }
            StmtKind::Call(def, call) => self.call_block(def, call)?,
            StmtKind::With(vars, body) => return self.with(vars, body),
            StmtKind::Transparent(body) => return self.exec(body),
            StmtKind::Break => return Ok(ControlFlow::Break),
            StmtKind::Continue => return Ok(ControlFlow::Continue),
            StmtKind::NoLoader => return Err("no loader for this environment specified".into()),
        }
        Ok(ControlFlow::Next)
    }

    fn if_statement(
        &mut self,
        branches: &[(Expr, Body)],
        else_body: &Body,
    ) -> EvalResult<ControlFlow> {
        for (test, body) in branches {
            if self.eval(test)?.is_true() {
                return self.exec(body);
            }
        }
        self.exec(else_body)
    }

    fn with(&mut self, vars: &[(Target, Expr)], body: &Body) -> EvalResult<ControlFlow> {
        // Jinja evaluates all values before the scope of the block starts.
        let values =
            vars.iter().map(|(_, expr)| self.eval(expr)).collect::<EvalResult<Vec<_>>>()?;
        let outer = self.push_scope(self.scope);
        for ((target, _), value) in vars.iter().zip(values) {
            self.assign(target, value)?;
        }
        let flow = self.exec(body)?;
        self.pop_scope(outer);
        Ok(flow)
    }

    /// Runs `{% for %}` over `items`. `level` is the nesting level of a recursive loop.
    pub(super) fn for_loop(
        &mut self,
        stmt: &Arc<For>,
        items: &Value,
        level: usize,
    ) -> EvalResult<()> {
        self.budget.enter()?;
        let mut items = items.iterate()?;
        self.budget.charge_steps(items.len() as u64)?;
        if let Some(filter) = &stmt.filter {
            let mut kept = Vec::new();
            for item in items {
                let outer = self.push_scope(self.scope);
                self.assign(&stmt.target, item.clone())?;
                let keep = self.eval(filter)?.is_true();
                self.pop_scope(outer);
                if keep {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            self.else_body(stmt)?;
            self.budget.leave();
            return Ok(());
        }
        let recursive = stmt.recursive.then(|| {
            self.capture(self.scope);
            (Arc::clone(stmt), self.scope)
        });
        let state = Rc::new(Loop::new(items, level, recursive)?);
        let mut completed = false;
        for at in 0..state.items.len() {
            self.budget.charge_steps(1)?;
            state.at.set(at);
            let outer = self.push_scope(self.scope);
            self.set(&loop_name(), Value::Loop(Rc::clone(&state)));
            self.assign(&stmt.target, state.items[at].clone())?;
            let flow = self.exec(&stmt.body)?;
            self.pop_scope(outer);
            completed |= flow == ControlFlow::Next;
            if flow == ControlFlow::Break {
                break;
            }
        }
        if !completed {
            self.else_body(stmt)?;
        }
        self.budget.leave();
        Ok(())
    }

    /// Runs `{% else %}` of a loop. As in Jinja, it runs if no iteration was completed: the loop
    /// was empty, or every iteration was left early.
    fn else_body(&mut self, stmt: &For) -> EvalResult<()> {
        let outer = self.push_scope(self.scope);
        self.exec(&stmt.else_body)?;
        self.pop_scope(outer);
        Ok(())
    }

    fn filtered_block(&mut self, filters: &[Postfix], body: &Body) -> EvalResult {
        let outer = self.push_scope(self.scope);
        let text = self.capture_output(|interp| interp.exec(body).map(|_| ()))?;
        self.pop_scope(outer);
        self.postfixes(Value::str(text), filters)
    }

    fn call_block(&mut self, def: &Arc<Macro>, call: &Expr) -> EvalResult<()> {
        let caller = self.macro_value(def)?;
        let Expr::Postfix(base, postfixes) = call else { return Err("expected call".into()) };
        let Some((Postfix::Call(args), before)) = postfixes.split_last() else {
            return Err("expected call".into());
        };
        let base = self.eval(base)?;
        let callee = self.postfixes(base, before)?;
        let mut args = self.arguments(args)?;
        args.named.push(("caller".into(), caller));
        let value = self.call(&callee, args)?;
        self.print(&value)
    }

    fn macro_value(&mut self, def: &Arc<Macro>) -> EvalResult {
        self.budget.charge_steps(MACRO_STEPS)?;
        self.capture(self.scope);
        Ok(Value::Macro(Rc::new(MacroValue { def: Arc::clone(def), scope: self.scope })))
    }

    /// Calls a macro. The result is the text that it wrote.
    pub(super) fn call_macro(&mut self, value: &MacroValue, args: CallArgs) -> EvalResult {
        let def = &value.def;
        let caller_scope = self.scope;
        let outer = self.push_scope(value.scope);
        self.bind_params(def, args)?;
        let line = self.line;
        let text = self.capture_output(|interp| interp.exec(&def.body).map(|_| ()))?;
        self.line = line;
        self.pop_scope(outer);
        self.scope = caller_scope;
        Ok(Value::str(text))
    }

    fn bind_params(&mut self, def: &Macro, args: CallArgs) -> EvalResult<()> {
        let mut named = args.named;
        // Each parameter is searched among the named arguments.
        self.budget.charge_read(named.len().saturating_mul(def.params.len()))?;
        let mut positional = args.pos.into_iter();
        let mut limit: Vec<Option<Value>> = Vec::with_capacity(def.params.len());
        for (name, _) in &def.params {
            let value = match positional.next() {
                Some(value) => Some(value),
                None => named.iter().position(|(n, _)| n == name).map(|at| named.remove(at).1),
            };
            limit.push(value);
        }
        let rest: Vec<Value> = positional.collect();
        if !rest.is_empty() && !def.implicit_params.varargs {
            let max = def.params.len();
            return Err(
                format!("macro '{}' takes not more than {max} argument(s)", def.name).into()
            );
        }
        let caller = named.iter().position(|(n, _)| &**n == "caller");
        match caller {
            Some(at) if def.implicit_params.caller => {
                let caller = named.remove(at).1;
                self.set(&"caller".into(), caller);
            }
            Some(_) if !def.implicit_params.kwargs => {
                return Err(format!(
                    "macro '{}' was invoked with two values for the special caller argument. This is most likely a bug.",
                    def.name
                )
                .into());
            }
            None if def.implicit_params.caller => {
                self.set(&"caller".into(), Value::Undefined("No caller defined".into()));
            }
            _ => {}
        }
        if let Some((name, _)) = named.first().filter(|_| !def.implicit_params.kwargs) {
            return Err(format!("macro '{}' takes no keyword argument '{name}'", def.name).into());
        }
        if def.implicit_params.varargs {
            let rest = Value::tuple(rest)?;
            self.set(&"varargs".into(), rest);
        }
        if def.implicit_params.kwargs {
            let entries = named.into_iter().map(|(n, v)| (Value::Str(n), v)).collect();
            let kwargs = Value::dict(entries, &mut self.budget)?;
            self.set(&"kwargs".into(), kwargs);
        }
        for ((name, default), value) in def.params.iter().zip(limit) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default)?,
                (None, None) => {
                    Value::Undefined(format!("parameter '{name}' was not provided").into())
                }
            };
            self.set(name, value);
        }
        Ok(())
    }

    /// Runs `run` and returns the text that it wrote.
    pub(super) fn capture_output(
        &mut self,
        f: impl FnOnce(&mut Self) -> EvalResult<()>,
    ) -> EvalResult<String> {
        self.budget.enter()?;
        self.out.push(String::new());
        f(self)?;
        self.budget.leave();
        Ok(self.out.pop().unwrap_or_default())
    }

    fn print(&mut self, value: &Value) -> EvalResult<()> {
        if let Value::Str(text) = value {
            return self.write(text);
        }
        let mut text = String::new();
        str_to(&mut text, value)?;
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> EvalResult<()> {
        self.budget.charge_text(text.len())?;
        let Some(out) = self.out.last_mut() else { return Ok(()) };
        if out.len() + text.len() > MAX_TEXT_BYTES {
            return Err(TemplateLimit::Text.into());
        }
        out.push_str(text);
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> EvalResult<()> {
        match target {
            Target::Name(name) => {
                self.set(name, value);
                Ok(())
            }
            Target::Attr(name, attribute) => match self.lookup(name) {
                Value::Namespace(at) => {
                    check_attribute(attribute)?;
                    self.namespaces[at].insert(Arc::clone(attribute), value);
                    Ok(())
                }
                _ => Err("cannot assign attribute on non-namespace object".into()),
            },
            Target::Tuple(targets) => {
                let values = value.iterate().map_err(|fail| {
                    fail.with_message(format!(
                        "cannot unpack non-iterable {} object",
                        value.type_name()
                    ))
                })?;
                match values.len().cmp(&targets.len()) {
                    std::cmp::Ordering::Less => Err(format!(
                        "not enough values to unpack (expected {}, got {})",
                        targets.len(),
                        values.len()
                    )
                    .into()),
                    std::cmp::Ordering::Greater => {
                        Err(format!("too many values to unpack (expected {})", targets.len())
                            .into())
                    }
                    std::cmp::Ordering::Equal => {
                        targets.iter().zip(values).try_for_each(|(t, v)| self.assign(t, v))
                    }
                }
            }
        }
    }

    fn set(&mut self, name: &Name, value: Value) {
        self.scopes[self.scope].vars.insert(Arc::clone(name), value);
    }

    pub(super) fn lookup(&self, name: &str) -> Value {
        let mut scope = Some(self.scope);
        while let Some(at) = scope {
            if let Some(value) = self.scopes[at].vars.get(name) {
                return value.clone();
            }
            scope = self.scopes[at].parent;
        }
        match super::globals::find(name) {
            Some(function) => Value::Function(function),
            None => Value::Undefined(format!("'{name}' is undefined").into()),
        }
    }

    /// Starts a scope inside `parent`. Returns the scope to restore.
    pub(super) fn push_scope(&mut self, parent: usize) -> usize {
        self.scopes.push(Scope { vars: IndexMap::new(), parent: Some(parent), captured: false });
        std::mem::replace(&mut self.scope, self.scopes.len() - 1)
    }

    pub(super) fn pop_scope(&mut self, outer: usize) {
        if self.scope + 1 == self.scopes.len() && !self.scopes[self.scope].captured {
            self.scopes.pop();
        }
        self.scope = outer;
    }

    /// Keeps a scope and its parents until the end of the rendering.
    fn capture(&mut self, scope: usize) {
        let mut scope = Some(scope);
        while let Some(at) = scope.filter(|at| !self.scopes[*at].captured) {
            self.scopes[at].captured = true;
            scope = self.scopes[at].parent;
        }
    }
}

/// Refuses attribute names that a namespace must not have.
pub(super) fn check_attribute(name: &str) -> EvalResult<()> {
    if name.starts_with('_') {
        return Err(format!(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{name}'. \
             Please rename the attribute."
        )
        .into());
    }
    Ok(())
}

fn loop_name() -> Name {
    static NAME: std::sync::LazyLock<Name> = std::sync::LazyLock::new(|| Arc::from("loop"));
    Arc::clone(&NAME)
}
