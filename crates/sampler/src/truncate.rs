//! Samplers that drop candidates: top-n-σ, top-k, typical, top-p, min-p, XTC.

use crate::candidates::Candidates;
use crate::rng::Mt19937;

/// Sets logits more than `n` standard deviations below the largest to −∞. The candidates stay in
/// the list.
pub(crate) fn top_n_sigma(cands: &mut Candidates, n: f32) {
    let floor = sigma_floor(n, cands.list().iter().map(|c| c.logit));
    let hidden = cands.list_mut_keeping_order().iter_mut().filter(|c| c.logit < floor);
    hidden.for_each(|c| c.logit = f32::NEG_INFINITY);
}

/// `max − n · σ`, with the population standard deviation of the finite logits.
pub(crate) fn sigma_floor(n: f32, logits: impl Iterator<Item = f32> + Clone) -> f32 {
    let finite = logits.filter(|l| l.is_finite());
    let (mut count, mut sum, mut max) = (0_u32, 0.0_f64, f32::NEG_INFINITY);
    for l in finite.clone() {
        count += 1;
        sum += f64::from(l);
        max = max.max(l);
    }
    let mean = sum / f64::from(count);
    let squares: f64 = finite.map(|l| (f64::from(l) - mean).powi(2)).sum();
    max - n * (squares / f64::from(count)).sqrt() as f32
}

/// Keeps the `k` largest logits, sorted.
pub(crate) fn top_k(cands: &mut Candidates, k: usize) {
    cands.keep_descending(|rank, _| rank < k);
}

/// Keeps the shortest descending prefix with probabilities that sum to at least `p`.
pub(crate) fn top_p(cands: &mut Candidates, p: f32, min_keep: usize) {
    cands.softmax();
    let mut sum = 0.0_f32;
    cands.keep_descending(|rank, c| {
        let more = rank == 0 || rank < min_keep || sum < p;
        sum += c.p;
        more
    });
}

/// Keeps logits of at least `max + ln p`, in their order.
pub(crate) fn min_p(cands: &mut Candidates, p: f32, min_keep: usize) {
    let floor = cands.max() + p.ln();
    if !cands.is_sorted() {
        let within = cands.list().iter().filter(|c| c.logit >= floor).count();
        if within > 0 && within >= min_keep {
            cands.retain(|c| c.logit >= floor);
            return;
        }
    }
    cands.keep_descending(|rank, c| rank == 0 || rank < min_keep || c.logit >= floor);
}

/// Locally typical sampling: keeps the candidates with the surprise nearest to the entropy until
/// their probabilities sum to more than `p`. Orders them by this distance. Impossible candidates
/// come last.
pub(crate) fn typical(cands: &mut Candidates, p: f32, min_keep: usize) {
    cands.softmax();
    let entropy: f64 =
        cands.list().iter().filter(|c| c.p > 0.0).map(|c| f64::from(-c.p * c.p.ln())).sum();
    let entropy = entropy as f32;
    // Distances are not negative, so their bits sort like the numbers.
    let distance = |p: f32| if p > 0.0 { (-p.ln() - entropy).abs() } else { f32::INFINITY };
    let mut sum = 0.0_f32;
    cands.keep_ascending_by(
        |c| distance(c.p).to_bits(),
        |rank, c| {
            let more = rank == 0 || rank < min_keep || sum <= p;
            sum += c.p;
            more
        },
    );
}

/// XTC ("exclude top choices"): with a given probability, drops all tokens above the threshold
/// except the least likely of them.
#[derive(Clone)]
pub(crate) struct Xtc {
    pub(crate) probability: f32,
    pub(crate) threshold: f32,
    pub(crate) min_keep: usize,
    pub(crate) rng: Mt19937,
}

impl Xtc {
    pub(crate) fn apply(&mut self, cands: &mut Candidates) {
        let active = self.probability > 0.0 && self.threshold <= 0.5 && cands.len() >= 2;
        if !active || self.rng.next_f32() > self.probability {
            return;
        }
        cands.softmax();
        cands.sort();
        let top = cands.list().iter().take_while(|c| c.p >= self.threshold).count();
        let drop = top.saturating_sub(1);
        if drop > 0 && cands.len() - drop >= self.min_keep {
            cands.drop_first(drop);
        }
    }
}
