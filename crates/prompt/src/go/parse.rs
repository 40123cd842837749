//! Recursive-descent parser of Go's `text/template`, with Go's messages.

use std::collections::BTreeMap;

use super::lex::{Kind, Token, lex};
use super::node::{Arg, Branch, Command, Expr, List, Node, Pipe};
use super::{is_function, literal};
use crate::PromptError;
use crate::limits::{Bound, DEPTH_MAX, SOURCE_BYTES_MAX};

/// The main template under the empty name, and all that it defines.
pub(super) type Trees = BTreeMap<String, List>;

pub(super) fn parse(src: &str) -> Result<Trees, PromptError> {
    if src.len() > SOURCE_BYTES_MAX {
        return Err(PromptError::Limit { line: 0, bound: Bound::Source });
    }
    let mut parser = Parser {
        src,
        tokens: lex(src),
        at: 0,
        vars: vec!["$".to_string()],
        range_depth: 0,
        depth: 0,
        trees: Trees::new(),
    };
    let root = parser.top_level()?;
    parser.add_tree(String::new(), root)?;
    Ok(parser.trees)
}

struct Parser<'s> {
    src: &'s str,
    tokens: Vec<Token<'s>>,
    at: usize,
    vars: Vec<String>,
    range_depth: usize,
    depth: usize,
    trees: Trees,
}

/// What ended a list of nodes.
enum Ender {
    End,
    Else,
}

type Parsed<T> = Result<T, PromptError>;

impl<'s> Parser<'s> {
    fn top_level(&mut self) -> Parsed<List> {
        let mut list = List::new();
        loop {
            match self.peek().kind {
                Kind::Eof => return Ok(list),
                Kind::LeftDelim => {
                    let start = self.at;
                    self.at += 1;
                    if self.next_non_space().kind == Kind::Define {
                        self.definition()?;
                        continue;
                    }
                    self.at = start;
                    match self.text_or_action()? {
                        Ok(node) => list.push(node),
                        Err(ender) => {
                            return Err(self.error(format!("unexpected {}", ender.text())));
                        }
                    }
                }
                _ => match self.text_or_action()? {
                    Ok(node) => list.push(node),
                    Err(ender) => return Err(self.error(format!("unexpected {}", ender.text()))),
                },
            }
        }
    }

    /// `{{define "name"}} … {{end}}`, after the keyword.
    fn definition(&mut self) -> Parsed<()> {
        let name = self.template_name("define clause")?;
        self.expect(Kind::RightDelim, "define clause")?;
        let list = self.isolated(|p| p.item_list_to_end("define clause"))?;
        self.add_tree(name, list)
    }

    /// Parses a separate template: its only variable is `$`, and it stands in no loop.
    fn isolated<T>(&mut self, body: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        let vars = std::mem::replace(&mut self.vars, vec!["$".to_string()]);
        let range_depth = std::mem::take(&mut self.range_depth);
        let result = body(self);
        self.vars = vars;
        self.range_depth = range_depth;
        result
    }

    fn add_tree(&mut self, name: String, list: List) -> Parsed<()> {
        let is_empty =
            |list: &List| list.iter().all(|n| matches!(n, Node::Text(t) if t.trim().is_empty()));
        match self.trees.get(&name) {
            Some(old) if !is_empty(old) && !is_empty(&list) => {
                Err(self.error(format!("template: multiple definition of template {name:?}")))
            }
            Some(old) if !is_empty(old) => Ok(()),
            _ => {
                self.trees.insert(name, list);
                Ok(())
            }
        }
    }

    fn item_list_to_end(&mut self, context: &str) -> Parsed<List> {
        let (list, ender) = self.item_list()?;
        match ender {
            Ender::End => Ok(list),
            Ender::Else => Err(self.error(format!("unexpected {{{{else}}}} in {context}"))),
        }
    }

    fn item_list(&mut self) -> Parsed<(List, Ender)> {
        if self.depth >= DEPTH_MAX {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let mut list = List::new();
        loop {
            if self.peek().kind == Kind::Eof {
                return Err(self.error("unexpected EOF"));
            }
            match self.text_or_action()? {
                Ok(node) => list.push(node),
                Err(ender) => {
                    self.depth -= 1;
                    return Ok((list, ender));
                }
            }
        }
    }

    fn text_or_action(&mut self) -> Parsed<Result<Node, Ender>> {
        let token = self.next_non_space();
        match token.kind {
            Kind::Text => Ok(Ok(Node::Text(token.text.into_owned()))),
            Kind::LeftDelim => self.action(),
            _ => Err(self.unexpected(&token, "input")),
        }
    }

    fn action(&mut self) -> Parsed<Result<Node, Ender>> {
        let token = self.next_non_space();
        let node = match token.kind {
            Kind::Block => self.block(token.pos)?,
            Kind::Break => self.loop_exit("break", Node::Break)?,
            Kind::Continue => self.loop_exit("continue", Node::Continue)?,
            Kind::Else => {
                // `else if` and `else with` leave the closing delimiter to the nested control.
                if !matches!(self.peek_non_space().kind, Kind::If | Kind::With) {
                    self.expect(Kind::RightDelim, "else")?;
                }
                return Ok(Err(Ender::Else));
            }
            Kind::End => {
                self.expect(Kind::RightDelim, "end")?;
                return Ok(Err(Ender::End));
            }
            Kind::If => Node::If(self.control("if")?),
            Kind::Range => Node::Range(self.control("range")?),
            Kind::With => Node::With(self.control("with")?),
            Kind::Template => {
                let pos = self.peek_non_space().pos;
                let name = self.template_name("template clause")?;
                let pipe = match self.peek_non_space().kind {
                    Kind::RightDelim => {
                        self.next_non_space();
                        None
                    }
                    _ => Some(self.pipeline("template clause", Kind::RightDelim)?),
                };
                Node::Template { pos, name, pipe }
            }
            _ => {
                self.at -= 1;
                Node::Action(self.pipeline("command", Kind::RightDelim)?)
            }
        };
        Ok(Ok(node))
    }

    fn loop_exit(&mut self, word: &str, node: Node) -> Parsed<Node> {
        let token = self.next_non_space();
        if token.kind != Kind::RightDelim {
            return Err(self.unexpected(&token, &format!("{{{{{word}}}}}")));
        }
        if self.range_depth == 0 {
            return Err(self.error(format!("{{{{{word}}}}} outside {{{{range}}}}")));
        }
        Ok(node)
    }

    fn block(&mut self, pos: usize) -> Parsed<Node> {
        let name = self.template_name("block clause")?;
        let pipe = self.pipeline("block clause", Kind::RightDelim)?;
        let list = self.isolated(|p| p.item_list_to_end("block clause"))?;
        self.add_tree(name.clone(), list)?;
        Ok(Node::Template { pos, name, pipe: Some(pipe) })
    }

    fn control(&mut self, context: &'static str) -> Parsed<Branch> {
        if self.depth >= DEPTH_MAX {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let vars = self.vars.len();
        let pipe = self.pipeline(context, Kind::RightDelim)?;
        let in_range = usize::from(context == "range");
        self.range_depth += in_range;
        let (list, ender) = self.item_list()?;
        self.range_depth -= in_range;
        let else_list = match ender {
            Ender::End => None,
            Ender::Else => Some(self.else_part(context)?),
        };
        self.vars.truncate(vars);
        self.depth -= 1;
        Ok(Branch { pipe, list, else_list })
    }

    fn else_part(&mut self, context: &'static str) -> Parsed<List> {
        match (context, self.peek_non_space().kind) {
            ("if", Kind::If) => {
                self.next_non_space();
                Ok(vec![Node::If(self.control("if")?)])
            }
            ("with", Kind::With) => {
                self.next_non_space();
                Ok(vec![Node::With(self.control("with")?)])
            }
            (_, Kind::If | Kind::With) => {
                let token = self.next_non_space();
                Err(self.unexpected(&token, "input"))
            }
            _ => match self.item_list()? {
                (list, Ender::End) => Ok(list),
                (_, Ender::Else) => Err(self.error("expected end; found {{else}}")),
            },
        }
    }

    fn template_name(&mut self, context: &str) -> Parsed<String> {
        let token = self.next_non_space();
        match token.kind {
            Kind::Str | Kind::RawStr => literal::unquote(&token.text).map_err(|e| self.error(e)),
            _ => Err(self.unexpected(&token, context)),
        }
    }

    fn pipeline(&mut self, context: &str, end: Kind) -> Parsed<Pipe> {
        let mut pipe = Pipe { is_assign: false, decl: Vec::new(), cmds: Vec::new() };
        self.declarations(context, &mut pipe)?;
        loop {
            let token = self.next_non_space();
            match token.kind {
                kind if kind == end => {
                    self.check_pipeline(&pipe, context)?;
                    return Ok(pipe);
                }
                Kind::Bool
                | Kind::CharConstant
                | Kind::Dot
                | Kind::Field
                | Kind::Ident
                | Kind::Number
                | Kind::Nil
                | Kind::RawStr
                | Kind::Str
                | Kind::Variable
                | Kind::LeftParen => {
                    self.at -= 1;
                    let command = self.command()?;
                    pipe.cmds.push(command);
                }
                _ => return Err(self.unexpected(&token, context)),
            }
        }
    }

    /// `$x :=`, `$x =` and, in a range, `$i, $x :=`.
    fn declarations(&mut self, context: &str, pipe: &mut Pipe) -> Parsed<()> {
        loop {
            let token = self.peek_non_space();
            if token.kind != Kind::Variable {
                return Ok(());
            }
            let start = self.at;
            let name = self.next_non_space().text.into_owned();
            let next = self.peek_non_space();
            match next.kind {
                Kind::Assign | Kind::Declare => {
                    pipe.is_assign = next.kind == Kind::Assign;
                    self.next_non_space();
                    self.vars.push(name.clone());
                    pipe.decl.push(name);
                    return Ok(());
                }
                Kind::Char if next.text == "," => {
                    self.next_non_space();
                    self.vars.push(name.clone());
                    pipe.decl.push(name);
                    if context != "range" || pipe.decl.len() >= 2 {
                        return Err(self.error(format!("too many declarations in {context}")));
                    }
                    match self.peek_non_space().kind {
                        Kind::Variable | Kind::RightDelim | Kind::RightParen => {}
                        _ => return Err(self.error("range can only initialize variables")),
                    }
                }
                _ => {
                    self.at = start;
                    return Ok(());
                }
            }
        }
    }

    fn check_pipeline(&self, pipe: &Pipe, context: &str) -> Parsed<()> {
        if pipe.cmds.is_empty() {
            return Err(self.error(format!("missing value for {context}")));
        }
        for (i, cmd) in pipe.cmds.iter().enumerate().skip(1) {
            let first = cmd.args.first().map(|a| &a.expr);
            if let Some(
                Expr::Bool(_) | Expr::Dot | Expr::Nil | Expr::Number(..) | Expr::Str { .. },
            ) = first
            {
                return Err(
                    self.error(format!("non executable command in pipeline stage {}", i + 1))
                );
            }
        }
        Ok(())
    }

    fn command(&mut self) -> Parsed<Command> {
        let mut args = Vec::new();
        let pos = self.peek_non_space().pos;
        loop {
            self.peek_non_space();
            if let Some(operand) = self.operand()? {
                args.push(operand);
            }
            let token = self.next();
            match token.kind {
                Kind::Space => continue,
                Kind::RightDelim | Kind::RightParen => self.at -= 1,
                Kind::Pipe => {}
                _ => return Err(self.unexpected(&token, "operand")),
            }
            break;
        }
        if args.is_empty() {
            return Err(self.error("empty command"));
        }
        Ok(Command { pos, args })
    }

    fn operand(&mut self) -> Parsed<Option<Arg>> {
        let Some(mut term) = self.term()? else { return Ok(None) };
        if self.peek().kind != Kind::Field {
            return Ok(Some(term));
        }
        let pos = self.peek().pos;
        let mut names = Vec::new();
        while self.peek().kind == Kind::Field {
            names.push(self.next().text[1..].to_string());
        }
        match &mut term.expr {
            Expr::Field(first) | Expr::Variable(first) => {
                first.append(&mut names);
                term.pos = pos;
                Ok(Some(term))
            }
            Expr::Bool(_) | Expr::Str { .. } | Expr::Number(..) | Expr::Nil | Expr::Dot => {
                Err(self.error(format!("unexpected . after term {:?}", term.to_string())))
            }
            _ => Ok(Some(Arg { pos, expr: Expr::Chain(Box::new(term), names) })),
        }
    }

    fn term(&mut self) -> Parsed<Option<Arg>> {
        let token = self.next_non_space();
        let expr = match token.kind {
            Kind::Ident => {
                if !is_function(&token.text) {
                    return Err(self.error(format!("function {:?} not defined", token.text)));
                }
                Expr::Ident(token.text.into_owned())
            }
            Kind::Dot => Expr::Dot,
            Kind::Nil => Expr::Nil,
            Kind::Variable => {
                if !self.vars.iter().any(|v| **v == *token.text) {
                    return Err(self.error(format!("undefined variable {:?}", token.text)));
                }
                Expr::Variable(vec![token.text.into_owned()])
            }
            Kind::Field => Expr::Field(vec![token.text[1..].to_string()]),
            Kind::Bool => Expr::Bool(token.text == "true"),
            Kind::CharConstant | Kind::Number => {
                let number = literal::number(&token.text).map_err(|e| self.error(e))?;
                Expr::Number(number, token.text.into_owned())
            }
            Kind::LeftParen => {
                if self.depth >= DEPTH_MAX {
                    return Err(self.too_deep());
                }
                self.depth += 1;
                let pipe = self.pipeline("parenthesized pipeline", Kind::RightParen)?;
                self.depth -= 1;
                Expr::Pipe(Box::new(pipe))
            }
            Kind::Str | Kind::RawStr => {
                let text = literal::unquote(&token.text).map_err(|e| self.error(e))?;
                Expr::Str { quoted: token.text.into_owned(), text: text.into() }
            }
            _ => {
                self.at -= 1;
                return Ok(None);
            }
        };
        Ok(Some(Arg { pos: token.pos, expr }))
    }

    fn expect(&mut self, kind: Kind, context: &str) -> Parsed<()> {
        let token = self.next_non_space();
        if token.kind == kind { Ok(()) } else { Err(self.unexpected(&token, context)) }
    }

    fn next(&mut self) -> Token<'s> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn peek(&self) -> Token<'s> {
        // The last token (end or error) repeats for ever.
        let last = self.tokens.len() - 1;
        self.tokens[self.at.min(last)].clone()
    }

    fn next_non_space(&mut self) -> Token<'s> {
        let token = self.peek_non_space();
        self.at += 1;
        token
    }

    fn peek_non_space(&mut self) -> Token<'s> {
        while self.peek().kind == Kind::Space {
            self.at += 1;
        }
        self.peek()
    }

    fn unexpected(&self, token: &Token<'_>, context: &str) -> PromptError {
        let what = match token.kind {
            Kind::Error => return self.error(token.text.to_string()),
            Kind::Eof => "EOF".to_string(),
            kind if kind.is_keyword() || matches!(kind, Kind::Dot | Kind::Nil) => {
                format!("<{}>", token.text)
            }
            _ if token.text.chars().count() > 10 => {
                format!("{:?}...", token.text.chars().take(10).collect::<String>())
            }
            _ => format!("{:?}", token.text),
        };
        self.error(format!("unexpected {what} in {context}"))
    }

    fn error(&self, message: impl Into<String>) -> PromptError {
        PromptError::GoSyntax { line: self.line(), message: message.into() }
    }

    fn too_deep(&self) -> PromptError {
        PromptError::Limit { line: self.line(), bound: Bound::Depth }
    }

    /// Line of the token that was read last.
    fn line(&self) -> usize {
        let at = self.at.saturating_sub(1).min(self.tokens.len() - 1);
        let pos = self.tokens[at].pos.min(self.src.len());
        1 + self.src.as_bytes()[..pos].iter().filter(|b| **b == b'\n').count()
    }
}

impl Ender {
    fn text(&self) -> &'static str {
        match self {
            Ender::End => "{{end}}",
            Ender::Else => "{{else}}",
        }
    }
}
