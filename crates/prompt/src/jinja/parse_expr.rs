//! Expressions of Jinja, with Jinja2's precedences: `if else`, `or`, `and`, `not`, comparisons, `+ -`, `~`, `* / // %`,
//! `**`, sign, then postfix (`.` `[]` `()`), filters and tests.

use std::sync::Arc;

use super::ast::{Args, Cmp, Expr, Name, Op, Post};
use super::lex::Tok;
use super::parse::{Parsed, Parser, describe};

impl Parser {
    /// One expression, or several with commas between them: a tuple.
    pub(super) fn tuple(&mut self, with_condition: bool) -> Parsed<Expr> {
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
        matches!(self.peek(), Tok::VarEnd | Tok::BlockEnd | Tok::Op(")") | Tok::Eof)
            || matches!(self.peek(), Tok::Name(word) if word == "recursive")
    }

    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.enter()?;
        let mut expr = self.or()?;
        let mut conditions = 0;
        while self.skip_word("if") {
            let test = Box::new(self.or()?);
            let no = if self.skip_word("else") { Some(Box::new(self.expression()?)) } else { None };
            expr = Expr::Cond { test, yes: Box::new(expr), no };
            // `a if b if c …` nests to the left, without recursion here but with it at run time.
            conditions += 1;
            if conditions > 8 {
                return Err(self.error("too many conditions in one expression"));
            }
        }
        self.leave();
        Ok(expr)
    }

    fn or(&mut self) -> Parsed<Expr> {
        let mut items = vec![self.and()?];
        while self.skip_word("or") {
            items.push(self.and()?);
        }
        Ok(single_or(items, Expr::Or))
    }

    fn and(&mut self) -> Parsed<Expr> {
        let mut items = vec![self.not()?];
        while self.skip_word("and") {
            items.push(self.not()?);
        }
        Ok(single_or(items, Expr::And))
    }

    fn not(&mut self) -> Parsed<Expr> {
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

    fn compare(&mut self) -> Parsed<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let cmp = match self.peek() {
                Tok::Op("==") => Cmp::Eq,
                Tok::Op("!=") => Cmp::Ne,
                Tok::Op("<") => Cmp::Lt,
                Tok::Op("<=") => Cmp::Le,
                Tok::Op(">") => Cmp::Gt,
                Tok::Op(">=") => Cmp::Ge,
                Tok::Name(word) if word == "in" => Cmp::In,
                Tok::Name(word)
                    if word == "not"
                        && matches!(self.peek_second(), Tok::Name(next) if next == "in") =>
                {
                    self.next();
                    Cmp::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((cmp, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.chain(&[("+", Op::Add), ("-", Op::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Parsed<Expr> {
        let mut items = vec![self.product()?];
        while self.skip_op("~") {
            items.push(self.product()?);
        }
        Ok(single_or(items, Expr::Concat))
    }

    fn product(&mut self) -> Parsed<Expr> {
        let ops = [("*", Op::Mul), ("/", Op::Div), ("//", Op::FloorDiv), ("%", Op::Mod)];
        self.chain(&ops, Self::power)
    }

    fn power(&mut self) -> Parsed<Expr> {
        self.chain(&[("**", Op::Pow)], |p| p.unary(true))
    }

    fn chain(
        &mut self,
        ops: &[(&'static str, Op)],
        operand: impl Fn(&mut Self) -> Parsed<Expr>,
    ) -> Parsed<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, op)) = ops.iter().find(|(text, _)| *self.peek() == Tok::Op(text)) {
            self.next();
            rest.push((*op, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    fn unary(&mut self, with_filters: bool) -> Parsed<Expr> {
        let mut ops = Vec::new();
        let expr = match self.peek() {
            Tok::Op(sign @ ("-" | "+")) => {
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
        Ok(if ops.is_empty() { expr } else { Expr::Post(Box::new(expr), ops) })
    }

    fn primary(&mut self) -> Parsed<Expr> {
        match self.next() {
            Tok::Name(name) => Ok(match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => {
                    self.takes.varargs |= name == "varargs";
                    self.takes.kwargs |= name == "kwargs";
                    self.takes.caller |= name == "caller";
                    Expr::Name(name.into())
                }
            }),
            Tok::Str(mut text) => {
                while let Tok::Str(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                Ok(Expr::Str(text.into()))
            }
            Tok::Int(n) => Ok(Expr::Int(n)),
            Tok::Float(f) => Ok(Expr::Float(f)),
            Tok::Op("(") => {
                self.enter()?;
                let expr = if *self.peek() == Tok::Op(")") {
                    Expr::Tuple(vec![])
                } else {
                    self.tuple(true)?
                };
                self.expect(&Tok::Op(")"))?;
                self.leave();
                Ok(expr)
            }
            Tok::Op("[") => Ok(Expr::List(self.items("]", |p| p.expression())?)),
            Tok::Op("{") => Ok(Expr::Dict(self.items("}", |p| {
                let key = p.expression()?;
                p.expect(&Tok::Op(":"))?;
                Ok((key, p.expression()?))
            })?)),
            other => Err(self.error(format!("unexpected {}", describe(&other)))),
        }
    }

    /// Items with commas between them, up to the closing bracket; a comma may stand before it.
    fn items<T>(
        &mut self,
        close: &'static str,
        item: impl Fn(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        self.enter()?;
        let mut items = Vec::new();
        while !self.skip_op(close) {
            if !items.is_empty() {
                self.expect(&Tok::Op(","))?;
                if self.skip_op(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.leave();
        Ok(items)
    }

    fn postfix(&mut self, ops: &mut Vec<Post>) -> Parsed<()> {
        loop {
            match self.peek() {
                Tok::Op(".") => {
                    self.next();
                    match self.next() {
                        Tok::Name(name) => ops.push(Post::Attr(name.into())),
                        Tok::Int(n) => ops.push(Post::Item(Expr::Int(n))),
                        _ => return Err(self.error("expected name or number")),
                    }
                }
                Tok::Op("[") => {
                    self.next();
                    self.enter()?;
                    let op = self.subscript()?;
                    self.expect(&Tok::Op("]"))?;
                    self.leave();
                    ops.push(op);
                }
                Tok::Op("(") => ops.push(Post::Call(self.args()?)),
                _ => return Ok(()),
            }
        }
    }

    fn subscript(&mut self) -> Parsed<Post> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut at = 0;
        loop {
            match self.peek() {
                Tok::Op(":") => {
                    self.next();
                    at += 1;
                    if at > 2 {
                        return Err(self.error("expected subscript expression"));
                    }
                }
                Tok::Op("]") if at > 0 => break,
                _ if parts[at].is_none() => parts[at] = Some(self.expression()?),
                _ => break,
            }
        }
        let [start, stop, step] = parts;
        match (at, start) {
            (0, Some(expr)) if *self.peek() == Tok::Op(",") => {
                let mut items = vec![expr];
                while self.skip_op(",") {
                    items.push(self.expression()?);
                }
                Ok(Post::Item(Expr::Tuple(items)))
            }
            (0, Some(expr)) => Ok(Post::Item(expr)),
            (_, start) => Ok(Post::Slice(start, stop, step)),
        }
    }

    fn filters_and_tests(&mut self, ops: &mut Vec<Post>) -> Parsed<()> {
        loop {
            match self.peek() {
                Tok::Op("|") => {
                    self.next();
                    ops.push(self.filter()?);
                }
                Tok::Name(word) if word == "is" => {
                    self.next();
                    let test = self.test()?;
                    ops.push(test);
                }
                Tok::Op("(") => ops.push(Post::Call(self.args()?)),
                _ => return Ok(()),
            }
        }
    }

    /// A filter's name and arguments, after the `|`.
    pub(super) fn filter(&mut self) -> Parsed<Post> {
        let name = self.dotted_name()?;
        let args = if *self.peek() == Tok::Op("(") { self.args()? } else { Args::default() };
        Ok(Post::Filter(name, args))
    }

    fn dotted_name(&mut self) -> Parsed<Name> {
        let mut name = self.name()?;
        while *self.peek() == Tok::Op(".") {
            self.next();
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(Arc::from(name))
    }

    fn test(&mut self) -> Parsed<Post> {
        let negated = self.skip_word("not");
        let name = self.dotted_name()?;
        let mut args = Args::default();
        match self.peek() {
            Tok::Op("(") => args = self.args()?,
            Tok::Name(word) if word == "is" => {
                return Err(self.error("You cannot chain multiple tests with is"));
            }
            Tok::Name(word)
                if matches!(
                    word.as_str(),
                    "else" | "or" | "and" | "if" | "in" | "not" | "recursive"
                ) => {}
            Tok::Name(_) | Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{") => {
                let primary = self.primary()?;
                let mut ops = Vec::new();
                self.postfix(&mut ops)?;
                let arg = if ops.is_empty() { primary } else { Expr::Post(Box::new(primary), ops) };
                args.pos.push(arg);
            }
            _ => {}
        }
        Ok(Post::Test(name, args, negated))
    }

    fn args(&mut self) -> Parsed<Args> {
        self.expect(&Tok::Op("("))?;
        self.enter()?;
        let mut args = Args::default();
        let mut first = true;
        while !self.skip_op(")") {
            if !std::mem::take(&mut first) {
                self.expect(&Tok::Op(","))?;
                if self.skip_op(")") {
                    break;
                }
            }
            if self.skip_op("**") {
                args.star_star = Some(Box::new(self.expression()?));
            } else if self.skip_op("*") {
                args.star = Some(Box::new(self.expression()?));
            } else if matches!(self.peek(), Tok::Name(_))
                && *self.peek_second() == Tok::Op("=")
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
