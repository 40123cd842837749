//! WavTokenizer's decoder: converts audio codes to features for a vocoder. Convolutions over time,
//! residual blocks with group norms and one attention among them, then ConvNeXt blocks. The result
//! is one row of features per code, not text.
//! GGUF: `general.architecture = "wavtokenizer-dec"`.

use std::sync::Arc;

use puna_graph::*;

use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture, ModelShape};
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::{MappedBytes, Weights};

struct WavTokenizer {
    /// Dimensions of a code's embedding.
    features: usize,
    table: WeightId,
    input_conv: Conv,
    first: [Resnet; 2],
    attention: Attention,
    second: [Resnet; 2],
    last: GroupNorm,
    norm: Norm,
    blocks: Vec<ConvNext>,
    out_norm: Norm,
    head: Linear,
}

/// Convolution over time, centred on the token.
struct Conv {
    /// `[taps · input, output]`.
    product: Linear,
    taps: usize,
}

#[derive(Clone, Copy)]
struct GroupNorm {
    /// Weights and biases.
    wb: [WeightId; 2],
    groups: usize,
    eps: f32,
}

/// Residual block of two normed convolutions.
struct Resnet {
    norms: [GroupNorm; 2],
    convs: [Conv; 2],
}

/// Attention of one head, as wide as the stream.
struct Attention {
    norm: GroupNorm,
    qkv: [Linear; 3],
    wo: Linear,
    spec: AttentionSpec,
}

/// ConvNeXt block: depthwise convolution, GELU network and a factor for each feature.
struct ConvNext {
    /// `[taps, 1, features]`.
    each: PerHeadLinear,
    bias: WeightId,
    norm: Norm,
    up: Linear,
    down: Linear,
    gamma: WeightId,
}

/// Taps of the input convolution and of ConvNeXt blocks.
const WIDE_TAPS: usize = 7;
/// Taps of residual blocks.
const NARROW_TAPS: usize = 3;
/// Number of blocks that files must have: two residual blocks, attention, two residual blocks, a
/// norm.
const POSNET_BLOCKS: usize = 6;

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let (features, out) =
        (keys.hidden_size("features_length")?, keys.hidden_size("embedding_length")?);
    let width = keys.hidden_size("posnet.embedding_length")?;
    let wrong = |key: &str, value: usize, reason| {
        Err(ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason })
    };
    if keys.hidden_size("convnext.embedding_length")? != width {
        return wrong("convnext.embedding_length", width, "must equal posnet.embedding_length");
    }
    let blocks = keys.count("posnet.block_count")?;
    if blocks != POSNET_BLOCKS {
        return wrong("posnet.block_count", blocks, "must be 6");
    }
    let layers = keys.layers("convnext.block_count")?;
    let sizes = WavTokenizerSizes::read(keys, width)?;
    let n_vocab = keys.vocabulary()?;
    let resnet = |w: &mut Weights<'_>, i| Resnet::load(w, &sizes, i);
    let arch = WavTokenizer {
        features,
        table: w.tensor("token_embd.weight", &[features, n_vocab])?,
        input_conv: Conv::load(w, "conv1d", WIDE_TAPS, (features, width))?,
        first: [resnet(w, 0)?, resnet(w, 1)?],
        attention: Attention::load(w, &sizes)?,
        second: [resnet(w, 3)?, resnet(w, 4)?],
        last: sizes.norm(w, "posnet.5.attn_norm")?,
        norm: w.norm("token_embd_norm", width, sizes.eps)?,
        blocks: (0..layers).map(|i| ConvNext::load(w, &sizes, i)).collect::<Result<_, _>>()?,
        out_norm: w.norm("output_norm", width, sizes.eps)?,
        head: w.linear("output", width, out)?,
    };
    let shape = ModelShape {
        n_ctx: keys.count("context_length")?,
        n_embd: out,
        n_layer: layers,
        n_vocab,
        causal: false,
        has_logits: false,
        start_token: None,
        score_labels: 0,
        score_is_softmax: false,
        unmasking: None,
    };
    Ok(LoadedArchitecture { arch: Box::new(arch), cache: Vec::new(), shape })
}

/// Sizes that all parts share.
#[derive(Clone, Copy)]
struct WavTokenizerSizes {
    width: usize,
    ff: usize,
    eps: f32,
    groups: usize,
    group_eps: f32,
}

impl WavTokenizerSizes {
    fn read(keys: &Keys<'_>, width: usize) -> Result<Self, ModelError> {
        let groups = keys.count("attention.group_norm_groups")?;
        if !width.is_multiple_of(groups) {
            let (key, value) = (keys.name("attention.group_norm_groups"), groups.to_string());
            let reason = "the number of groups must divide the features";
            return Err(ModelError::KeyValue { key, value, reason });
        }
        Ok(Self {
            width,
            ff: keys.hidden_size("feed_forward_length")?,
            eps: keys.layer_eps()?,
            groups,
            group_eps: keys.epsilon("attention.group_norm_epsilon")?,
        })
    }

    fn norm(&self, w: &mut Weights<'_>, name: &str) -> Result<GroupNorm, ModelError> {
        let mut of = |part: &str| w.tensor(&format!("{name}.{part}"), &[1, self.width]);
        Ok(GroupNorm { wb: [of("weight")?, of("bias")?], groups: self.groups, eps: self.group_eps })
    }
}

/// A tensor with another shape, under a name that no adapter refers to.
fn reshaped(
    w: &mut Weights<'_>,
    name: &str,
    shape: &[usize],
    as_shape: &[usize],
) -> Result<WeightId, ModelError> {
    w.derive(&format!("{name} unfolded"), as_shape, (name, shape), |data, ty| {
        (ty, Arc::new(MappedBytes(data)))
    })
}

impl GroupNorm {
    fn apply(&self, g: &mut Graph, name: &'static str, x: ValueId) -> ValueId {
        g.group_norm(name, x, self.wb, (self.groups, self.eps))
    }
}

impl Conv {
    /// Loads `NAME.weight [taps, input, output]` and `NAME.bias`.
    fn load(
        w: &mut Weights<'_>,
        name: &str,
        taps: usize,
        (input, output): (usize, usize),
    ) -> Result<Self, ModelError> {
        let shape = [taps, input, output];
        let matrix = reshaped(w, &format!("{name}.weight"), &shape, &[taps * input, output])?;
        let bias = Some(w.tensor(&format!("{name}.bias"), &[1, output])?);
        Ok(Self { product: Linear { w: matrix, scale: 1.0, bias, out: output }, taps })
    }

    fn forward(&self, g: &mut Graph, name: &'static str, x: ValueId) -> ValueId {
        let around = if self.taps == 1 { x } else { g.unfold("unfolded", x, self.taps) };
        g.linear(name, &self.product, around)
    }
}

impl Resnet {
    fn load(w: &mut Weights<'_>, sizes: &WavTokenizerSizes, i: usize) -> Result<Self, ModelError> {
        let name = |part: &str| format!("posnet.{i}.{part}");
        let size = (sizes.width, sizes.width);
        Ok(Self {
            norms: [sizes.norm(w, &name("norm1"))?, sizes.norm(w, &name("norm2"))?],
            convs: [
                Conv::load(w, &name("conv1"), NARROW_TAPS, size)?,
                Conv::load(w, &name("conv2"), NARROW_TAPS, size)?,
            ],
        })
    }

    fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let mut h = x;
        for (norm, conv) in self.norms.iter().zip(&self.convs) {
            h = norm.apply(g, "posnet_norm", h);
            h = g.activate("posnet_act", Activation::Silu, h);
            h = conv.forward(g, "posnet_conv", h);
        }
        g.add("posnet_out", h, x)
    }
}

impl Attention {
    fn load(w: &mut Weights<'_>, sizes: &WavTokenizerSizes) -> Result<Self, ModelError> {
        let n = sizes.width;
        let mut linear = |part: &str| {
            Conv::load(w, &format!("posnet.2.attn_{part}"), 1, (n, n)).map(|conv| conv.product)
        };
        let (qkv, wo) = ([linear("q")?, linear("k")?, linear("v")?], linear("output")?);
        let spec = AttentionSpec { mask: Mask::Full, ..AttentionSpec::causal(1, 1, n, n) };
        Ok(Self { norm: sizes.norm(w, "posnet.2.attn_norm")?, qkv, wo, spec })
    }

    fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let h = self.norm.apply(g, "posnet_norm", x);
        let qkv = self.qkv.each_ref().map(|linear| g.linear("posnet_qkv", linear, h));
        let a = g.attention("posnet_kqv", 0, qkv, self.spec);
        let a = g.linear("posnet_attn", &self.wo, a);
        g.add("posnet_out", a, x)
    }
}

impl ConvNext {
    fn load(w: &mut Weights<'_>, sizes: &WavTokenizerSizes, i: usize) -> Result<Self, ModelError> {
        let (n, name) = (sizes.width, |part: &str| format!("convnext.{i}.{part}"));
        Ok(Self {
            each: PerHeadLinear {
                w: w.tensor(&name("dw.weight"), &[WIDE_TAPS, 1, n])?,
                input: WIDE_TAPS,
                out: 1,
                heads: n,
            },
            bias: reshaped(w, &name("dw.bias"), &[1, n], &[n])?,
            norm: w.norm(&name("norm"), n, sizes.eps)?,
            up: w.linear(&name("pw1"), n, sizes.ff)?,
            down: w.linear(&name("pw2"), sizes.ff, n)?,
            gamma: w.tensor(&name("gamma.weight"), &[n])?,
        })
    }

    fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let width = g.value(x).cols;
        let around = g.unfold("unfolded", x, WIDE_TAPS);
        let h = g.per_head_linear("convnext_dw", &self.each, around);
        let bias = g.embed("convnext_dw_bias", self.bias, width, Index::Fixed(0));
        let h = g.add("convnext_dw", h, bias);
        let h = g.layer_norm("convnext_norm", &self.norm, h);
        let h = g.linear("convnext_up", &self.up, h);
        let h = g.activate("convnext_act", Activation::GeluTanh, h);
        let h = g.linear("convnext_down", &self.down, h);
        let gamma = g.embed("convnext_gamma", self.gamma, width, Index::Fixed(0));
        let h = g.mul("convnext_scaled", h, gamma);
        g.add("convnext_out", h, x)
    }
}

impl Architecture for WavTokenizer {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        let x = g.embed("inp_embd", self.table, self.features, Index::Token);
        let x = self.input_conv.forward(g, "inp_conv", x);
        let x = self.first.iter().fold(x, |x, block| block.forward(g, x));
        let x = self.attention.forward(g, x);
        let x = self.second.iter().fold(x, |x, block| block.forward(g, x));
        let x = self.last.apply(g, "posnet_norm", x);
        let x = g.layer_norm("inp_norm", &self.norm, x);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(g, x));
        let x = g.layer_norm("result_norm", &self.out_norm, x);
        let x = g.linear("result_embd", &self.head, x);
        if outputs_only { g.gather_outputs(x) } else { x }
    }

    fn logits(&self, _: &mut Graph, hidden: ValueId) -> ValueId {
        hidden
    }
}
