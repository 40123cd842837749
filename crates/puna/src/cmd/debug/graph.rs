//! `puna debug graph`: the operations of one step with their shapes and memory offsets.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use puna_graph::{Capacity, Op, Plan, Rows};
use puna_models::{LoadOptions, Model, StepKind};
use serde_json::{Value, json};

use crate::local::ModelFile;
use crate::{format, out};

pub fn run(model: &str, tokens: usize, dot: Option<&Path>, as_json: bool) -> Result<()> {
    let file = ModelFile::open(model)?;
    let model = Model::load(&file.view, LoadOptions::default())?;
    let want = if model.shape().has_logits { StepKind::Logits } else { StepKind::Hidden };
    let graph = model.graph(want).context("the model has no graph")?;
    let plan = Plan::new(graph, Capacity { tokens, outputs: 1 });
    let nodes: Vec<Value> =
        (0..plan.graph.nodes().len()).map(|at| node(&plan, &model, at)).collect();
    if let Some(path) = dot {
        std::fs::write(path, graphviz(&nodes))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    // The plan gives the size of the arena in floats of 4 bytes.
    let scratch = plan.arena as u64 * 4;
    if as_json {
        return out::json(&json!({"nodes": nodes, "scratch_bytes": scratch}));
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let rows: Vec<Vec<String>> = nodes
        .iter()
        .map(|n| {
            ["id", "name", "op", "type", "shape", "offset", "inputs", "weights"]
                .map(|key| text(&n[key]))
                .to_vec()
        })
        .collect();
    let table =
        format::table(&["ID", "NAME", "OP", "TYPE", "SHAPE", "OFFSET", "INPUTS", "WEIGHTS"], &rows);
    out::text(&format!(
        "{table}\n{} operations, {} of scratch memory\n",
        rows.len(),
        format::bytes(scratch)
    ))
}

fn node(plan: &Plan, model: &Model, at: usize) -> Value {
    let node = &plan.graph.nodes()[at];
    let range = plan.arena_range(node.out);
    let name =
        node.layer.map_or_else(|| node.name.to_owned(), |layer| format!("{}-{layer}", node.name));
    // A slice has no node of its own; it depends on the node that fills its storage.
    let storage = |id| plan.graph.value(id).storage;
    let origin = |id| plan.graph.nodes()[..at].iter().rfind(|n| storage(n.out) == storage(id));
    let inputs: Vec<usize> =
        node.op.inputs().filter_map(|id| Some(origin(id)?.out.index())).collect();
    let weights: Vec<&str> = weights(&node.op)
        .iter()
        .filter_map(|i| Some(model.weights().get(*i)?.name.as_str()))
        .collect();
    json!({
        "id": node.out.index(), "name": name, "op": node.op.name(), "type": "f32",
        "shape": [range.cols, plan.capacity.rows(range.rows)],
        "rows": match range.rows { Rows::Tokens => "tokens", Rows::Outputs => "outputs" },
        "offset": range.start * 4, "stride": range.stride * 4, "inputs": inputs, "weights": weights,
    })
}

/// Tensors that an operation reads.
fn weights(op: &Op) -> Vec<usize> {
    let ids = match op {
        Op::Embed { table, .. } | Op::EmbedRows { table, .. } => vec![Some(*table)],
        Op::Linear { w, bias, .. } => vec![Some(*w), *bias],
        Op::PerHeadLinear { w, .. } => vec![Some(*w)],
        Op::RmsNorm { w, .. } => vec![*w],
        Op::LayerNorm { w, b, .. } => vec![*w, *b],
        Op::Moe { spec, .. } => vec![
            Some(spec.gate),
            Some(spec.up),
            Some(spec.down),
            spec.gate_bias,
            spec.up_bias,
            spec.down_bias,
            spec.selection_bias,
            spec.factors,
        ],
        _ => Vec::new(),
    };
    ids.into_iter().flatten().map(|id| id.index()).collect()
}

fn graphviz(nodes: &[Value]) -> String {
    let mut text = String::from("digraph step {\n  node [shape=box, fontname=monospace];\n");
    for node in nodes {
        let label = format!(
            "{}\\n{} {}",
            node["name"].as_str().unwrap_or_default(),
            node["op"].as_str().unwrap_or_default(),
            node["shape"]
        );
        let _ = writeln!(text, "  n{} [label=\"{}\"];", node["id"], label.replace('"', "'"));
        for input in node["inputs"].as_array().into_iter().flatten() {
            let _ = writeln!(text, "  n{input} -> n{};", node["id"]);
        }
    }
    text.push_str("}\n");
    text
}
