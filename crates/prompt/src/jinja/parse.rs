//! Parses the statements of Jinja.

use std::sync::Arc;

use super::ast::{Body, Expr, For, ImplicitParams, Macro, Name, Postfix, Stmt, StmtKind, Target};
use super::lex::{Token, TokenKind, lex};
use crate::PromptError;
use crate::limits::{MAX_DEPTH, MAX_SOURCE_BYTES, TemplateLimit};

pub(super) fn parse(source: &str) -> Result<Body, PromptError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(PromptError::Limit { line: 0, limit: TemplateLimit::Source });
    }
    let mut parser = Parser {
        tokens: lex(source)?,
        at: 0,
        depth: 0,
        open: Vec::new(),
        wanted: Vec::new(),
        implicit_params: ImplicitParams::default(),
    };
    let (body, _) = parser.body(&[])?;
    Ok(body)
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
    /// Open tags for error messages, innermost last.
    open: Vec<String>,
    /// Tags that would close the open ones.
    wanted: Vec<&'static [&'static str]>,
    /// Special names that the current macro reads.
    pub(super) implicit_params: ImplicitParams,
}

pub(super) type ParseResult<T> = Result<T, PromptError>;

impl Parser {
    /// Parses statements up to one of the tags in `ends`. Consumes the name of that tag and returns
    /// it.
    fn body(&mut self, ends: &'static [&'static str]) -> ParseResult<(Body, String)> {
        self.enter()?;
        let mut body = Body::new();
        loop {
            let line = self.line();
            match self.next() {
                TokenKind::Data(text) => body.push(Stmt { line, kind: StmtKind::Text(text) }),
                TokenKind::VarBegin => {
                    let expr = self.tuple(true)?;
                    self.expect(&TokenKind::VarEnd)?;
                    body.push(Stmt { line, kind: StmtKind::Print(expr) });
                }
                TokenKind::BlockBegin => {
                    let name = self.name()?;
                    if ends.contains(&name.as_str()) {
                        self.leave();
                        return Ok((body, name));
                    }
                    if let Some(kind) = self.statement(&name)? {
                        body.push(Stmt { line, kind });
                    }
                }
                TokenKind::Eof if ends.is_empty() => {
                    self.leave();
                    return Ok((body, String::new()));
                }
                TokenKind::Eof => {
                    return Err(self.error(format!("Unexpected end of template. {}", self.hint())));
                }
                other => return Err(self.error(format!("unexpected {}", describe(&other)))),
            }
        }
    }

    /// Parses the body of `tag` up to one of `ends`.
    fn block(&mut self, tag: &str, ends: &'static [&'static str]) -> ParseResult<(Body, String)> {
        self.expect(&TokenKind::BlockEnd)?;
        self.open.push(tag.to_string());
        self.wanted.push(ends);
        let result = self.body(ends)?;
        self.open.pop();
        self.wanted.pop();
        Ok(result)
    }

    /// Parses the body of `tag` and its only end tag.
    fn whole_block(&mut self, tag: &str, ends: &'static [&'static str]) -> ParseResult<Body> {
        let (body, _) = self.block(tag, ends)?;
        self.expect(&TokenKind::BlockEnd)?;
        Ok(body)
    }

    fn statement(&mut self, tag: &str) -> ParseResult<Option<StmtKind>> {
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
                while *self.peek() != TokenKind::BlockEnd {
                    if !vars.is_empty() {
                        self.expect(&TokenKind::Op(","))?;
                    }
                    let target = self.target(false)?;
                    self.expect(&TokenKind::Op("="))?;
                    vars.push((target, self.expression()?));
                }
                StmtKind::With(vars, self.whole_block(tag, &["endwith"])?)
            }
            "print" => {
                let expr = match self.tuple(true)? {
                    Expr::Tuple(items) => Expr::Concat(items),
                    expr => expr,
                };
                self.expect(&TokenKind::BlockEnd)?;
                StmtKind::Print(expr)
            }
            "break" | "continue" => {
                self.expect(&TokenKind::BlockEnd)?;
                if tag == "break" { StmtKind::Break } else { StmtKind::Continue }
            }
            "generation" => StmtKind::Transparent(self.whole_block(tag, &["endgeneration"])?),
            "block" => {
                self.name()?;
                while matches!(self.peek(), TokenKind::Name(word) if word == "scoped" || word == "required")
                {
                    self.next();
                }
                let (body, _) = self.block(tag, &["endblock"])?;
                if matches!(self.peek(), TokenKind::Name(_)) {
                    self.next();
                }
                self.expect(&TokenKind::BlockEnd)?;
                StmtKind::Transparent(body)
            }
            "autoescape" => {
                self.expression()?;
                StmtKind::Transparent(self.whole_block(tag, &["endautoescape"])?)
            }
            "include" | "import" | "from" | "extends" => {
                while !matches!(self.peek(), TokenKind::BlockEnd | TokenKind::Eof) {
                    self.next();
                }
                self.expect(&TokenKind::BlockEnd)?;
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

    /// Jinja's error text about open tags.
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

    fn if_statement(&mut self) -> ParseResult<StmtKind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(true)?;
            let (body, end) = self.block("if", &["elif", "else", "endif"])?;
            branches.push((test, body));
            match end.as_str() {
                "elif" => continue,
                "else" => {
                    let else_body = self.whole_block("if", &["endif"])?;
                    return Ok(StmtKind::If(branches, else_body));
                }
                _ => {
                    self.expect(&TokenKind::BlockEnd)?;
                    return Ok(StmtKind::If(branches, Body::new()));
                }
            }
        }
    }

    fn for_statement(&mut self) -> ParseResult<StmtKind> {
        let target = self.target_list()?;
        self.expect_word("in")?;
        let iter = self.tuple(false)?;
        let filter = if self.skip_word("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_word("recursive");
        let (body, end) = self.block("for", &["endfor", "else"])?;
        let else_body = match end.as_str() {
            "else" => self.whole_block("for", &["endfor"])?,
            _ => {
                self.expect(&TokenKind::BlockEnd)?;
                Body::new()
            }
        };
        Ok(StmtKind::For(Arc::new(For { target, iter, filter, recursive, body, else_body })))
    }

    fn set_statement(&mut self) -> ParseResult<StmtKind> {
        let target = self.target_list()?;
        if self.skip_op("=") {
            let value = self.tuple(true)?;
            self.expect(&TokenKind::BlockEnd)?;
            return Ok(StmtKind::Set(target, value));
        }
        let filters = self.filters(false)?;
        Ok(StmtKind::SetBlock(target, filters, self.whole_block("set", &["endset"])?))
    }

    fn macro_statement(&mut self) -> ParseResult<StmtKind> {
        let name: Name = self.name()?.into();
        let params = self.signature()?;
        let outer = std::mem::take(&mut self.implicit_params);
        let body = self.whole_block("macro", &["endmacro"])?;
        let implicit_params = std::mem::replace(&mut self.implicit_params, outer);
        Ok(StmtKind::Macro(Arc::new(Macro { name, params, body, implicit_params })))
    }

    fn call_statement(&mut self) -> ParseResult<StmtKind> {
        let params =
            if *self.peek() == TokenKind::Op("(") { self.signature()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Postfix(_, ops) if matches!(ops.last(), Some(Postfix::Call(_)))) {
            return Err(self.error("expected call"));
        }
        let outer = std::mem::take(&mut self.implicit_params);
        let body = self.whole_block("call", &["endcall"])?;
        let implicit_params = std::mem::replace(&mut self.implicit_params, outer);
        Ok(StmtKind::Call(
            Arc::new(Macro { name: "caller".into(), params, body, implicit_params }),
            call,
        ))
    }

    fn signature(&mut self) -> ParseResult<Vec<(Name, Option<Expr>)>> {
        self.expect(&TokenKind::Op("("))?;
        let mut params: Vec<(Name, Option<Expr>)> = Vec::new();
        while !self.skip_op(")") {
            if !params.is_empty() {
                self.expect(&TokenKind::Op(","))?;
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

    /// Parses `a`, `a.b` (of a namespace) or `(a, b)`.
    fn target(&mut self, with_attr: bool) -> ParseResult<Target> {
        if self.skip_op("(") {
            self.enter()?;
            let target = self.target_list()?;
            self.expect(&TokenKind::Op(")"))?;
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

    fn target_list(&mut self) -> ParseResult<Target> {
        let first = self.target(true)?;
        if *self.peek() != TokenKind::Op(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_op(",") {
            if !matches!(self.peek(), TokenKind::Name(word) if word != "in")
                && *self.peek() != TokenKind::Op("(")
            {
                break;
            }
            targets.push(self.target(true)?);
        }
        Ok(Target::Tuple(targets))
    }

    /// Parses `| a | b(c)` behind `set`, or `a | b` behind `filter`.
    fn filters(&mut self, bare: bool) -> ParseResult<Vec<Postfix>> {
        let mut filters = Vec::new();
        if bare {
            filters.push(self.filter()?);
        }
        while self.skip_op("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    pub(super) fn enter(&mut self) -> ParseResult<()> {
        if self.depth >= MAX_DEPTH {
            return Err(PromptError::Limit { line: self.line(), limit: TemplateLimit::Depth });
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn peek(&self) -> &TokenKind {
        &self.tokens[self.at.min(self.tokens.len() - 1)].kind
    }

    pub(super) fn peek_second(&self) -> &TokenKind {
        &self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    pub(super) fn next(&mut self) -> TokenKind {
        let kind = self.peek().clone();
        self.at += 1;
        kind
    }

    fn line(&self) -> usize {
        self.tokens[self.at.min(self.tokens.len() - 1)].line
    }

    pub(super) fn expect(&mut self, want: &TokenKind) -> ParseResult<()> {
        let got = self.peek().clone();
        if got == *want {
            self.at += 1;
            return Ok(());
        }
        Err(self.error(format!("expected token {}, got {}", describe(want), describe(&got))))
    }

    fn expect_word(&mut self, word: &str) -> ParseResult<()> {
        if self.skip_word(word) {
            return Ok(());
        }
        Err(self.error(format!("expected token '{word}', got {}", describe(self.peek()))))
    }

    pub(super) fn skip_op(&mut self, op: &'static str) -> bool {
        let found = *self.peek() == TokenKind::Op(op);
        self.at += usize::from(found);
        found
    }

    pub(super) fn skip_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), TokenKind::Name(name) if name == word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn name(&mut self) -> ParseResult<String> {
        match self.peek().clone() {
            TokenKind::Name(name) => {
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

pub(super) fn describe(kind: &TokenKind) -> String {
    match kind {
        TokenKind::Data(_) => "'template data'".into(),
        TokenKind::VarBegin => "'begin of print statement'".into(),
        TokenKind::VarEnd => "'end of print statement'".into(),
        TokenKind::BlockBegin => "'begin of statement block'".into(),
        TokenKind::BlockEnd => "'end of statement block'".into(),
        TokenKind::Name(name) => format!("'{name}'"),
        TokenKind::Str(text) => format!("{text:?}"),
        TokenKind::Int(n) => format!("'{n}'"),
        TokenKind::Float(f) => format!("'{f}'"),
        TokenKind::Op(op) => format!("'{op}'"),
        TokenKind::Eof => "'end of template'".into(),
    }
}
