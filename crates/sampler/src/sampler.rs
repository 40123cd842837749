//! The sampler of one sequence.

use std::sync::Arc;

use crate::candidates::Candidate;
use crate::chain::{Chain, ChainStage};
use crate::draw::{AdaptiveP, Mirostat, MirostatVersion};
use crate::dry::{Dry, SequenceBreakers};
use crate::infill::Infill;
use crate::params::{Params, SamplerKind};
use crate::penalties::{LogitBias, Penalties};
use crate::rng::{Mt19937, random_seed};
use crate::temperature::Temperature;
use crate::truncate::Xtc;
use crate::vocab::Vocab;

/// Number of tokens from which Mirostat 1 estimates its exponent.
const MIROSTAT_M: usize = 100;

/// Draws the tokens of one sequence: a sampler chain with its state (history, random numbers). Each
/// request makes a new one, so that the same seed gives the same draws. A step allocates nothing
/// once the buffers have grown.
#[derive(Clone)]
pub struct Sampler {
    chain: Chain,
    seed: u32,
}

impl Sampler {
    /// Makes a chain for a vocabulary of `n_vocab` tokens. Options that need the text of tokens
    /// have no effect: DRY has no sequence breakers, `ignore_eos` and infill are off. See
    /// [`Self::with_vocab`].
    pub fn new(params: &Params, n_vocab: usize) -> Self {
        Self::build(params, n_vocab, None)
    }

    /// Like [`Self::new`], but supports all options.
    pub fn with_vocab(params: &Params, n_vocab: usize, vocab: &Arc<dyn Vocab>) -> Self {
        Self::build(params, n_vocab, Some(vocab))
    }

    fn build(params: &Params, n_vocab: usize, vocab: Option<&Arc<dyn Vocab>>) -> Self {
        let seed = params.fixed_seed().unwrap_or_else(random_seed);
        let stages = ChainBuilder { params, n_vocab, vocab, seed }.stages();
        Self { chain: Chain::new(stages), seed }
    }

    /// The seed in use: that of the request, or the random one of this sequence.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Records a token of the sequence: each token of the prompt, including cached ones, and each
    /// drawn token.
    pub fn accept(&mut self, token: u32) {
        self.chain.accept(token);
    }

    /// Draws a token. `logits[id]` belongs to token `id`. Changes the logits, so call
    /// [`crate::log_probs`] before. Returns 0 if no token is possible; [`Self::try_sample`] reports
    /// this case.
    pub fn sample(&mut self, logits: &mut [f32]) -> u32 {
        self.try_sample(logits).unwrap_or(0)
    }

    /// Like [`Self::sample`]. `None` if every logit is −∞ or NaN, as from a broken model or an
    /// empty token mask.
    pub fn try_sample(&mut self, logits: &mut [f32]) -> Option<u32> {
        let chosen = self.chain.run(logits)?;
        self.chain.cands.list().get(chosen).map(|c| c.id)
    }

    /// Candidates of the last draw, with probabilities after the whole chain, in unspecified order.
    pub fn candidates(&self) -> &[Candidate] {
        self.chain.cands.list()
    }
}

/// Makes the stages of a chain from options. Leaves out stages without effect.
struct ChainBuilder<'a> {
    params: &'a Params,
    n_vocab: usize,
    vocab: Option<&'a Arc<dyn Vocab>>,
    seed: u32,
}

impl ChainBuilder<'_> {
    fn stages(&self) -> Vec<ChainStage> {
        let Params { mirostat, ref samplers, mirostat_tau, mirostat_eta, .. } = *self.params;
        let version = match mirostat {
            1 => Some(MirostatVersion::One { n_vocab: self.n_vocab, m: MIROSTAT_M }),
            2 => Some(MirostatVersion::Two),
            _ => None,
        };
        let mut stages: Vec<ChainStage> = self.bias().into_iter().collect();
        if let Some(version) = version {
            // Uses a fixed temperature, since Mirostat itself follows the entropy.
            let fixed = Params { dynatemp_range: 0.0, ..self.params.clone() };
            stages.extend(ChainBuilder { params: &fixed, ..*self }.stage(SamplerKind::Temperature));
            stages.push(ChainStage::Mirostat(Mirostat::new(
                version,
                mirostat_tau,
                mirostat_eta,
                self.seed,
            )));
            return stages;
        }
        stages.extend(samplers.iter().filter_map(|&kind| self.stage(kind)));
        stages.push(match samplers.contains(&SamplerKind::AdaptiveP) {
            true => {
                let Params { adaptive_target, adaptive_decay, .. } = *self.params;
                ChainStage::AdaptiveP(AdaptiveP::new(adaptive_target, adaptive_decay, self.seed))
            }
            false => ChainStage::Dist(Mt19937::new(self.seed)),
        });
        stages
    }

    fn bias(&self) -> Option<ChainStage> {
        let mut bias = self.params.logit_bias.clone();
        if let (true, Some(vocab)) = (self.params.ignore_eos, self.vocab) {
            let ends = (0..vocab.n_tokens() as u32).filter(|&id| vocab.is_end(id));
            bias.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        (!bias.is_empty()).then(|| ChainStage::LogitBias(LogitBias::new(bias)))
    }

    /// Stage of one sampler. `None` if it is off, and for adaptive-p, which always comes last.
    fn stage(&self, kind: SamplerKind) -> Option<ChainStage> {
        let p = self.params;
        let min_keep = usize::try_from(p.min_keep).unwrap_or(0);
        match kind {
            SamplerKind::Penalties => Penalties::new(
                p.repeat_last_n,
                p.repeat_penalty,
                p.frequency_penalty,
                p.presence_penalty,
            )
            .map(ChainStage::Penalties),
            SamplerKind::Dry => self.dry(),
            SamplerKind::TopNSigma => {
                (p.top_n_sigma > 0.0).then_some(ChainStage::TopNSigma(p.top_n_sigma))
            }
            SamplerKind::TopK => {
                usize::try_from(p.top_k).ok().filter(|&k| k > 0).map(ChainStage::TopK)
            }
            SamplerKind::Typical => {
                (p.typical_p < 1.0).then_some(ChainStage::Typical { p: p.typical_p, min_keep })
            }
            SamplerKind::TopP => {
                (p.top_p < 1.0).then_some(ChainStage::TopP { p: p.top_p, min_keep })
            }
            SamplerKind::MinP => {
                (p.min_p > 0.0).then_some(ChainStage::MinP { p: p.min_p, min_keep })
            }
            SamplerKind::Xtc => {
                let Params { xtc_probability: probability, xtc_threshold: threshold, .. } = *p;
                let on = probability > 0.0 && threshold <= 0.5;
                on.then(|| {
                    ChainStage::Xtc(Xtc {
                        probability,
                        threshold,
                        min_keep,
                        rng: Mt19937::new(self.seed),
                    })
                })
            }
            SamplerKind::Temperature => {
                let t = Temperature {
                    value: p.temperature,
                    range: p.dynatemp_range,
                    exponent: p.dynatemp_exponent,
                };
                (t.is_dynamic() || t.value != 1.0).then_some(ChainStage::Temperature(t))
            }
            SamplerKind::Infill => {
                self.vocab.map(|vocab| ChainStage::Infill(Infill { vocab: Arc::clone(vocab) }))
            }
            SamplerKind::AdaptiveP => None,
        }
    }

    fn dry(&self) -> Option<ChainStage> {
        let p = self.params;
        let make = |breakers| {
            Dry::new(
                p.dry_multiplier,
                p.dry_base,
                p.dry_allowed_length,
                p.dry_penalty_last_n,
                breakers,
            )
        };
        // Expanding the breakers scans the whole vocabulary, so it is done only if the sampler is
        // on.
        make(SequenceBreakers::default())?;
        let breakers = self
            .vocab
            .map(|vocab| SequenceBreakers::from_strings(&p.dry_sequence_breakers, &**vocab));
        make(breakers.unwrap_or_default()).map(ChainStage::Dry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [2.0, 1.0, 0.5, -1.0, 3.0, 0.0];

    fn draws(params: &Params, n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(params, LOGITS.len());
        let mut draw = || {
            let token = sampler.sample(&mut LOGITS.clone());
            sampler.accept(token);
            token
        };
        (0..n).map(|_| draw()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_and_minus_one_does_not() {
        let seeded = Params { seed: 7, temperature: 2.0, ..Params::default() };
        assert_eq!(draws(&seeded, 64), draws(&seeded, 64));
        let random = Params { seed: -1, ..seeded };
        assert_ne!(draws(&random, 64), draws(&random, 64), "1 in 10^30 by chance");
        assert_ne!(Sampler::new(&random, 6).seed(), Sampler::new(&random, 6).seed());
    }

    #[test]
    fn temperature_zero_and_top_k_one_take_the_lowest_id_among_equal_maxima() {
        for params in [
            Params { temperature: 0.0, ..Params::default() },
            Params { temperature: 0.0, mirostat: 2, ..Params::default() },
            Params { top_k: 1, ..Params::default() },
        ] {
            let mut sampler = Sampler::new(&params, 300);
            let mut logits: Vec<f32> = (0..300).map(|i| (i % 50) as f32).collect();
            assert_eq!(sampler.sample(&mut logits), 49);
            assert_eq!(sampler.candidates(), [Candidate { id: 49, logit: 49.0, p: 1.0 }]);
        }
    }

    #[test]
    fn masked_tokens_are_never_chosen() {
        let masked = |allowed: [usize; 2]| {
            let mut logits = [f32::NEG_INFINITY; 6];
            allowed.into_iter().for_each(|id| logits[id] = LOGITS[id]);
            logits
        };
        let params = Params { temperature: 0.0, ..Params::default() };
        assert_eq!(Sampler::new(&params, 6).try_sample(&mut masked([1, 3])), Some(1));
        let mut sampler = Sampler::new(&Params { top_k: 2, seed: 3, ..Params::default() }, 6);
        for _ in 0..50 {
            assert!(matches!(sampler.try_sample(&mut masked([3, 5])), Some(3 | 5)));
        }
    }

    #[test]
    fn every_chain_reports_that_no_token_is_possible() {
        let mirostat = |mirostat| Params { mirostat, ..Params::default() };
        let chains = [
            Params::default(),
            Params { temperature: 0.0, ..Params::default() },
            Params { top_k: 0, min_p: 0.1, ..Params::default() },
            Params { top_k: 0, typical_p: 0.5, top_n_sigma: 1.0, ..Params::default() },
            mirostat(1),
            mirostat(2),
        ];
        for params in chains {
            let mut sampler = Sampler::new(&params, 6);
            for mut nothing in [vec![f32::NAN; 6], vec![f32::NEG_INFINITY; 6], vec![]] {
                assert_eq!(sampler.try_sample(&mut nothing), None, "{params:?}");
                assert_eq!(sampler.sample(&mut nothing), 0);
            }
        }
    }

    #[test]
    fn infinite_and_tiny_numbers_never_panic_and_give_a_known_token() {
        let values = [
            f32::INFINITY,
            f32::MAX,
            f32::MIN,
            0.0,
            -0.0,
            f32::MIN_POSITIVE,
            f32::NAN,
            f32::NEG_INFINITY,
        ];
        let params = Params {
            seed: 1,
            temperature: 1e-40,
            typical_p: 0.9,
            top_n_sigma: 2.0,
            xtc_probability: 0.5,
            dynatemp_range: 1e-39,
            repeat_penalty: 1e30,
            dry_multiplier: 1e30,
            dry_allowed_length: 0,
            ..Params::default()
        };
        for params in [
            params.clone(),
            Params { mirostat: 1, ..params.clone() },
            Params { mirostat: 2, ..params },
        ] {
            let mut sampler = Sampler::new(&params, values.len());
            for _ in 0..200 {
                let token = sampler.sample(&mut values.clone());
                assert!((token as usize) < values.len());
                sampler.accept(token);
            }
        }
    }

    #[test]
    fn tokens_beyond_the_logits_are_ignored() {
        let params = Params {
            logit_bias: vec![(u32::MAX, 5.0), (2, 50.0)],
            repeat_penalty: 1.1,
            dry_multiplier: 1.0,
            ..Params::default()
        };
        let mut sampler = Sampler::new(&params, 6);
        [9, 9, 9, 9, u32::MAX].into_iter().for_each(|token| sampler.accept(token));
        assert_eq!(sampler.sample(&mut LOGITS.clone()), 2);
    }
}
