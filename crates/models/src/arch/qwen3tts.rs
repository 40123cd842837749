//! Qwen3-TTS: a Qwen3 that writes audio codes, which are the last entries of its vocabulary. Only
//! they have rows in the output matrix.
//! GGUF: `general.architecture = "qwen3tts"`.

use puna_graph::*;

use super::qwen3;
use crate::architecture::{Architecture, LoadOptions, LoadedArchitecture};
use crate::decoder::{Decoder, NormKind};
use crate::error::ModelError;
use crate::hparams::{Hparams, Keys};
use crate::weights::Weights;

struct Qwen3Tts {
    decoder: Decoder,
    /// Constant logits of all other tokens, which exclude them, and their number.
    no_code: (WeightId, usize),
}

pub(super) fn load(
    keys: &Keys<'_>,
    w: &mut Weights<'_>,
    _: LoadOptions,
) -> Result<LoadedArchitecture, ModelError> {
    let hp = Hparams::read(keys)?;
    let norm = NormKind::Rms(keys.rms_eps()?);
    let layers = qwen3::layers(keys, w, (&hp, norm), |b| b.gated(Glu::Silu))?;
    let codes = w.rows("output.weight").filter(|&rows| rows < hp.n_vocab);
    let Some(codes) = codes else {
        return Ok(Decoder::new(w, &hp, norm, layers)?.into_architecture(&hp));
    };
    let others = hp.n_vocab - codes;
    let no_code = w.constant(
        "logits of tokens other than codes",
        &[others],
        &vec![f32::NEG_INFINITY; others],
    );
    let last = norm.load(w, "output_norm", &[hp.n_embd])?;
    let head = w.linear("output", hp.n_embd, codes)?;
    let decoder = Decoder::with_head(w, &hp, (last, head), layers)?;
    let no_code = (no_code, others);
    Ok(decoder.into_architecture_as(&hp, |decoder| Box::new(Qwen3Tts { decoder, no_code })))
}

impl Architecture for Qwen3Tts {
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId {
        self.decoder.hidden(g, outputs_only)
    }

    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId {
        let codes = self.decoder.logits(g, hidden);
        let (table, count) = self.no_code;
        let others = g.embed("no_code", table, count, Index::Fixed(0));
        let others =
            if g.value(codes).rows == Rows::Outputs { g.gather_outputs(others) } else { others };
        g.concat("result_output", others, codes)
    }
}
