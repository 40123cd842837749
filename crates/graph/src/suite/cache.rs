//! The paged cache: copies of pages and states, page sizes, layers that several operations share.

use super::Case;
use super::attention_reference::{AttentionInputs, cache_tolerance};
use super::problem::Problem;
use super::schedule::{Event, Schedule};
use crate::attention::AttentionSpec;
use crate::kv::KvType;
use crate::mask::Mask;

/// Forks, page sizes and shared layers.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in KvType::ALL {
        cases.push(forked(ty, Mask::Causal));
        cases.push(forked(ty, Mask::Window(40)));
        cases.push(shared_layer(ty));
        cases.push(stored_only(ty));
    }
    for page_tokens in [16, 32, 128] {
        cases.extend([KvType::F32, KvType::Q8_0].map(|ty| page_size(ty, page_tokens)));
    }
    cases
}

fn inputs(p: &mut Problem, spec: AttentionSpec) -> AttentionInputs {
    let q = p.wide_input(spec.heads * spec.key_dim, 3.0);
    let k = p.input(spec.kv_heads * spec.key_dim);
    let v = p.input(spec.kv_heads * spec.value_dim);
    AttentionInputs { spec, q, k, v, sinks: None, position_bias: None }
}

/// A sequence that continues from copies of the pages of another, which goes on, too.
fn forked(ty: KvType, mask: Mask) -> Case {
    let name = format!("copy_page types={ty}/{ty} mask={}", format!("{mask:?}").to_lowercase());
    Case::new(name, cache_tolerance([ty; 2]), move || {
        let mut p = Problem::new(Schedule::new(vec![
            Event::Step(vec![(0, 100)]),
            Event::Fork { from: 0, to: 1 },
            Event::Step(vec![(1, 5), (0, 2)]),
            Event::Fork { from: 1, to: 2 },
            Event::Step(vec![(0, 1), (1, 30), (2, 1)]),
        ]));
        p.kv_types = [ty; 2];
        // A second layer lies behind the first in each page.
        let specs = [
            AttentionSpec { mask, ..AttentionSpec::causal(4, 2, 32, 64) },
            AttentionSpec { mask, ..AttentionSpec::causal(2, 1, 64, 32) },
        ];
        let all = specs.map(|spec| inputs(&mut p, spec));
        let outs = [0, 1].map(|i| {
            let layer = p.cache_layer(all[i].spec.cache_layer());
            p.graph.attention("out", layer, [all[i].q.id, all[i].k.id, all[i].v.id], all[i].spec)
        });
        let out = p.graph.concat("both", outs[0], outs[1]);
        p.expect(out, |span| {
            let pairs = all[0].rows(span).into_iter().zip(all[1].rows(span));
            pairs.map(|(a, b)| [a, b].concat()).collect()
        });
        p
    })
}

/// Two attentions read a layer, which the first one writes; the second has a window.
fn shared_layer(ty: KvType) -> Case {
    Case::new(format!("attention_to types={ty}/{ty}"), cache_tolerance([ty; 2]), move || {
        let mut p = Problem::new(Schedule::steps(&[&[(0, 80)], &[(0, 1), (1, 9)], &[(1, 3)]]));
        p.kv_types = [ty; 2];
        let first = inputs(&mut p, AttentionSpec::causal(4, 2, 64, 64));
        let mask = Mask::Window(25);
        let spec = AttentionSpec { mask, ..AttentionSpec::causal(6, 2, 64, 64) };
        let q = p.wide_input(6 * 64, 3.0);
        let second = AttentionInputs {
            spec,
            q,
            k: first.k.clone(),
            v: first.v.clone(),
            sinks: None,
            position_bias: None,
        };
        let layer = p.cache_layer(first.spec.cache_layer());
        let ids = [first.q.id, first.k.id, first.v.id];
        let a = p.graph.attention("first", layer, ids, first.spec);
        let b = p.graph.attention_to("second", layer, second.q.id, second.spec);
        let out = p.graph.concat("both", a, b);
        p.expect(out, |span| {
            let pairs = first.rows(span).into_iter().zip(second.rows(span));
            pairs.map(|(a, b)| [a, b].concat()).collect()
        });
        p
    })
}

/// Keys and values that one operation stores and another reads.
fn stored_only(ty: KvType) -> Case {
    Case::new(format!("store_kv types={ty}/{ty}"), cache_tolerance([ty; 2]), move || {
        let mut p = Problem::new(Schedule::steps(&[&[(0, 70), (1, 3)], &[(1, 1)], &[(0, 2)]]));
        p.kv_types = [ty; 2];
        let inputs = inputs(&mut p, AttentionSpec::causal(4, 4, 32, 64));
        let layer = p.cache_layer(inputs.spec.cache_layer());
        p.graph.store_kv("kv", layer, [inputs.k.id, inputs.v.id], inputs.spec);
        let out = p.graph.attention_to("out", layer, inputs.q.id, inputs.spec);
        p.expect(out, |span| inputs.rows(span));
        p
    })
}

fn page_size(ty: KvType, page_tokens: usize) -> Case {
    let name = format!("attention types={ty}/{ty} page_tokens={page_tokens}");
    Case::new(name, cache_tolerance([ty; 2]), move || {
        let steps: [&[(usize, usize)]; 3] = [&[(0, 90)], &[(0, 1), (1, 40)], &[(1, 30), (0, 2)]];
        let mut p = Problem::new(Schedule::steps(&steps));
        p.kv_types = [ty; 2];
        p.page_tokens = page_tokens;
        let inputs = inputs(&mut p, AttentionSpec::causal(4, 2, 64, 64));
        let layer = p.cache_layer(inputs.spec.cache_layer());
        let ids = [inputs.q.id, inputs.k.id, inputs.v.id];
        let out = p.graph.attention("out", layer, ids, inputs.spec);
        p.expect(out, |span| inputs.rows(span));
        p
    })
}
