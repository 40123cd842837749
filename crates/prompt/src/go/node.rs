//! Syntax tree of a Go template. Nodes keep their byte offset for error messages, and print as in
//! Go.

use std::fmt;

/// The nodes of a block.
pub(crate) type List = Vec<Node>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Text(String),
    Action(Pipe),
    If(Branch),
    With(Branch),
    Range(Branch),
    Template { pos: usize, name: String, pipe: Option<Pipe> },
    Break,
    Continue,
}

/// `if`, `with` or `range`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Branch {
    pub(crate) pipe: Pipe,
    pub(crate) list: List,
    pub(crate) else_list: Option<List>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pipe {
    /// True for `=`, false for `:=`.
    pub(crate) is_assign: bool,
    /// Names with their `$`.
    pub(crate) decl: Vec<String>,
    pub(crate) cmds: Vec<Command>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Command {
    pub(crate) pos: usize,
    pub(crate) args: Vec<Arg>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Arg {
    pub(crate) pos: usize,
    pub(crate) expr: Expr,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expr {
    Bool(bool),
    Number(Number, String),
    Str {
        quoted: String,
        text: std::sync::Arc<str>,
    },
    Nil,
    Dot,
    /// `.A.B` as `[A, B]`.
    Field(Vec<String>),
    /// `$x.A` as `[$x, A]`.
    Variable(Vec<String>),
    Ident(String),
    /// `(pipeline).A.B`
    Chain(Box<Arg>, Vec<String>),
    Pipe(Box<Pipe>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
    /// An integer that fits only an unsigned 64-bit value. Using it is an error in Go.
    Overflow,
}

impl fmt::Display for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.decl.iter().enumerate() {
            write!(f, "{}{name}", if i > 0 { ", " } else { "" })?;
        }
        if !self.decl.is_empty() {
            f.write_str(if self.is_assign { " = " } else { " := " })?;
        }
        for (i, cmd) in self.cmds.iter().enumerate() {
            write!(f, "{}{cmd}", if i > 0 { " | " } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, arg) in self.args.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            match &arg.expr {
                Expr::Pipe(pipe) => write!(f, "{space}({pipe})")?,
                _ => write!(f, "{space}{arg}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.expr {
            Expr::Bool(b) => write!(f, "{b}"),
            Expr::Number(_, text) => f.write_str(text),
            Expr::Str { quoted, .. } => f.write_str(quoted),
            Expr::Nil => f.write_str("nil"),
            Expr::Dot => f.write_str("."),
            Expr::Field(names) => names.iter().try_for_each(|n| write!(f, ".{n}")),
            Expr::Variable(names) => f.write_str(&names.join(".")),
            Expr::Ident(name) => f.write_str(name),
            Expr::Chain(inner, names) => {
                match &inner.expr {
                    Expr::Pipe(pipe) => write!(f, "({pipe})")?,
                    _ => write!(f, "{inner}")?,
                }
                names.iter().try_for_each(|n| write!(f, ".{n}"))
            }
            Expr::Pipe(pipe) => write!(f, "{pipe}"),
        }
    }
}
