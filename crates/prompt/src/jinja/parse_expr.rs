//! Parses expressions with the precedences of Jinja2, lowest first: `if else`, `or`, `and`, `not`,
//! comparisons, `+ -`, `~`, `* / // %`, `**`, sign, postfix (`.` `[]` `()`), filters and tests.

use std::sync::Arc;

use super::ast::{Args, BinaryOp, CompareOp, Expr, Name, Postfix};
use super::lex::TokenKind;
use super::parse::{ParseResult, Parser, describe};

impl Parser {
    /// Parses an expression, or a tuple of expressions with commas between them.
    pub(super) fn tuple(&mut self, with_condition: bool) -> ParseResult<Expr> {
        let mut items = Vec::new();
        loop {
            match (self.at_tuple_end(), items.is_empty()) {
                (true, false) => return Ok(Expr::Tuple(items)),
                (true, true) => {
                    let got = describe(self.peek());
                    return Err(self.error(format!("Expected an expression, got {got}")));
                }
                _ => {}
            }
            let item = if with_condition { self.expression()? } else { self.or()? };
            if !self.skip_op(",") {
                return Ok(if items.is_empty() {
                    item
                } else {
                    items.push(item);
                    Expr::Tuple(items)
                });
            }
            items.push(item);
        }
    }

    fn at_tuple_end(&self) -> bool {
        matches!(
            self.peek(),
            TokenKind::VarEnd | TokenKind::BlockEnd | TokenKind::Op(")") | TokenKind::Eof
        ) || matches!(self.peek(), TokenKind::Name(word) if word == "recursive")
    }

    pub(super) fn expression(&mut self) -> ParseResult<Expr> {
        self.enter()?;
        let mut expr = self.or()?;
        let mut conditions = 0;
        while self.skip_word("if") {
            let test = Box::new(self.or()?);
            let no = if self.skip_word("else") { Some(Box::new(self.expression()?)) } else { None };
            expr = Expr::Cond { test, yes: Box::new(expr), no };
            // `a if b if c …` nests to the left: the parser does not recurse, but the evaluator
            // does.
            conditions += 1;
            if conditions > 8 {
                return Err(self.error("too many conditions in one expression"));
            }
        }
        self.leave();
        Ok(expr)
    }

    fn or(&mut self) -> ParseResult<Expr> {
        let mut items = vec![self.and()?];
        while self.skip_word("or") {
            items.push(self.and()?);
        }
        Ok(single_or(items, Expr::Or))
    }

    fn and(&mut self) -> ParseResult<Expr> {
        let mut items = vec![self.not()?];
        while self.skip_word("and") {
            items.push(self.not()?);
        }
        Ok(single_or(items, Expr::And))
    }

    fn not(&mut self) -> ParseResult<Expr> {
        let mut negated = 0usize;
        while self.skip_word("not") {
            negated += 1;
        }
        let expr = self.compare()?;
        Ok(match (negated, negated % 2) {
            (0, _) => expr,
            (_, 1) => Expr::Not(Box::new(expr)),
            _ => Expr::Not(Box::new(Expr::Not(Box::new(expr)))),
        })
    }

    fn compare(&mut self) -> ParseResult<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let cmp = match self.peek() {
                TokenKind::Op("==") => CompareOp::Eq,
                TokenKind::Op("!=") => CompareOp::Ne,
                TokenKind::Op("<") => CompareOp::Lt,
                TokenKind::Op("<=") => CompareOp::Le,
                TokenKind::Op(">") => CompareOp::Gt,
                TokenKind::Op(">=") => CompareOp::Ge,
                TokenKind::Name(word) if word == "in" => CompareOp::In,
                TokenKind::Name(word)
                    if word == "not"
                        && matches!(self.peek_second(), TokenKind::Name(next) if next == "in") =>
                {
                    self.next();
                    CompareOp::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((cmp, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn sum(&mut self) -> ParseResult<Expr> {
        self.chain(&[("+", BinaryOp::Add), ("-", BinaryOp::Sub)], Self::concat)
    }

    fn concat(&mut self) -> ParseResult<Expr> {
        let mut items = vec![self.product()?];
        while self.skip_op("~") {
            items.push(self.product()?);
        }
        Ok(single_or(items, Expr::Concat))
    }

    fn product(&mut self) -> ParseResult<Expr> {
        let ops = [
            ("*", BinaryOp::Mul),
            ("/", BinaryOp::Div),
            ("//", BinaryOp::FloorDiv),
            ("%", BinaryOp::Mod),
        ];
        self.chain(&ops, Self::power)
    }

    fn power(&mut self) -> ParseResult<Expr> {
        self.chain(&[("**", BinaryOp::Pow)], |p| p.unary(true))
    }

    fn chain(
        &mut self,
        ops: &[(&'static str, BinaryOp)],
        operand: impl Fn(&mut Self) -> ParseResult<Expr>,
    ) -> ParseResult<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, op)) = ops.iter().find(|(text, _)| *self.peek() == TokenKind::Op(text)) {
            self.next();
            rest.push((*op, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    fn unary(&mut self, with_filters: bool) -> ParseResult<Expr> {
        let mut ops = Vec::new();
        let expr = match self.peek() {
            TokenKind::Op(sign @ ("-" | "+")) => {
                let negative = *sign == "-";
                self.next();
                self.enter()?;
                let operand = Box::new(self.unary(false)?);
                self.leave();
                if negative { Expr::Neg(operand) } else { Expr::Pos(operand) }
            }
            _ => self.primary()?,
        };
        self.postfix(&mut ops)?;
        if with_filters {
            self.filters_and_tests(&mut ops)?;
        }
        Ok(if ops.is_empty() { expr } else { Expr::Postfix(Box::new(expr), ops) })
    }

    fn primary(&mut self) -> ParseResult<Expr> {
        match self.next() {
            TokenKind::Name(name) => Ok(match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => {
                    self.implicit_params.varargs |= name == "varargs";
                    self.implicit_params.kwargs |= name == "kwargs";
                    self.implicit_params.caller |= name == "caller";
                    Expr::Name(name.into())
                }
            }),
            TokenKind::Str(mut text) => {
                while let TokenKind::Str(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                Ok(Expr::Str(text.into()))
            }
            TokenKind::Int(n) => Ok(Expr::Int(n)),
            TokenKind::Float(f) => Ok(Expr::Float(f)),
            TokenKind::Op("(") => {
                self.enter()?;
                let expr = if *self.peek() == TokenKind::Op(")") {
                    Expr::Tuple(vec![])
                } else {
                    self.tuple(true)?
                };
                self.expect(&TokenKind::Op(")"))?;
                self.leave();
                Ok(expr)
            }
            TokenKind::Op("[") => Ok(Expr::List(self.items("]", |p| p.expression())?)),
            TokenKind::Op("{") => Ok(Expr::Dict(self.items("}", |p| {
                let key = p.expression()?;
                p.expect(&TokenKind::Op(":"))?;
                Ok((key, p.expression()?))
            })?)),
            other => Err(self.error(format!("unexpected {}", describe(&other)))),
        }
    }

    /// Parses items with commas between them, up to the closing bracket. A trailing comma is
    /// allowed.
    fn items<T>(
        &mut self,
        close: &'static str,
        item: impl Fn(&mut Self) -> ParseResult<T>,
    ) -> ParseResult<Vec<T>> {
        self.enter()?;
        let mut items = Vec::new();
        while !self.skip_op(close) {
            if !items.is_empty() {
                self.expect(&TokenKind::Op(","))?;
                if self.skip_op(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.leave();
        Ok(items)
    }

    fn postfix(&mut self, ops: &mut Vec<Postfix>) -> ParseResult<()> {
        loop {
            match self.peek() {
                TokenKind::Op(".") => {
                    self.next();
                    match self.next() {
                        TokenKind::Name(name) => ops.push(Postfix::Attr(name.into())),
                        TokenKind::Int(n) => ops.push(Postfix::Item(Expr::Int(n))),
                        _ => return Err(self.error("expected name or number")),
                    }
                }
                TokenKind::Op("[") => {
                    self.next();
                    self.enter()?;
                    let op = self.subscript()?;
                    self.expect(&TokenKind::Op("]"))?;
                    self.leave();
                    ops.push(op);
                }
                TokenKind::Op("(") => ops.push(Postfix::Call(self.args()?)),
                _ => return Ok(()),
            }
        }
    }

    fn subscript(&mut self) -> ParseResult<Postfix> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut at = 0;
        loop {
            match self.peek() {
                TokenKind::Op(":") => {
                    self.next();
                    at += 1;
                    if at > 2 {
                        return Err(self.error("expected subscript expression"));
                    }
                }
                TokenKind::Op("]") if at > 0 => break,
                _ if parts[at].is_none() => parts[at] = Some(self.expression()?),
                _ => break,
            }
        }
        let [start, stop, step] = parts;
        match (at, start) {
            (0, Some(expr)) if *self.peek() == TokenKind::Op(",") => {
                let mut items = vec![expr];
                while self.skip_op(",") {
                    items.push(self.expression()?);
                }
                Ok(Postfix::Item(Expr::Tuple(items)))
            }
            (0, Some(expr)) => Ok(Postfix::Item(expr)),
            (_, start) => Ok(Postfix::Slice(start, stop, step)),
        }
    }

    fn filters_and_tests(&mut self, ops: &mut Vec<Postfix>) -> ParseResult<()> {
        loop {
            match self.peek() {
                TokenKind::Op("|") => {
                    self.next();
                    ops.push(self.filter()?);
                }
                TokenKind::Name(word) if word == "is" => {
                    self.next();
                    let test = self.test()?;
                    ops.push(test);
                }
                TokenKind::Op("(") => ops.push(Postfix::Call(self.args()?)),
                _ => return Ok(()),
            }
        }
    }

    /// Parses the name and arguments of a filter behind the `|`.
    pub(super) fn filter(&mut self) -> ParseResult<Postfix> {
        let name = self.dotted_name()?;
        let args = if *self.peek() == TokenKind::Op("(") { self.args()? } else { Args::default() };
        Ok(Postfix::Filter(name, args))
    }

    fn dotted_name(&mut self) -> ParseResult<Name> {
        let mut name = self.name()?;
        while *self.peek() == TokenKind::Op(".") {
            self.next();
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(Arc::from(name))
    }

    fn test(&mut self) -> ParseResult<Postfix> {
        let negated = self.skip_word("not");
        let name = self.dotted_name()?;
        let mut args = Args::default();
        match self.peek() {
            TokenKind::Op("(") => args = self.args()?,
            TokenKind::Name(word) if word == "is" => {
                return Err(self.error("You cannot chain multiple tests with is"));
            }
            TokenKind::Name(word)
                if matches!(
                    word.as_str(),
                    "else" | "or" | "and" | "if" | "in" | "not" | "recursive"
                ) => {}
            TokenKind::Name(_)
            | TokenKind::Str(_)
            | TokenKind::Int(_)
            | TokenKind::Float(_)
            | TokenKind::Op("[" | "{") => {
                let primary = self.primary()?;
                let mut ops = Vec::new();
                self.postfix(&mut ops)?;
                let arg =
                    if ops.is_empty() { primary } else { Expr::Postfix(Box::new(primary), ops) };
                args.pos.push(arg);
            }
            _ => {}
        }
        Ok(Postfix::Test(name, args, negated))
    }

    fn args(&mut self) -> ParseResult<Args> {
        self.expect(&TokenKind::Op("("))?;
        self.enter()?;
        let mut args = Args::default();
        let mut first = true;
        while !self.skip_op(")") {
            if !std::mem::take(&mut first) {
                self.expect(&TokenKind::Op(","))?;
                if self.skip_op(")") {
                    break;
                }
            }
            if self.skip_op("**") {
                args.star_star = Some(Box::new(self.expression()?));
            } else if self.skip_op("*") {
                args.star = Some(Box::new(self.expression()?));
            } else if matches!(self.peek(), TokenKind::Name(_))
                && *self.peek_second() == TokenKind::Op("=")
                && args.star_star.is_none()
            {
                let name = self.name()?;
                self.next();
                args.named.push((name.into(), self.expression()?));
            } else if args.named.is_empty() && args.star_star.is_none() {
                args.pos.push(self.expression()?);
            } else {
                return Err(self.error("invalid syntax for function call expression"));
            }
        }
        self.leave();
        Ok(args)
    }
}

fn single_or(mut items: Vec<Expr>, many: impl Fn(Vec<Expr>) -> Expr) -> Expr {
    match items.len() {
        1 => items.swap_remove(0),
        _ => many(items),
    }
}
