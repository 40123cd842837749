//! Statements of Jinja.

use std::sync::Arc;

use super::ast::{Body, Expr, For, Macro, Name, Post, Stmt, StmtKind, Takes, Target};
use super::lex::{Tok, Token, lex};
use crate::PromptError;
use crate::limits::{Bound, DEPTH_MAX, SOURCE_BYTES_MAX};

pub(super) fn parse(source: &str) -> Result<Body, PromptError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(PromptError::Limit { line: 0, bound: Bound::Source });
    }
    let mut parser = Parser {
        tokens: lex(source)?,
        at: 0,
        depth: 0,
        open: Vec::new(),
        wanted: Vec::new(),
        takes: Takes::default(),
    };
    let (body, _) = parser.body(&[])?;
    Ok(body)
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// Tags that are open, innermost last, for messages.
    open: Vec<String>,
    /// What would close them.
    wanted: Vec<&'static [&'static str]>,
    /// Which special names the macro being parsed reads.
    pub(super) takes: Takes,
}

pub(super) type Parsed<T> = Result<T, PromptError>;

impl Parser {
    /// Statements up to one of the tags in `ends`, whose name is consumed and given back.
    fn body(&mut self, ends: &'static [&'static str]) -> Parsed<(Body, String)> {
        self.enter()?;
        let mut body = Body::new();
        loop {
            let line = self.line();
            match self.next() {
                Tok::Data(text) => body.push(Stmt { line, kind: StmtKind::Text(text) }),
                Tok::VarBegin => {
                    let expr = self.tuple(true)?;
                    self.expect(&Tok::VarEnd)?;
                    body.push(Stmt { line, kind: StmtKind::Print(expr) });
                }
                Tok::BlockBegin => {
                    let name = self.name()?;
                    if ends.contains(&name.as_str()) {
                        self.leave();
                        return Ok((body, name));
                    }
                    if let Some(kind) = self.statement(&name)? {
                        body.push(Stmt { line, kind });
                    }
                }
                Tok::Eof if ends.is_empty() => {
                    self.leave();
                    return Ok((body, String::new()));
                }
                Tok::Eof => {
                    return Err(self.error(format!("Unexpected end of template. {}", self.hint())));
                }
                other => return Err(self.error(format!("unexpected {}", describe(&other)))),
            }
        }
    }

    /// The body of `tag`, up to one of `ends`.
    fn block(&mut self, tag: &str, ends: &'static [&'static str]) -> Parsed<(Body, String)> {
        self.expect(&Tok::BlockEnd)?;
        self.open.push(tag.to_string());
        self.wanted.push(ends);
        let result = self.body(ends)?;
        self.open.pop();
        self.wanted.pop();
        Ok(result)
    }

    /// The body of `tag` up to its only end tag, which is consumed whole.
    fn whole_block(&mut self, tag: &str, ends: &'static [&'static str]) -> Parsed<Body> {
        let (body, _) = self.block(tag, ends)?;
        self.expect(&Tok::BlockEnd)?;
        Ok(body)
    }

    fn statement(&mut self, tag: &str) -> Parsed<Option<StmtKind>> {
        let kind = match tag {
            "if" => self.if_statement()?,
            "for" => self.for_statement()?,
            "set" => self.set_statement()?,
            "macro" => self.macro_statement()?,
            "call" => self.call_statement()?,
            "filter" => {
                let filters = self.filters(true)?;
                StmtKind::Filter(filters, self.whole_block(tag, &["endfilter"])?)
            }
            "with" => {
                let mut vars = Vec::new();
                while *self.peek() != Tok::BlockEnd {
                    if !vars.is_empty() {
                        self.expect(&Tok::Op(","))?;
                    }
                    let target = self.target(false)?;
                    self.expect(&Tok::Op("="))?;
                    vars.push((target, self.expression()?));
                }
                StmtKind::With(vars, self.whole_block(tag, &["endwith"])?)
            }
            "print" => {
                let expr = match self.tuple(true)? {
                    Expr::Tuple(items) => Expr::Concat(items),
                    expr => expr,
                };
                self.expect(&Tok::BlockEnd)?;
                StmtKind::Print(expr)
            }
            "break" | "continue" => {
                self.expect(&Tok::BlockEnd)?;
                if tag == "break" { StmtKind::Break } else { StmtKind::Continue }
            }
            "generation" => StmtKind::Transparent(self.whole_block(tag, &["endgeneration"])?),
            "block" => {
                self.name()?;
                while matches!(self.peek(), Tok::Name(word) if word == "scoped" || word == "required")
                {
                    self.next();
                }
                let (body, _) = self.block(tag, &["endblock"])?;
                if matches!(self.peek(), Tok::Name(_)) {
                    self.next();
                }
                self.expect(&Tok::BlockEnd)?;
                StmtKind::Transparent(body)
            }
            "autoescape" => {
                self.expression()?;
                StmtKind::Transparent(self.whole_block(tag, &["endautoescape"])?)
            }
            "include" | "import" | "from" | "extends" => {
                while !matches!(self.peek(), Tok::BlockEnd | Tok::Eof) {
                    self.next();
                }
                self.expect(&Tok::BlockEnd)?;
                StmtKind::NoLoader
            }
            _ => {
                return Err(self.error(
                    format!("Encountered unknown tag '{tag}'. {}", self.hint()).trim_end(),
                ));
            }
        };
        Ok(Some(kind))
    }

    /// Jinja's sentence on what is still open.
    fn hint(&self) -> String {
        let (Some(tag), Some(wanted)) = (self.open.last(), self.wanted.last()) else {
            return String::new();
        };
        let wanted: Vec<_> = wanted.iter().map(|w| format!("'{w}'")).collect();
        format!(
            "Jinja was looking for the following tags: {}. The innermost block that needs to be closed is '{tag}'.",
            wanted.join(" or ")
        )
    }

    fn if_statement(&mut self) -> Parsed<StmtKind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(true)?;
            let (body, end) = self.block("if", &["elif", "else", "endif"])?;
            branches.push((test, body));
            match end.as_str() {
                "elif" => continue,
                "else" => {
                    let otherwise = self.whole_block("if", &["endif"])?;
                    return Ok(StmtKind::If(branches, otherwise));
                }
                _ => {
                    self.expect(&Tok::BlockEnd)?;
                    return Ok(StmtKind::If(branches, Body::new()));
                }
            }
        }
    }

    fn for_statement(&mut self) -> Parsed<StmtKind> {
        let target = self.target_list()?;
        self.expect_word("in")?;
        let iter = self.tuple(false)?;
        let filter = if self.skip_word("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_word("recursive");
        let (body, end) = self.block("for", &["endfor", "else"])?;
        let otherwise = match end.as_str() {
            "else" => self.whole_block("for", &["endfor"])?,
            _ => {
                self.expect(&Tok::BlockEnd)?;
                Body::new()
            }
        };
        Ok(StmtKind::For(Arc::new(For { target, iter, filter, recursive, body, otherwise })))
    }

    fn set_statement(&mut self) -> Parsed<StmtKind> {
        let target = self.target_list()?;
        if self.skip_op("=") {
            let value = self.tuple(true)?;
            self.expect(&Tok::BlockEnd)?;
            return Ok(StmtKind::Set(target, value));
        }
        let filters = self.filters(false)?;
        Ok(StmtKind::SetBlock(target, filters, self.whole_block("set", &["endset"])?))
    }

    fn macro_statement(&mut self) -> Parsed<StmtKind> {
        let name: Name = self.name()?.into();
        let params = self.signature()?;
        let outer = std::mem::take(&mut self.takes);
        let body = self.whole_block("macro", &["endmacro"])?;
        let takes = std::mem::replace(&mut self.takes, outer);
        Ok(StmtKind::Macro(Arc::new(Macro { name, params, body, takes })))
    }

    fn call_statement(&mut self) -> Parsed<StmtKind> {
        let params = if *self.peek() == Tok::Op("(") { self.signature()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Post(_, ops) if matches!(ops.last(), Some(Post::Call(_)))) {
            return Err(self.error("expected call"));
        }
        let outer = std::mem::take(&mut self.takes);
        let body = self.whole_block("call", &["endcall"])?;
        let takes = std::mem::replace(&mut self.takes, outer);
        Ok(StmtKind::Call(Arc::new(Macro { name: "caller".into(), params, body, takes }), call))
    }

    fn signature(&mut self) -> Parsed<Vec<(Name, Option<Expr>)>> {
        self.expect(&Tok::Op("("))?;
        let mut params: Vec<(Name, Option<Expr>)> = Vec::new();
        while !self.skip_op(")") {
            if !params.is_empty() {
                self.expect(&Tok::Op(","))?;
                if self.skip_op(")") {
                    break;
                }
            }
            let name = self.name()?.into();
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && params.last().is_some_and(|(_, d)| d.is_some()) {
                return Err(self.error("non-default argument follows default argument"));
            }
            params.push((name, default));
        }
        Ok(params)
    }

    /// `a`, `a.b` (of a namespace) or `(a, b)`.
    fn target(&mut self, with_attr: bool) -> Parsed<Target> {
        if self.skip_op("(") {
            self.enter()?;
            let target = self.target_list()?;
            self.expect(&Tok::Op(")"))?;
            self.leave();
            return Ok(target);
        }
        let name: Name = self.name()?.into();
        if with_attr && self.skip_op(".") {
            return Ok(Target::Attr(name, self.name()?.into()));
        }
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return Err(self.error(format!("can't assign to '{name}'")));
        }
        Ok(Target::Name(name))
    }

    fn target_list(&mut self) -> Parsed<Target> {
        let first = self.target(true)?;
        if *self.peek() != Tok::Op(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_op(",") {
            if !matches!(self.peek(), Tok::Name(word) if word != "in")
                && *self.peek() != Tok::Op("(")
            {
                break;
            }
            targets.push(self.target(true)?);
        }
        Ok(Target::Tuple(targets))
    }

    /// `| a | b(c)` after `set`, or `a | b` after `filter`.
    fn filters(&mut self, bare: bool) -> Parsed<Vec<Post>> {
        let mut filters = Vec::new();
        if bare {
            filters.push(self.filter()?);
        }
        while self.skip_op("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    pub(super) fn enter(&mut self) -> Parsed<()> {
        if self.depth >= DEPTH_MAX {
            return Err(PromptError::Limit { line: self.line(), bound: Bound::Depth });
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn peek(&self) -> &Tok {
        &self.tokens[self.at.min(self.tokens.len() - 1)].tok
    }

    pub(super) fn peek_second(&self) -> &Tok {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].tok
    }

    pub(super) fn next(&mut self) -> Tok {
        let tok = self.peek().clone();
        self.at += 1;
        tok
    }

    fn line(&self) -> usize {
        self.tokens[self.at.min(self.tokens.len() - 1)].line
    }

    pub(super) fn expect(&mut self, want: &Tok) -> Parsed<()> {
        let got = self.peek().clone();
        if got == *want {
            self.at += 1;
            return Ok(());
        }
        Err(self.error(format!("expected token {}, got {}", describe(want), describe(&got))))
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.skip_word(word) {
            return Ok(());
        }
        Err(self.error(format!("expected token '{word}', got {}", describe(self.peek()))))
    }

    pub(super) fn skip_op(&mut self, op: &'static str) -> bool {
        let found = *self.peek() == Tok::Op(op);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Tok::Name(name) if name == word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn name(&mut self) -> Parsed<String> {
        match self.peek().clone() {
            Tok::Name(name) => {
                self.at += 1;
                Ok(name)
            }
            other => Err(self.error(format!("expected token 'name', got {}", describe(&other)))),
        }
    }

    pub(super) fn error(&self, message: impl Into<String>) -> PromptError {
        PromptError::JinjaSyntax { line: self.line(), message: message.into() }
    }
}

pub(super) fn describe(tok: &Tok) -> String {
    match tok {
        Tok::Data(_) => "'template data'".into(),
        Tok::VarBegin => "'begin of print statement'".into(),
        Tok::VarEnd => "'end of print statement'".into(),
        Tok::BlockBegin => "'begin of statement block'".into(),
        Tok::BlockEnd => "'end of statement block'".into(),
        Tok::Name(name) => format!("'{name}'"),
        Tok::Str(text) => format!("{text:?}"),
        Tok::Int(n) => format!("'{n}'"),
        Tok::Float(f) => format!("'{f}'"),
        Tok::Op(op) => format!("'{op}'"),
        Tok::Eof => "'end of template'".into(),
    }
}
