//! What has no reference of its own and follows from one that there is: architectures whose graph is that of another with other
//! constants (a file of the other under their name gives its logits), and parts whose effect is known.

mod kit;

use kit::{Entry, complaint, feed, rewritten};
use puna_gguf::Metadata;

#[test]
fn kin_give_the_logits_of_those_whose_graph_they_have() {
    let keep = |_: &mut Metadata| {};
    let twice = |metadata: &mut Metadata| {
        let width = metadata.u32("qwen.feed_forward_length").unwrap();
        metadata.set("qwen.feed_forward_length", 2 * width);
    };
    let check = |of: &str, name: &str, change: &dyn Fn(&mut Metadata)| {
        let entry = rewritten(&Entry::load(of), name, change, &[]);
        let rows = feed(&entry, "portable", "sevens");
        std::fs::remove_file(&entry.file).unwrap();
        assert_eq!(complaint(&entry, &rows, true), None, "{name} as {of}");
    };
    check("llama", "internlm2", &keep);
    check("llama", "xverse", &keep);
    check("qwen2", "exaone", &keep);
    check("qwen2", "qwen", &twice);
    check("gpt2", "starcoder", &keep);
    check("stablelm", "orion", &keep);
    check("deepseek", "bailingmoe", &keep);
}

#[test]
fn the_vector_of_a_text_passes_the_projections_of_its_file() {
    let plain = Entry::load("gemma-embedding");
    let n = plain.want[0].len();
    // One doubles the columns, the other adds both halves.
    let both = |row: usize, column: usize| f32::from(u8::from(row % n == column % n));
    let wide: Vec<f32> = (0..2 * n * n).map(|i| both(i / n, i % n)).collect();
    let thin: Vec<f32> = (0..2 * n * n).map(|i| both(i / (2 * n), i % (2 * n))).collect();
    let tensors = [("dense_2.weight", [n, 2 * n], wide), ("dense_3.weight", [2 * n, n], thin)];
    let keys = |metadata: &mut Metadata| {
        for key in ["dense_2_feat_out", "dense_3_feat_in"] {
            metadata.set(&format!("gemma-embedding.{key}"), 2 * n as u32);
        }
    };
    let projected = rewritten(&plain, "gemma-embedding", &keys, &tensors);
    let rows = feed(&projected, "portable", "whole");
    std::fs::remove_file(&projected.file).unwrap();
    let halves: Vec<Vec<f32>> = rows.iter().map(|row| row.iter().map(|x| x / 2.0).collect()).collect();
    assert_eq!(complaint(&plain, &halves, true), None);
}
