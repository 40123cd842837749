//! Recursive-descent parser of Go's `text/template`, with Go's error messages.

use std::collections::BTreeMap;

use super::lex::{Token, TokenKind, lex};
use super::node::{Arg, Branch, Command, Expr, List, Node, Pipe};
use super::{is_function, literal};
use crate::PromptError;
use crate::limits::{MAX_DEPTH, MAX_SOURCE_BYTES, TemplateLimit};

/// Templates by name; the main template has the empty name.
pub(super) type TemplateTrees = BTreeMap<String, List>;

pub(super) fn parse(src: &str) -> Result<TemplateTrees, PromptError> {
    if src.len() > MAX_SOURCE_BYTES {
        return Err(PromptError::Limit { line: 0, limit: TemplateLimit::Source });
    }
    let mut parser = Parser {
        src,
        tokens: lex(src),
        at: 0,
        vars: vec!["$".to_string()],
        range_depth: 0,
        depth: 0,
        trees: TemplateTrees::new(),
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
    trees: TemplateTrees,
}

/// How a list of nodes ended.
enum ListEnd {
    End,
    Else,
}

type ParseResult<T> = Result<T, PromptError>;

impl<'s> Parser<'s> {
    fn top_level(&mut self) -> ParseResult<List> {
        let mut list = List::new();
        loop {
            match self.peek().kind {
                TokenKind::Eof => return Ok(list),
                TokenKind::LeftDelim => {
                    let start = self.at;
                    self.at += 1;
                    if self.next_non_space().kind == TokenKind::Define {
                        self.definition()?;
                        continue;
                    }
                    self.at = start;
                    match self.text_or_action()? {
                        Ok(node) => list.push(node),
                        Err(list_end) => {
                            return Err(self.error(format!("unexpected {}", list_end.text())));
                        }
                    }
                }
                _ => match self.text_or_action()? {
                    Ok(node) => list.push(node),
                    Err(list_end) => {
                        return Err(self.error(format!("unexpected {}", list_end.text())));
                    }
                },
            }
        }
    }

    /// Parses `{{define "name"}} … {{end}}` behind the keyword.
    fn definition(&mut self) -> ParseResult<()> {
        let name = self.template_name("define clause")?;
        self.expect(TokenKind::RightDelim, "define clause")?;
        let list = self.isolated(|p| p.item_list_to_end("define clause"))?;
        self.add_tree(name, list)
    }

    /// Parses a separate template. Its only variable is `$`, and it is outside of loops.
    fn isolated<T>(&mut self, body: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        let vars = std::mem::replace(&mut self.vars, vec!["$".to_string()]);
        let range_depth = std::mem::take(&mut self.range_depth);
        let result = body(self);
        self.vars = vars;
        self.range_depth = range_depth;
        result
    }

    fn add_tree(&mut self, name: String, list: List) -> ParseResult<()> {
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

    fn item_list_to_end(&mut self, context: &str) -> ParseResult<List> {
        let (list, list_end) = self.item_list()?;
        match list_end {
            ListEnd::End => Ok(list),
            ListEnd::Else => Err(self.error(format!("unexpected {{{{else}}}} in {context}"))),
        }
    }

    fn item_list(&mut self) -> ParseResult<(List, ListEnd)> {
        if self.depth >= MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let mut list = List::new();
        loop {
            if self.peek().kind == TokenKind::Eof {
                return Err(self.error("unexpected EOF"));
            }
            match self.text_or_action()? {
                Ok(node) => list.push(node),
                Err(list_end) => {
                    self.depth -= 1;
                    return Ok((list, list_end));
                }
            }
        }
    }

    fn text_or_action(&mut self) -> ParseResult<Result<Node, ListEnd>> {
        let token = self.next_non_space();
        match token.kind {
            TokenKind::Text => Ok(Ok(Node::Text(token.text.into_owned()))),
            TokenKind::LeftDelim => self.action(),
            _ => Err(self.unexpected(&token, "input")),
        }
    }

    fn action(&mut self) -> ParseResult<Result<Node, ListEnd>> {
        let token = self.next_non_space();
        let node = match token.kind {
            TokenKind::Block => self.block(token.pos)?,
            TokenKind::Break => self.loop_exit("break", Node::Break)?,
            TokenKind::Continue => self.loop_exit("continue", Node::Continue)?,
            TokenKind::Else => {
                // `else if` and `else with` leave the closing delimiter to the nested control
                // structure.
                if !matches!(self.peek_non_space().kind, TokenKind::If | TokenKind::With) {
                    self.expect(TokenKind::RightDelim, "else")?;
                }
                return Ok(Err(ListEnd::Else));
            }
            TokenKind::End => {
                self.expect(TokenKind::RightDelim, "end")?;
                return Ok(Err(ListEnd::End));
            }
            TokenKind::If => Node::If(self.control("if")?),
            TokenKind::Range => Node::Range(self.control("range")?),
            TokenKind::With => Node::With(self.control("with")?),
            TokenKind::Template => {
                let pos = self.peek_non_space().pos;
                let name = self.template_name("template clause")?;
                let pipe = match self.peek_non_space().kind {
                    TokenKind::RightDelim => {
                        self.next_non_space();
                        None
                    }
                    _ => Some(self.pipeline("template clause", TokenKind::RightDelim)?),
                };
                Node::Template { pos, name, pipe }
            }
            _ => {
                self.at -= 1;
                Node::Action(self.pipeline("command", TokenKind::RightDelim)?)
            }
        };
        Ok(Ok(node))
    }

    fn loop_exit(&mut self, word: &str, node: Node) -> ParseResult<Node> {
        let token = self.next_non_space();
        if token.kind != TokenKind::RightDelim {
            return Err(self.unexpected(&token, &format!("{{{{{word}}}}}")));
        }
        if self.range_depth == 0 {
            return Err(self.error(format!("{{{{{word}}}}} outside {{{{range}}}}")));
        }
        Ok(node)
    }

    fn block(&mut self, pos: usize) -> ParseResult<Node> {
        let name = self.template_name("block clause")?;
        let pipe = self.pipeline("block clause", TokenKind::RightDelim)?;
        let list = self.isolated(|p| p.item_list_to_end("block clause"))?;
        self.add_tree(name.clone(), list)?;
        Ok(Node::Template { pos, name, pipe: Some(pipe) })
    }

    fn control(&mut self, context: &'static str) -> ParseResult<Branch> {
        if self.depth >= MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let vars = self.vars.len();
        let pipe = self.pipeline(context, TokenKind::RightDelim)?;
        let in_range = usize::from(context == "range");
        self.range_depth += in_range;
        let (list, list_end) = self.item_list()?;
        self.range_depth -= in_range;
        let else_list = match list_end {
            ListEnd::End => None,
            ListEnd::Else => Some(self.else_part(context)?),
        };
        self.vars.truncate(vars);
        self.depth -= 1;
        Ok(Branch { pipe, list, else_list })
    }

    fn else_part(&mut self, context: &'static str) -> ParseResult<List> {
        match (context, self.peek_non_space().kind) {
            ("if", TokenKind::If) => {
                self.next_non_space();
                Ok(vec![Node::If(self.control("if")?)])
            }
            ("with", TokenKind::With) => {
                self.next_non_space();
                Ok(vec![Node::With(self.control("with")?)])
            }
            (_, TokenKind::If | TokenKind::With) => {
                let token = self.next_non_space();
                Err(self.unexpected(&token, "input"))
            }
            _ => match self.item_list()? {
                (list, ListEnd::End) => Ok(list),
                (_, ListEnd::Else) => Err(self.error("expected end; found {{else}}")),
            },
        }
    }

    fn template_name(&mut self, context: &str) -> ParseResult<String> {
        let token = self.next_non_space();
        match token.kind {
            TokenKind::Str | TokenKind::RawStr => {
                literal::unquote(&token.text).map_err(|e| self.error(e))
            }
            _ => Err(self.unexpected(&token, context)),
        }
    }

    fn pipeline(&mut self, context: &str, end: TokenKind) -> ParseResult<Pipe> {
        let mut pipe = Pipe { is_assign: false, decl: Vec::new(), cmds: Vec::new() };
        self.declarations(context, &mut pipe)?;
        loop {
            let token = self.next_non_space();
            match token.kind {
                kind if kind == end => {
                    self.check_pipeline(&pipe, context)?;
                    return Ok(pipe);
                }
                TokenKind::Bool
                | TokenKind::CharConstant
                | TokenKind::Dot
                | TokenKind::Field
                | TokenKind::Ident
                | TokenKind::Number
                | TokenKind::Nil
                | TokenKind::RawStr
                | TokenKind::Str
                | TokenKind::Variable
                | TokenKind::LeftParen => {
                    self.at -= 1;
                    let command = self.command()?;
                    pipe.cmds.push(command);
                }
                _ => return Err(self.unexpected(&token, context)),
            }
        }
    }

    /// Parses `$x :=`, `$x =` and, in a range, `$i, $x :=`.
    fn declarations(&mut self, context: &str, pipe: &mut Pipe) -> ParseResult<()> {
        loop {
            let token = self.peek_non_space();
            if token.kind != TokenKind::Variable {
                return Ok(());
            }
            let start = self.at;
            let name = self.next_non_space().text.into_owned();
            let next = self.peek_non_space();
            match next.kind {
                TokenKind::Assign | TokenKind::Declare => {
                    pipe.is_assign = next.kind == TokenKind::Assign;
                    self.next_non_space();
                    self.vars.push(name.clone());
                    pipe.decl.push(name);
                    return Ok(());
                }
                TokenKind::Char if next.text == "," => {
                    self.next_non_space();
                    self.vars.push(name.clone());
                    pipe.decl.push(name);
                    if context != "range" || pipe.decl.len() >= 2 {
                        return Err(self.error(format!("too many declarations in {context}")));
                    }
                    match self.peek_non_space().kind {
                        TokenKind::Variable | TokenKind::RightDelim | TokenKind::RightParen => {}
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

    fn check_pipeline(&self, pipe: &Pipe, context: &str) -> ParseResult<()> {
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

    fn command(&mut self) -> ParseResult<Command> {
        let mut args = Vec::new();
        let pos = self.peek_non_space().pos;
        loop {
            self.peek_non_space();
            if let Some(operand) = self.operand()? {
                args.push(operand);
            }
            let token = self.next();
            match token.kind {
                TokenKind::Space => continue,
                TokenKind::RightDelim | TokenKind::RightParen => self.at -= 1,
                TokenKind::Pipe => {}
                _ => return Err(self.unexpected(&token, "operand")),
            }
            break;
        }
        if args.is_empty() {
            return Err(self.error("empty command"));
        }
        Ok(Command { pos, args })
    }

    fn operand(&mut self) -> ParseResult<Option<Arg>> {
        let Some(mut term) = self.term()? else { return Ok(None) };
        if self.peek().kind != TokenKind::Field {
            return Ok(Some(term));
        }
        let pos = self.peek().pos;
        let mut names = Vec::new();
        while self.peek().kind == TokenKind::Field {
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

    fn term(&mut self) -> ParseResult<Option<Arg>> {
        let token = self.next_non_space();
        let expr = match token.kind {
            TokenKind::Ident => {
                if !is_function(&token.text) {
                    return Err(self.error(format!("function {:?} not defined", token.text)));
                }
                Expr::Ident(token.text.into_owned())
            }
            TokenKind::Dot => Expr::Dot,
            TokenKind::Nil => Expr::Nil,
            TokenKind::Variable => {
                if !self.vars.iter().any(|v| **v == *token.text) {
                    return Err(self.error(format!("undefined variable {:?}", token.text)));
                }
                Expr::Variable(vec![token.text.into_owned()])
            }
            TokenKind::Field => Expr::Field(vec![token.text[1..].to_string()]),
            TokenKind::Bool => Expr::Bool(token.text == "true"),
            TokenKind::CharConstant | TokenKind::Number => {
                let number = literal::number(&token.text).map_err(|e| self.error(e))?;
                Expr::Number(number, token.text.into_owned())
            }
            TokenKind::LeftParen => {
                if self.depth >= MAX_DEPTH {
                    return Err(self.too_deep());
                }
                self.depth += 1;
                let pipe = self.pipeline("parenthesized pipeline", TokenKind::RightParen)?;
                self.depth -= 1;
                Expr::Pipe(Box::new(pipe))
            }
            TokenKind::Str | TokenKind::RawStr => {
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

    fn expect(&mut self, kind: TokenKind, context: &str) -> ParseResult<()> {
        let token = self.next_non_space();
        if token.kind == kind { Ok(()) } else { Err(self.unexpected(&token, context)) }
    }

    fn next(&mut self) -> Token<'s> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn peek(&self) -> Token<'s> {
        // The last token, an end or an error, repeats forever.
        let last = self.tokens.len() - 1;
        self.tokens[self.at.min(last)].clone()
    }

    fn next_non_space(&mut self) -> Token<'s> {
        let token = self.peek_non_space();
        self.at += 1;
        token
    }

    fn peek_non_space(&mut self) -> Token<'s> {
        while self.peek().kind == TokenKind::Space {
            self.at += 1;
        }
        self.peek()
    }

    fn unexpected(&self, token: &Token<'_>, context: &str) -> PromptError {
        let what = match token.kind {
            TokenKind::Error => return self.error(token.text.to_string()),
            TokenKind::Eof => "EOF".to_string(),
            kind if kind.is_keyword() || matches!(kind, TokenKind::Dot | TokenKind::Nil) => {
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
        PromptError::Limit { line: self.line(), limit: TemplateLimit::Depth }
    }

    /// Line of the last token read.
    fn line(&self) -> usize {
        let at = self.at.saturating_sub(1).min(self.tokens.len() - 1);
        let pos = self.tokens[at].pos.min(self.src.len());
        1 + self.src.as_bytes()[..pos].iter().filter(|b| **b == b'\n').count()
    }
}

impl ListEnd {
    fn text(&self) -> &'static str {
        match self {
            ListEnd::End => "{{end}}",
            ListEnd::Else => "{{else}}",
        }
    }
}
