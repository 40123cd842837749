//! What a Go template's tree tells without running it: the variables it reads, the tags around thoughts and tool calls,
//! and where a one-exchange template must be cut so that the model goes on.

use std::collections::BTreeSet;

use super::node::{Arg, Branch, Expr, List, Node, Pipe};

/// Every field and variable that the nodes mention, in lower case. Fields behind a parenthesis are not seen
/// (`(index .Messages 0).Role`), as in Ollama: the choice between the ways to run a template depends on it.
pub(super) fn variables(nodes: &[Node], into: &mut BTreeSet<String>) {
    for node in nodes {
        match node {
            Node::Text(_) | Node::Break | Node::Continue => {}
            Node::Action(pipe) => pipe_variables(pipe, into),
            Node::Template { pipe, .. } => pipe.iter().for_each(|p| pipe_variables(p, into)),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                pipe_variables(&branch.pipe, into);
                variables(&branch.list, into);
                variables(branch.else_list.as_deref().unwrap_or_default(), into);
            }
        }
    }
}

fn pipe_variables(pipe: &Pipe, into: &mut BTreeSet<String>) {
    for arg in pipe.cmds.iter().flat_map(|c| &c.args) {
        match &arg.expr {
            Expr::Field(names) | Expr::Variable(names) => {
                into.extend(names.iter().map(|n| n.to_lowercase()));
            }
            Expr::Pipe(inner) => pipe_variables(inner, into),
            _ => {}
        }
    }
}

/// The texts around `.Thinking` inside a loop over `.Messages`: first and last node of the nearest block, trimmed;
/// empty where that node is no text. The last such place wins.
pub(super) fn think_tags(root: &[Node]) -> (String, String) {
    let mut tags = (String::new(), String::new());
    think_tags_in(root, false, &mut tags);
    tags
}

fn think_tags_in(list: &[Node], in_messages: bool, tags: &mut (String, String)) {
    for node in list {
        match node {
            Node::Action(pipe) if in_messages && mentions(pipe, "Thinking") => {
                let text = |node: Option<&Node>| match node {
                    Some(Node::Text(text)) => text.trim().to_string(),
                    _ => String::new(),
                };
                *tags = (text(list.first()), text(list.last()));
            }
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                let inside =
                    in_messages || matches!(node, Node::Range(b) if mentions(&b.pipe, "Messages"));
                think_tags_in(&branch.list, inside, tags);
                think_tags_in(branch.else_list.as_deref().unwrap_or_default(), inside, tags);
            }
            _ => {}
        }
    }
}

/// Does a pipeline read a field of this name anywhere?
fn mentions(pipe: &Pipe, name: &str) -> bool {
    pipe.cmds.iter().flat_map(|c| &c.args).any(|arg| arg_mentions(arg, name))
}

fn arg_mentions(arg: &Arg, name: &str) -> bool {
    match &arg.expr {
        Expr::Field(names) | Expr::Variable(names) => names.iter().any(|n| n == name),
        Expr::Chain(inner, names) => names.iter().any(|n| n == name) || arg_mentions(inner, name),
        Expr::Pipe(pipe) => mentions(pipe, name),
        _ => false,
    }
}

/// The text that opens a tool call: inside the first `if` whose condition reads `.ToolCalls`, the first text that is not
/// blank and is reached without passing an action, up to its first `{`. `{` if there is none.
///
/// An `if` without such a text is passed over (Ollama stops there and settles for `{`).
pub(super) fn tool_tag(root: &[Node]) -> String {
    let tag = tool_text(root).and_then(|text| text.split('{').next()).unwrap_or("").trim();
    if tag.is_empty() { "{".to_string() } else { tag.to_string() }
}

fn tool_text(list: &[Node]) -> Option<&str> {
    list.iter().find_map(|node| match node {
        Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
            let is_tool_branch = matches!(node, Node::If(b) if mentions(&b.pipe, "ToolCalls"));
            let own = if is_tool_branch { first_text(&branch.list).ok().flatten() } else { None };
            own.or_else(|| tool_text(&branch.list))
                .or_else(|| tool_text(branch.else_list.as_deref().unwrap_or_default()))
        }
        _ => None,
    })
}

/// `Err` when an action comes first.
fn first_text(list: &[Node]) -> Result<Option<&str>, ()> {
    for node in list {
        match node {
            Node::Text(text) if !text.trim().is_empty() => return Ok(Some(text)),
            Node::Action(pipe) if pipe.decl.is_empty() => return Err(()),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                if let Some(text) = first_text(&branch.list)? {
                    return Ok(Some(text));
                }
                if let Some(text) = first_text(branch.else_list.as_deref().unwrap_or_default())? {
                    return Ok(Some(text));
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The tree without anything that follows the first printed `.Response`: the model writes the rest. Conditions are not
/// looked at, so `{{ if .Response }}` does not cut.
pub(super) fn cut_after_response(root: &[Node]) -> List {
    let mut cut = false;
    cut_list(root, &mut cut)
}

fn cut_list(list: &[Node], cut: &mut bool) -> List {
    let mut kept = List::new();
    for node in list {
        if *cut {
            break;
        }
        match node {
            Node::Action(pipe) => kept.extend(cut_pipe(pipe, cut).map(Node::Action)),
            Node::If(branch) => kept.push(Node::If(cut_branch(branch, cut))),
            Node::With(branch) => kept.push(Node::With(cut_branch(branch, cut))),
            Node::Range(branch) => kept.push(Node::Range(cut_branch(branch, cut))),
            other => kept.push(other.clone()),
        }
    }
    kept
}

fn cut_branch(branch: &Branch, cut: &mut bool) -> Branch {
    let list = cut_list(&branch.list, cut);
    let else_list = match &branch.else_list {
        Some(list) if !*cut => Some(cut_list(list, cut)),
        _ => None,
    };
    Branch { pipe: branch.pipe.clone(), list, else_list }
}

/// What remains of a printed pipeline. Operands after `.Response` go, and with them a command that has none left.
fn cut_pipe(pipe: &Pipe, cut: &mut bool) -> Option<Pipe> {
    let mut cmds = Vec::new();
    for cmd in &pipe.cmds {
        let mut kept = cmd.clone();
        kept.args.clear();
        for arg in &cmd.args {
            if *cut {
                break;
            }
            match &arg.expr {
                Expr::Field(names) if names.iter().any(|n| n == "Response") => {
                    *cut = true;
                    kept.args.push(arg.clone());
                }
                Expr::Pipe(inner) => {
                    if let Some(inner) = cut_pipe(inner, cut) {
                        kept.args.push(Arg { pos: arg.pos, expr: Expr::Pipe(Box::new(inner)) });
                    }
                }
                _ => kept.args.push(arg.clone()),
            }
        }
        // A later stage only sees what `.Response` printed: without its function the text goes out as it is.
        if kept.args.is_empty() {
            break;
        }
        cmds.push(kept);
    }
    (!cmds.is_empty()).then(|| Pipe { cmds, ..pipe.clone() })
}
