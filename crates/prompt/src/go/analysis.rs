//! Static analysis of a Go template's tree: the variables it reads, the tags around reasoning and
//! tool calls, and the cut behind `.Response` in templates for a single exchange.

use std::collections::BTreeSet;

use super::node::{Arg, Branch, Expr, List, Node, Pipe};

/// Collects all fields and variables in the nodes, in lower case. Like Ollama, it does not see
/// fields behind a parenthesis, such as `(index .Messages 0).Role`. Ollama's choice of the render
/// mode depends on this.
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

/// The texts around `.Thinking` in a loop over `.Messages`: first and last node of the innermost
/// block, trimmed. A node that is not text yields an empty string. The last occurrence wins.
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

/// Returns true if a pipeline reads a field of this name.
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

/// The text that starts a tool call. Within the first `if` that reads `.ToolCalls` in its
/// condition, it is the first non-blank text that precedes all actions, up to its first `{`. The
/// default is `{`.
///
/// An `if` without a matching text is skipped, while Ollama stops there and uses `{`.
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

/// `Err` if an action precedes the text.
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

/// The tree up to the first printed `.Response`, where the model continues. Conditions such as `{{
/// if .Response }}` do not cut.
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

/// The rest of a printed pipeline: operands behind `.Response` are removed, and commands without
/// operands.
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
        // A later command sees only the text that `.Response` printed. Without its function, the
        // text is printed unchanged.
        if kept.args.is_empty() {
            break;
        }
        cmds.push(kept);
    }
    (!cmds.is_empty()).then(|| Pipe { cmds, ..pipe.clone() })
}
