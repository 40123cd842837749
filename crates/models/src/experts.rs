//! Mixture of experts: router, experts, and shared experts.

use puna_graph::{
    Activation, ExpertLoraUpdates, Gating, Glu, Graph, Groups, Linear, MoeSpec, Norm, ValueId,
    WeightId,
};

use crate::blocks::Mlp;
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// A router and its experts.
#[derive(Debug, Clone)]
pub struct Experts {
    router: Linear,
    /// Projections to and from the latent dimensions of experts, if any.
    latent: Option<LatentProjection>,
    spec: MoeSpec,
    /// Smaller experts of the same routing, each shared by a group of experts.
    adjugates: Option<MoeSpec>,
}

/// Properties of the experts that an architecture fixes.
#[derive(Debug, Clone, Copy)]
pub struct ExpertShape {
    /// Number of experts.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Hidden dimension of an expert.
    pub hidden: usize,
    /// Gating function.
    pub gating: Gating,
    /// Whether the weights of the selected experts are normalized to sum 1.
    pub normalize: bool,
    /// Factor of all weights.
    pub scale: f32,
    /// Expert groups that limit the selection.
    pub groups: Option<Groups>,
    /// Whether weights multiply the input of experts instead of their result.
    pub weighs_input: bool,
    /// Activation of the experts; [`Glu::ReluSquared`] has no gate.
    pub glu: Glu,
    /// Latent dimensions of the experts, if they do not work on the residual stream directly.
    pub latent: Option<LatentExperts>,
}

/// Experts in a latent space between two projections.
#[derive(Debug, Clone, Copy)]
pub struct LatentExperts {
    /// Latent dimensions.
    pub width: usize,
    /// The projections are `ffn_NAME_down` and `ffn_NAME_up`.
    pub name: &'static str,
    /// Epsilon of the norm `ffn_NAME_norm` of the experts' result, which files can omit; `None`
    /// without a norm.
    pub eps: Option<f32>,
}

/// Projections of [`LatentExperts`] to the latent dimensions and back.
#[derive(Debug, Clone)]
struct LatentProjection {
    down: Linear,
    norm: Option<Norm>,
    up: Linear,
}

impl LatentProjection {
    fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        latent: LatentExperts,
    ) -> Result<Self, ModelError> {
        let LatentExperts { width, name, eps } = latent;
        let name = |part: &str| format!("{block}.ffn_{name}_{part}");
        Ok(Self {
            down: w.linear(&name("down"), n_embd, width)?,
            norm: eps.map_or(Ok(None), |eps| w.opt_norm(&name("norm"), &[width], eps))?,
            up: w.linear(&name("up"), width, n_embd)?,
        })
    }
}

impl ExpertShape {
    /// Experts with this hidden dimension. Their number and top-k come from the keys; gating is
    /// softmax, without normalization.
    pub fn read(keys: &Keys<'_>, hidden: usize) -> Result<Self, ModelError> {
        Self::using(keys, hidden, keys.count("expert_used_count")?)
    }

    /// [`Self::read`] with a given number of experts per token.
    pub fn using(keys: &Keys<'_>, hidden: usize, top_k: usize) -> Result<Self, ModelError> {
        let experts = keys.count("expert_count")?;
        let of = |key: &str, value: usize, reason| {
            Err(ModelError::KeyValue { key: keys.name(key), value: value.to_string(), reason })
        };
        if top_k == 0 || top_k > experts {
            return of("expert_used_count", top_k, "must be between 1 and the number of experts");
        }
        Ok(Self {
            experts,
            top_k,
            hidden,
            gating: Gating::Softmax,
            normalize: false,
            scale: 1.0,
            groups: None,
            weighs_input: false,
            glu: Glu::Silu,
            latent: None,
        })
    }

    /// [`Self::read`] followed by [`Self::with_routing`].
    pub fn read_with_routing(
        keys: &Keys<'_>,
        hidden: usize,
        gating: Gating,
    ) -> Result<Self, ModelError> {
        Self::read(keys, hidden)?.with_routing(keys, gating)
    }

    /// Reads the routing keys: gating function (default `gating`), normalization, scale and groups.
    pub fn with_routing(self, keys: &Keys<'_>, gating: Gating) -> Result<Self, ModelError> {
        let gating = match keys.opt_count("expert_gating_func")? {
            None | Some(0) => gating,
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(3) => Gating::SoftmaxOfSelected,
            Some(4) => Gating::SqrtSoftplus,
            Some(other) => {
                let reason = "use 1 (softmax), 2 (sigmoid), 3 (softmax of the selected experts) or 4 (square root of softplus)";
                let (key, value) = (keys.name("expert_gating_func"), other.to_string());
                return Err(ModelError::KeyValue { key, value, reason });
            }
        };
        Ok(Self {
            gating,
            normalize: keys.flag("expert_weights_norm")?,
            scale: keys.factor("expert_weights_scale")?.unwrap_or(1.0),
            groups: groups(keys, &self)?,
            ..self
        })
    }
}

/// Expert groups, if the file has more than one.
fn groups(keys: &Keys<'_>, shape: &ExpertShape) -> Result<Option<Groups>, ModelError> {
    let count = keys.opt_count("expert_group_count")?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    let top_k = keys.opt_count("expert_group_used_count")?.unwrap_or(count);
    let each = shape.experts / count;
    if !shape.experts.is_multiple_of(count)
        || top_k == 0
        || top_k > count
        || top_k * each < shape.top_k
    {
        let reason = "must divide the number of experts, and the used groups must have enough experts for a token";
        let (key, value) =
            (keys.name("expert_group_count"), format!("{count}, of which {top_k} are used"));
        return Err(ModelError::KeyValue { key, value, reason });
    }
    Ok(Some(Groups { count, top_k }))
}

impl Experts {
    /// Loads `ffn_gate_inp` and `ffn_{gate,up,down}_exps` with their optional biases, and
    /// `exp_probs_b` where the file has it.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        shape: ExpertShape,
    ) -> Result<Self, ModelError> {
        let router = w.linear(&format!("{block}.ffn_gate_inp"), n_embd, shape.experts)?;
        Self::with_router(w, block, n_embd, shape, router)
    }

    /// [`Self::load`] with a given router.
    pub fn with_router(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        shape: ExpertShape,
        router: Linear,
    ) -> Result<Self, ModelError> {
        let ExpertShape {
            experts,
            top_k,
            hidden,
            gating,
            normalize,
            scale,
            groups,
            weighs_input,
            glu,
            latent,
        } = shape;
        let width = latent.map_or(n_embd, |latent| latent.width);
        let name = |part: &str, kind: &str| format!("{block}.ffn_{part}_exps.{kind}");
        // A scale of the down matrices is the same as a factor of the expert's weight; other scales
        // are not supported.
        let unknown = ["gate", "up", "gate_up", "down"]
            .into_iter()
            .filter(|&part| weighs_input || part != "down");
        let unknown = unknown.map(|part| name(part, "scale")).chain([name("gate_up", "bias")]);
        if let Some(tensor) = unknown.into_iter().find(|name| w.has(name)) {
            let what = format!("`{tensor}`");
            return Err(ModelError::Unsupported {
                what,
                reason: "convert the experts to a format without it",
            });
        }
        let ([gate, up], is_joined) = halves(w, &name, [width, hidden, experts], glu)?;
        Ok(Self {
            router,
            latent: latent
                .map(|latent| LatentProjection::load(w, block, n_embd, latent))
                .transpose()?,
            spec: MoeSpec {
                experts,
                top_k,
                gating,
                normalize,
                scale,
                factors: w.opt(&name("down", "scale"), &[experts])?,
                selection_bias: selection_bias(w, block, experts)?,
                groups,
                experts_by_token: None,
                weighs_input,
                glu,
                hidden,
                out: width,
                experts_per_matrix: 1,
                gate,
                up,
                is_joined,
                down: w.tensor(&name("down", "weight"), &[hidden, width, experts])?,
                gate_bias: w.opt(
                    &name(if glu.has_gate() { "gate" } else { "up" }, "bias"),
                    &[hidden, experts],
                )?,
                up_bias: w.opt(&name("up", "bias"), &[hidden, experts])?,
                down_bias: w.opt(&name("down", "bias"), &[width, experts])?,
                lora_updates: ExpertLoraUpdates::default(),
            },
            adjugates: None,
        })
    }

    /// Adds the adjugate experts `ffn_{gate,up,down}_chexps` of hidden dimension `hidden`.
    /// `experts_per_matrix` consecutive experts share one, which computes once for each selected
    /// expert of them, with its weight times `scale`.
    pub fn with_adjugates(
        self,
        w: &mut Weights<'_>,
        block: &str,
        (n_embd, hidden): (usize, usize),
        (experts_per_matrix, scale): (usize, f32),
    ) -> Result<Self, ModelError> {
        let matrices = self.spec.experts / experts_per_matrix;
        let mut matrix = |part: &str, shape: [usize; 2]| {
            w.tensor(&format!("{block}.ffn_{part}_chexps.weight"), &[shape[0], shape[1], matrices])
        };
        let adjugates = MoeSpec {
            scale,
            hidden,
            experts_per_matrix,
            gate: matrix("gate", [n_embd, hidden])?,
            up: matrix("up", [n_embd, hidden])?,
            is_joined: false,
            down: matrix("down", [hidden, n_embd])?,
            factors: None,
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            ..self.spec.clone()
        };
        Ok(Self { adjugates: Some(adjugates), ..self })
    }

    /// Selects experts by token id, from `TENSOR [top_k, vocabulary]`.
    pub fn with_experts_by_token(
        self,
        w: &mut Weights<'_>,
        tensor: &str,
        n_vocab: usize,
    ) -> Result<Self, ModelError> {
        let MoeSpec { experts, top_k, .. } = self.spec;
        let experts_by_token = Some(w.indices(tensor, &[top_k, n_vocab], experts)?);
        Ok(Self { spec: MoeSpec { experts_by_token, selection_bias: None, ..self.spec }, ..self })
    }

    /// Output of the experts for `x` with a separate input of the router.
    pub fn forward_routed(&self, g: &mut Graph, x: ValueId, router_input: ValueId) -> ValueId {
        let logits = g.linear("ffn_moe_logits", &self.router, router_input);
        let Some(LatentProjection { down, norm, up }) = &self.latent else {
            let y = g.moe("ffn_moe_out", self.spec.clone(), x, logits);
            let Some(adjugates) = &self.adjugates else { return y };
            let y_adjugates = g.moe("ffn_adj_moe_out", adjugates.clone(), x, logits);
            return g.add("ffn_final_moe_out", y, y_adjugates);
        };
        let x = g.linear("ffn_latent_down", down, x);
        let y = g.moe("ffn_moe_out", self.spec.clone(), x, logits);
        let y = norm.as_ref().map_or(y, |norm| g.rms_norm("ffn_latent_norm", norm, y));
        g.linear("ffn_latent_up", up, y)
    }
}

/// `exp_probs_b`, which some files store as a tensor and others as a bias.
fn selection_bias(
    w: &mut Weights<'_>,
    block: &str,
    experts: usize,
) -> Result<Option<WeightId>, ModelError> {
    let name = format!("{block}.exp_probs_b");
    let name = if w.has(&name) { name } else { name + ".bias" };
    w.opt(&name, &[experts])
}

/// Gate and up matrices of all experts, and whether they are one fused tensor. Without a gate, the
/// up matrices twice.
fn halves(
    w: &mut Weights<'_>,
    name: &impl Fn(&str, &str) -> String,
    shape: [usize; 3],
    glu: Glu,
) -> Result<([WeightId; 2], bool), ModelError> {
    let [both, gate, up] = ["gate_up", "gate", "up"].map(|part| name(part, "weight"));
    if !glu.has_gate() {
        return Ok(([w.tensor(&up, &shape)?; 2], false));
    }
    if let Some(halves) = w.halves(&both, shape)? {
        return Ok((halves, false));
    }
    if let Some(both) = w.opt(&both, &[shape[0], 2 * shape[1], shape[2]])? {
        return Ok(([both; 2], true));
    }
    Ok(([w.tensor(&gate, &shape)?, w.tensor(&up, &shape)?], false))
}

/// Shared expert, or a dense network beside the experts.
#[derive(Debug, Clone)]
pub struct SharedExpert {
    mlp: Mlp,
    /// Projection to one column; its sigmoid is the expert's weight.
    weight: Option<Linear>,
}

impl SharedExpert {
    /// Loads `ffn_{gate,up,down}_shexp`, and `ffn_gate_inp_shexp` if the file has it. The key of
    /// the width means one shared expert in some files and all together in others, so the tensor's
    /// width takes precedence; `hidden` is the default.
    pub fn load(
        w: &mut Weights<'_>,
        block: &str,
        n_embd: usize,
        hidden: usize,
        glu: Glu,
    ) -> Result<Self, ModelError> {
        let hidden = w.rows(&format!("{block}.ffn_up_shexp.weight")).unwrap_or(hidden);
        let mlp = Mlp::named(w, block, "_shexp", (n_embd, hidden), glu)?;
        Ok(Self { mlp, weight: w.opt_linear(&format!("{block}.ffn_gate_inp_shexp"), n_embd, 1)? })
    }

    /// Network with weight 1.
    pub fn ungated(mlp: Mlp) -> Self {
        Self { mlp, weight: None }
    }

    /// Output of the expert for `x`.
    pub fn forward(&self, g: &mut Graph, x: ValueId) -> ValueId {
        let y = self.mlp.forward(g, x);
        let Some(weight) = &self.weight else { return y };
        let weight = g.linear("shared_expert_gate", weight, x);
        let weight = g.activate("shared_expert_gate_sigmoid", Activation::Sigmoid, weight);
        g.mul("ffn_shexp_gated", y, weight)
    }
}
