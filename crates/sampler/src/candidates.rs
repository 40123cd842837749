//! Candidate tokens of one step with their logits, in a defined order.
//!
//! The order decides the draw and which of several equal maxima wins. It is the order of token ids
//! until a sampler sorts. All sorts here are stable, so equal logits stay in id order. Sorting uses
//! packed 64-bit keys (value, position): it is fast, stable without allocation, and can stop early
//! when a sampler keeps few candidates.

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Logit after the samplers that have run.
    pub logit: f32,
    /// Probability. Valid after a softmax or a draw.
    pub p: f32,
}

/// List of candidates with buffers that are reused between steps.
#[derive(Clone, Default)]
pub(crate) struct Candidates {
    list: Vec<Candidate>,
    sorted: bool,
    keys: Vec<u64>,
    spare: Vec<Candidate>,
}

/// Number of candidates that a partial sort puts in order first.
const FIRST_WINDOW: usize = 256;
/// Number of logits that a scan compares at once.
const CHUNK: usize = 64;
const LANES: usize = 16;

impl Candidates {
    /// Fills the list with all tokens in id order. NaN logits become −∞.
    pub(crate) fn fill(&mut self, logits: &[f32]) {
        self.list.clear();
        self.list.extend(logits.iter().enumerate().map(|(id, &l)| candidate(id, l)));
        self.sorted = false;
    }

    /// Fills the list with the `k` largest logits, sorted. Equals `fill`, a stable descending sort,
    /// and a cut at `k`.
    pub(crate) fn fill_top(&mut self, logits: &[f32], k: usize) {
        top_candidates(logits, k, &mut self.list);
        self.sorted = true;
    }

    /// Fills the list with the tokens that have a logit of at least `floor`, in id order.
    pub(crate) fn fill_above(&mut self, logits: &[f32], floor: f32) {
        self.list.clear();
        for (i, chunk) in logits.chunks(CHUNK).enumerate() {
            if chunk_max(chunk) >= floor {
                let within = chunk.iter().enumerate().filter(|(_, l)| **l >= floor);
                self.list.extend(within.map(|(j, &l)| candidate(i * CHUNK + j, l)));
            }
        }
        self.sorted = false;
    }

    /// Fills the list with one candidate of probability 1.
    pub(crate) fn fill_one(&mut self, id: u32, logit: f32) {
        self.list.clear();
        self.list.push(Candidate { id, logit, p: 1.0 });
        self.sorted = true;
    }

    #[cfg(test)]
    pub(crate) fn set(&mut self, list: Vec<Candidate>, sorted: bool) {
        (self.list, self.sorted) = (list, sorted);
    }

    pub(crate) fn list(&self) -> &[Candidate] {
        &self.list
    }

    /// Mutable list for changes that may break a sorted order. See
    /// [`Self::list_mut_keeping_order`].
    pub(crate) fn list_mut(&mut self) -> &mut [Candidate] {
        self.sorted = false;
        &mut self.list
    }

    /// Mutable list for changes that preserve a sorted order.
    pub(crate) fn list_mut_keeping_order(&mut self) -> &mut [Candidate] {
        &mut self.list
    }

    pub(crate) fn is_sorted(&self) -> bool {
        self.sorted
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Largest logit, or −∞ if the list is empty.
    pub(crate) fn max(&self) -> f32 {
        match self.list.first() {
            Some(first) if self.sorted => first.logit,
            _ => self
                .list
                .iter()
                .fold(f32::NEG_INFINITY, |max, c| if c.logit > max { c.logit } else { max }),
        }
    }

    /// Computes the probabilities of all candidates from their logits.
    pub(crate) fn softmax(&mut self) {
        let max = self.max();
        let mut sum = 0.0_f64;
        for c in &mut self.list {
            c.p = weight(c.logit, max);
            sum += f64::from(c.p);
        }
        for c in &mut self.list {
            c.p = (f64::from(c.p) / sum) as f32;
        }
    }

    /// Sorts by descending logit.
    pub(crate) fn sort(&mut self) {
        self.keep_descending(|_, _| true);
    }

    /// Visits candidates by descending logit and keeps them, sorted, until `keep(rank, candidate)`
    /// returns `false`.
    pub(crate) fn keep_descending(&mut self, mut keep: impl FnMut(usize, &Candidate) -> bool) {
        if self.sorted {
            let end = self.list.iter().enumerate().position(|(rank, c)| !keep(rank, c));
            self.list.truncate(end.unwrap_or(self.list.len()));
        } else {
            self.keep_ascending_by(|c| !ascending_bits(c.logit), keep);
            self.sorted = true;
        }
    }

    /// Visits candidates by ascending `key`, equal keys in list order, and keeps them in this order
    /// until `keep(rank, candidate)` returns `false`. Marks the list as unsorted.
    pub(crate) fn keep_ascending_by(
        &mut self,
        key: impl Fn(&Candidate) -> u32,
        mut keep: impl FnMut(usize, &Candidate) -> bool,
    ) {
        let Self { list, sorted, keys, spare } = self;
        keys.clear();
        keys.extend(list.iter().enumerate().map(|(at, c)| u64::from(key(c)) << 32 | at as u64));
        spare.clear();
        *sorted = false;

        // Sorts window by window, since most samplers stop within the first.
        let (mut start, mut window) = (0, FIRST_WINDOW);
        while start < keys.len() {
            let rest = &mut keys[start..];
            let n = window.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable(n - 1);
            }
            rest[..n].sort_unstable();
            for key in &rest[..n] {
                let c = list[(key & 0xffff_ffff) as usize];
                if !keep(spare.len(), &c) {
                    std::mem::swap(list, spare);
                    return;
                }
                spare.push(c);
            }
            start += n;
            window = window.saturating_mul(8);
        }
        std::mem::swap(list, spare);
    }

    /// Keeps the candidates for which `keep` returns `true`, in their order.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Candidate) -> bool) {
        self.list.retain(keep);
    }

    /// Removes the first `n` candidates.
    pub(crate) fn drop_first(&mut self, n: usize) {
        self.list.drain(..n);
    }

    /// First position with the largest logit.
    pub(crate) fn argmax(&self) -> Option<usize> {
        let max = self.max();
        self.list.iter().position(|c| c.logit == max)
    }
}

/// `e^(logit − max)`; 1 if both are infinite.
pub(crate) fn weight(logit: f32, max: f32) -> f32 {
    if logit == max { 1.0 } else { (logit - max).exp() }
}

/// Largest logit and the lowest id that has it. `None` if no logit is above −∞.
pub(crate) fn argmax(logits: &[f32]) -> Option<(usize, f32)> {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, chunk) in logits.chunks(CHUNK).enumerate() {
        let max = chunk_max(chunk);
        if max > best.1 {
            best = (i, max);
        }
    }
    let (chunk, max) = best;
    let start = chunk * CHUNK;
    let at = logits.get(start..)?.iter().position(|&l| l == max)?;
    (max > f32::NEG_INFINITY).then_some((start + at, max))
}

/// Fills `best` with the `k` largest logits, descending, with ties by ascending id.
pub(crate) fn top_candidates(logits: &[f32], k: usize, best: &mut Vec<Candidate>) {
    best.clear();
    if k == 0 {
        return;
    }
    // Collects up to twice `k` candidates, then drops the lower half and raises the bar. After a
    // few chunks nearly all logits are below the bar, and a chunk costs one comparison of its
    // maximum.
    let room = k.saturating_mul(2).max(CHUNK).min(logits.len());
    let (head, tail) = logits.split_at(room);
    best.extend(head.iter().enumerate().map(|(id, &l)| candidate(id, l)));
    let mut bar = shrink(best, k);
    for (i, chunk) in tail.chunks(CHUNK).enumerate() {
        if chunk_max(chunk) <= bar {
            continue;
        }
        for (j, &l) in chunk.iter().enumerate() {
            if l > bar {
                best.push(candidate(room + i * CHUNK + j, l));
                if best.len() > room {
                    bar = shrink(best, k);
                }
            }
        }
    }
    shrink(best, k);
    best.sort_unstable_by(by_rank);
}

/// Keeps the best `k` candidates. Returns the bar: only later candidates above it can be better.
fn shrink(best: &mut Vec<Candidate>, k: usize) -> f32 {
    if best.len() < k {
        return f32::NEG_INFINITY;
    }
    let (_, last, _) = best.select_nth_unstable_by(k - 1, by_rank);
    let bar = last.logit;
    best.truncate(k);
    bar
}

fn by_rank(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    ascending_bits(b.logit).cmp(&ascending_bits(a.logit)).then(a.id.cmp(&b.id))
}

fn candidate(id: usize, logit: f32) -> Candidate {
    let logit = if logit.is_nan() { f32::NEG_INFINITY } else { logit };
    Candidate { id: id as u32, logit, p: 0.0 }
}

/// Maximum of a chunk, ignoring NaN. The loop compiles to vector instructions.
fn chunk_max(chunk: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let blocks = chunk.chunks_exact(LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for (lane, &l) in lanes.iter_mut().zip(block) {
            *lane = if l > *lane { l } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &l| if l > max { l } else { max })
}

/// Bits that sort like the number. Both zeros map to the same bits.
fn ascending_bits(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Logits with few distinct values, so that ties are common.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            8 => (-20i32..20).prop_map(|v| v as f32 / 4.0),
            1 => Just(f32::NEG_INFINITY),
            1 => Just(-0.0_f32),
        ];
        prop::collection::vec(value, 1..1500)
    }

    fn stable_descending(logits: &[f32]) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| {
            logits[b as usize].partial_cmp(&logits[a as usize]).expect("no NaN here")
        });
        ids
    }

    fn ids(list: &[Candidate]) -> Vec<u32> {
        list.iter().map(|c| c.id).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn selection_and_sort_agree_with_a_stable_descending_sort(logits in logits(), k in 1usize..300) {
            let want = stable_descending(&logits);
            let mut c = Candidates::default();
            c.fill_top(&logits, k);
            prop_assert_eq!(ids(c.list()), &want[..k.min(want.len())]);
            c.fill(&logits);
            c.sort();
            prop_assert_eq!(ids(c.list()), want.clone());
            c.fill(&logits);
            c.keep_descending(|rank, _| rank < k);
            prop_assert_eq!(ids(c.list()), &want[..k.min(want.len())]);
        }

        #[test]
        fn argmax_is_the_lowest_id_among_equal_maxima(logits in logits()) {
            let first = stable_descending(&logits)[0] as usize;
            let want = (logits[first] > f32::NEG_INFINITY).then_some((first, logits[first]));
            prop_assert_eq!(argmax(&logits), want);
        }
    }

    #[test]
    fn nan_logits_are_never_chosen() {
        let logits = [f32::NAN, 1.0, f32::NAN, 3.0, f32::NAN];
        assert_eq!(argmax(&logits), Some((3, 3.0)));
        let mut c = Candidates::default();
        c.fill_top(&logits, 3);
        assert_eq!(ids(c.list()), [3, 1, 0]);
        assert_eq!(c.list()[2].logit, f32::NEG_INFINITY);
        assert_eq!(argmax(&[f32::NAN; 100]), None);
        assert_eq!(argmax(&[]), None);
    }
}
