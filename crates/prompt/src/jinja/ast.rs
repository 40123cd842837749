//! Syntax tree of a Jinja template.
//!
//! Chains such as `a + b + c`, `x.y[0]|f` and `a and b` are flat, so that long chains need no
//! recursion. Only brackets, blocks and prefix operators nest, and the parser limits their depth.

use std::sync::Arc;

pub(super) type Name = Arc<str>;
pub(super) type Body = Vec<Stmt>;

#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: usize,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(String),
    Print(Expr),
    If(Vec<(Expr, Body)>, Body),
    For(Arc<For>),
    Set(Target, Expr),
    /// `{% set x | filter %}…{% endset %}`
    SetBlock(Target, Vec<Postfix>, Body),
    Macro(Arc<Macro>),
    /// `{% call(x) m() %}…{% endcall %}`: the body as the macro `caller`, and the call.
    Call(Arc<Macro>, Expr),
    Filter(Vec<Postfix>, Body),
    With(Vec<(Target, Expr)>, Body),
    Break,
    Continue,
    /// A tag that only encloses its body: `generation`, `block`, `autoescape`.
    Transparent(Body),
    /// `include`, `import`, `from`, `extends`: not supported, since there is no template loader.
    NoLoader,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iter: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Body,
    pub(super) else_body: Body,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Name,
    pub(super) params: Vec<(Name, Option<Expr>)>,
    pub(super) body: Body,
    /// Whether the body reads `varargs`, `kwargs` or `caller`. Only then the macro accepts extra
    /// arguments.
    pub(super) implicit_params: ImplicitParams,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ImplicitParams {
    pub(super) varargs: bool,
    pub(super) kwargs: bool,
    pub(super) caller: bool,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    Tuple(Vec<Target>),
    /// `ns.attribute`
    Attr(Name, Name),
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// A primary expression with its postfix operations, in order.
    Postfix(Box<Expr>, Vec<Postfix>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    Not(Box<Expr>),
    /// Operators of one precedence, evaluated from the left.
    Chain(Box<Expr>, Vec<(BinaryOp, Expr)>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// `a < b < c`
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    /// `yes if test else no`
    Cond {
        test: Box<Expr>,
        yes: Box<Expr>,
        no: Option<Box<Expr>>,
    },
}

#[derive(Debug)]
pub(super) enum Postfix {
    Attr(Name),
    Item(Expr),
    Slice(Option<Expr>, Option<Expr>, Option<Expr>),
    Call(Args),
    Filter(Name, Args),
    /// `is name(args)`; the flag is true for `is not`.
    Test(Name, Args, bool),
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) pos: Vec<Expr>,
    pub(super) named: Vec<(Name, Expr)>,
    pub(super) star: Option<Box<Expr>>,
    pub(super) star_star: Option<Box<Expr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
