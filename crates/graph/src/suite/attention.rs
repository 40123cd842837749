//! Attention over the cache and over the rows of a step.

use std::ops::Range;

use super::Case;
use super::attention_reference::{AttentionInputs, cache_tolerance};
use super::problem::Problem;
use super::schedule::Schedule;
use crate::attention::{AttentionSpec, RelativePositionBias};
use crate::backend::RowWindow;
use crate::kv::KvType;
use crate::mask::Mask;

/// Steps of a case with a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    /// A prompt, then a token, some tokens and a token.
    Prompt,
    /// Three sequences that begin in different steps.
    Batch,
    /// A prompt of more than a thousand tokens, then a token and some tokens.
    Long,
}

impl Steps {
    /// Name in the name of a case.
    pub fn name(self) -> &'static str {
        match self {
            Steps::Prompt => "prompt",
            Steps::Batch => "batch",
            Steps::Long => "long",
        }
    }

    /// The steps.
    pub fn schedule(self) -> Schedule {
        match self {
            Steps::Prompt => Schedule::steps(&[&[(0, 150)], &[(0, 1)], &[(0, 7)], &[(0, 1)]]),
            Steps::Batch => Schedule::steps(&[
                &[(0, 70)],
                &[(0, 1), (1, 33)],
                &[(0, 2), (1, 1), (2, 5)],
                &[(1, 60), (2, 1), (0, 3)],
            ]),
            Steps::Long => Schedule::steps(&[&[(0, 1090)], &[(0, 1)], &[(0, 3)]]),
        }
    }
}

/// An attention with its optional inputs.
#[derive(Debug, Clone, Copy)]
struct Options {
    spec: AttentionSpec,
    types: [KvType; 2],
    steps: Steps,
    has_sinks: bool,
    /// Number of buckets of a relative position bias.
    buckets: Option<usize>,
}

impl Options {
    fn new(spec: AttentionSpec, ty: KvType, steps: Steps) -> Self {
        Self { spec, types: [ty; 2], steps, has_sinks: false, buckets: None }
    }
}

/// Attention for every cache type, mask and option.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let heads = [(1, 1, 64, 64), (4, 4, 64, 64), (6, 2, 32, 96), (8, 1, 128, 128)];
    for ty in KvType::ALL {
        for (heads, kv_heads, key_dim, value_dim) in heads {
            let spec = AttentionSpec::causal(heads, kv_heads, key_dim, value_dim);
            let steps = if heads == 6 { Steps::Prompt } else { Steps::Batch };
            cases.push(cached(Options::new(spec, ty, steps)));
        }
        let latent =
            AttentionSpec { values_in_keys: true, ..AttentionSpec::causal(20, 1, 192, 128) };
        cases.push(cached(Options::new(latent, ty, Steps::Batch)));
        cases.push(cached(Options::new(AttentionSpec::causal(2, 1, 64, 64), ty, Steps::Long)));
    }
    for ty in [KvType::F32, KvType::F16, KvType::Bf16] {
        let spec = AttentionSpec::causal(3, 3, 40, 24);
        cases.push(cached(Options::new(spec, ty, Steps::Batch)));
        let spec = AttentionSpec::causal(4, 2, 33, 17);
        cases.push(cached(Options::new(spec, ty, Steps::Prompt)));
    }
    cases.extend(mixed_types());
    cases.extend(masks());
    cases.extend(options());
    cases.extend(encoders());
    cases.extend([0, 1, 33].map(encoder_decoder));
    cases
}

fn mixed_types() -> Vec<Case> {
    let types = [
        [KvType::Q8_0, KvType::F16],
        [KvType::F16, KvType::Q8_0],
        [KvType::Q8_0, KvType::Q4_0],
        [KvType::F32, KvType::Bf16],
    ];
    let spec = AttentionSpec::causal(4, 2, 64, 64);
    let case = |types| cached(Options { types, ..Options::new(spec, KvType::F32, Steps::Batch) });
    types.map(case).into()
}

fn masks() -> Vec<Case> {
    let masks = [
        Mask::Window(1),
        Mask::Window(20),
        Mask::Window(64),
        Mask::Window(100),
        Mask::Chunk(24),
        Mask::Chunk(64),
    ];
    let mut cases = Vec::new();
    for mask in masks {
        for (ty, steps) in [
            (KvType::F32, Steps::Batch),
            (KvType::F16, Steps::Prompt),
            (KvType::Q8_0, Steps::Batch),
        ] {
            let spec = AttentionSpec { mask, ..AttentionSpec::causal(4, 2, 64, 64) };
            cases.push(cached(Options::new(spec, ty, steps)));
        }
    }
    for mask in [Mask::Causal, Mask::Window(20)] {
        let spec = AttentionSpec { mask, sees_ahead: true, ..AttentionSpec::causal(4, 2, 32, 32) };
        cases.push(cached(Options::new(spec, KvType::F16, Steps::Batch)));
    }
    for mask in [Mask::Causal, Mask::Window(8), Mask::Window(60), Mask::Chunk(24)] {
        let plain = AttentionSpec::causal(4, 2, 32, 32);
        let spec = AttentionSpec { mask, sees_media_span: true, ..plain };
        cases.extend([(0, 40), (11, 70)].map(|(start, end)| media_span(spec, start..end)));
    }
    let spec = AttentionSpec { mask: Mask::Window(600), ..AttentionSpec::causal(2, 1, 32, 32) };
    cases.push(cached(Options::new(spec, KvType::F16, Steps::Long)));
    cases
}

fn options() -> Vec<Case> {
    let plain = AttentionSpec::causal(6, 2, 32, 32);
    let base = Options::new(plain, KvType::F16, Steps::Batch);
    let window = Mask::Window(30);
    let all = [
        Options { spec: AttentionSpec { softcap: Some(2.0), ..plain }, ..base },
        Options { spec: AttentionSpec { scale: 0.5, ..plain }, ..base },
        Options { spec: AttentionSpec { alibi: Some(8.0), ..plain }, ..base },
        Options { spec: AttentionSpec { alibi: Some(8.0), softcap: Some(3.0), ..plain }, ..base },
        Options { has_sinks: true, ..base },
        Options { has_sinks: true, spec: AttentionSpec { mask: window, ..plain }, ..base },
        Options { buckets: Some(32), ..base },
        Options { buckets: Some(7), steps: Steps::Prompt, ..base },
    ];
    let types = |options: Options| {
        [KvType::F32, KvType::F16].map(|ty| cached(Options { types: [ty; 2], ..options }))
    };
    all.into_iter().flat_map(types).collect()
}

fn encoders() -> Vec<Case> {
    let base = |mask| Options {
        spec: AttentionSpec { mask, ..AttentionSpec::causal(6, 2, 32, 48) },
        ..Options::new(AttentionSpec::causal(1, 1, 1, 1), KvType::F32, Steps::Prompt)
    };
    let mut all =
        [Mask::Full, Mask::SymmetricWindow(3), Mask::SymmetricWindow(70), Mask::RowWindow]
            .map(base)
            .to_vec();
    let full = base(Mask::Full);
    all.extend([
        Options { spec: AttentionSpec { alibi: Some(8.0), ..full.spec }, ..full },
        Options { spec: AttentionSpec { softcap: Some(2.0), ..full.spec }, ..full },
        Options { buckets: Some(32), ..full },
    ]);
    let sizes = |options: Options| [1, 5, 230].map(|rows| encoder(options, rows));
    all.into_iter().flat_map(sizes).collect()
}

/// The parameters of a case in its name.
fn parameters(options: &Options) -> String {
    let AttentionSpec { heads, kv_heads, key_dim, value_dim, mask, .. } = options.spec;
    let mask = format!("{mask:?}").to_lowercase();
    let mut name = format!("heads={heads}/{kv_heads} dims={key_dim}/{value_dim} mask={mask}");
    let spec = &options.spec;
    let flags = [
        (spec.values_in_keys, "values_in_keys"),
        (spec.sees_ahead, "sees_ahead"),
        (spec.sees_media_span, "sees_media_span"),
        (spec.softcap.is_some(), "softcap"),
        (spec.alibi.is_some(), "alibi"),
        (options.has_sinks, "sinks"),
    ];
    for (_, flag) in flags.iter().filter(|flag| flag.0) {
        name += &format!(" {flag}=true");
    }
    if let Some(buckets) = options.buckets {
        name += &format!(" buckets={buckets}");
    }
    if spec.scale != AttentionSpec::causal(heads, kv_heads, key_dim, value_dim).scale {
        name += &format!(" scale={}", spec.scale);
    }
    name
}

/// Inputs of an attention. Queries are large enough that its weights differ.
fn inputs(p: &mut Problem, options: &Options) -> AttentionInputs {
    let mut spec = options.spec;
    let sinks = options.has_sinks.then(|| p.floats(&[spec.heads]));
    let position_bias = options.buckets.map(|buckets| p.floats(&[spec.heads, buckets]));
    let both_sides = !spec.mask.is_cached();
    let table = position_bias.as_ref().map(|table| table.id);
    spec.sinks = sinks.as_ref().map(|sinks| sinks.id);
    spec.position_bias = options.buckets.zip(table).map(|(buckets, table)| RelativePositionBias {
        table,
        buckets,
        both_sides,
    });
    let q = p.wide_input(spec.heads * spec.key_dim, 3.0);
    let k = p.input(spec.kv_heads * spec.key_dim);
    let v = if spec.values_in_keys { k.clone() } else { p.input(spec.kv_heads * spec.value_dim) };
    AttentionInputs { spec, q, k, v, sinks, position_bias }
}

fn cached(options: Options) -> Case {
    let [key_type, value_type] = options.types;
    let shape = parameters(&options);
    let name =
        format!("attention types={key_type}/{value_type} steps={} {shape}", options.steps.name());
    Case::new(name, cache_tolerance(options.types), move || {
        let mut p = Problem::new(options.steps.schedule());
        p.kv_types = options.types;
        let inputs = inputs(&mut p, &options);
        let layer = p.cache_layer(inputs.spec.cache_layer());
        let ids = [inputs.q.id, inputs.k.id, inputs.v.id];
        let out = p.graph.attention("out", layer, ids, inputs.spec);
        p.expect(out, |span| inputs.rows(span));
        p
    })
}

/// Attention in sequences with a medium at these tokens.
fn media_span(spec: AttentionSpec, span: Range<usize>) -> Case {
    let options = Options::new(spec, KvType::F16, Steps::Prompt);
    let name = format!("attention types=f16/f16 media={span:?} {}", parameters(&options));
    Case::new(name, cache_tolerance([KvType::F16; 2]), move || {
        let first = span.start;
        let (whole, parts) = ([(0, 90), (1, first)], [(1, 75), (0, 1)]);
        let steps: [&[(usize, usize)]; 4] =
            [if first == 0 { &whole[..1] } else { &whole }, &parts, &[(1, 1)], &[(0, 5), (1, 1)]];
        let mut p = Problem::new(Schedule::steps(&steps).with_media_span(span.clone()));
        p.kv_types = [KvType::F16; 2];
        let inputs = inputs(&mut p, &options);
        let layer = p.cache_layer(inputs.spec.cache_layer());
        let ids = [inputs.q.id, inputs.k.id, inputs.v.id];
        let out = p.graph.attention("out", layer, ids, inputs.spec);
        p.expect(out, |span| inputs.rows(span));
        p
    })
}

fn encoder(options: Options, rows: usize) -> Case {
    let name = format!("attention types=none rows={rows} {}", parameters(&options));
    // Windows that see themselves, earlier rows, and rows of two windows; other rows see all.
    let windows = [(0..4, 0..4), (4..30, 4..30), (30..70, 2..31), (75..140, 60..150)];
    let windows = windows.map(|(rows, sees)| RowWindow { rows, sees });
    Case::new(name, cache_tolerance([KvType::F32; 2]), move || {
        let mut p = Problem::new(Schedule::one_step(rows).with_row_windows(windows.to_vec()));
        let inputs = inputs(&mut p, &options);
        let ids = [inputs.q.id, inputs.k.id, inputs.v.id];
        let out = p.graph.attention("out", 0, ids, inputs.spec);
        p.expect(out, |span| inputs.rows(span));
        p
    })
}

/// Self-attention of a decoder and its cross-attention to the first `encoder_tokens` tokens of each
/// sequence.
fn encoder_decoder(encoder_tokens: usize) -> Case {
    let name = format!("attention types=f16/f16 heads=4/4 dims=32/32 encoded={encoder_tokens}");
    Case::new(name, cache_tolerance([KvType::F16; 2]), move || {
        let first = encoder_tokens.max(1);
        let steps: [&[(usize, usize)]; 3] =
            [&[(0, first), (1, first)], &[(1, 4), (0, 9)], &[(0, 1), (1, 1)]];
        let mut p = Problem::new(Schedule::steps(&steps).with_encoder_tokens(encoder_tokens));
        p.kv_types = [KvType::F16; 2];
        let plain = AttentionSpec::causal(4, 4, 32, 32);
        let spec = |mask| AttentionSpec { mask, ..plain };
        let options = |mask| Options::new(spec(mask), KvType::F16, Steps::Prompt);
        let own = inputs(&mut p, &options(Mask::DecoderCausal));
        let cross = inputs(&mut p, &options(Mask::CrossAttention));
        let layers = [own.spec, cross.spec].map(|spec| p.cache_layer(spec.cache_layer()));
        p.graph.store_kv("kv", layers[1], [cross.k.id, cross.v.id], cross.spec);
        let decoded = p.graph.attention("own", layers[0], [own.q.id, own.k.id, own.v.id], own.spec);
        let encoded_part = p.graph.attention_to("cross", layers[1], cross.q.id, cross.spec);
        let out = p.graph.concat("out", decoded, encoded_part);
        p.expect(out, |span| {
            // The operation defines no result for the tokens of the encoder's input.
            let row = |(i, (own, cross)): (usize, (Vec<f64>, Vec<f64>))| {
                let row = [own, cross].concat();
                if span.cached_tokens + i < encoder_tokens {
                    vec![f64::NAN; row.len()]
                } else {
                    row
                }
            };
            own.rows(span).into_iter().zip(cross.rows(span)).enumerate().map(row).collect()
        });
        p
    })
}
