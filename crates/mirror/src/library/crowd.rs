//! How many uploads may be open, so that nobody keeps others from pushing: so many of one who pushes, and so many of all.
//!
//! Beginning an upload costs nothing, so one that has no bytes is worth nothing: where one more has no room, the one left alone
//! longest goes, of whoever has most. Bytes that have come stay as long as there is such a one. Then those go that nobody has been at for
//! a while: of somebody who has too many by himself his own, and of all together those of whoever has most, but none of one who has
//! fewer than the one who begins.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use crate::error::MirrorError;
use crate::id::UploadId;

/// Uploads at a time.
pub(crate) const MAX_UPLOADS: usize = if cfg!(test) { 24 } else { 512 };
/// Those of one who pushes.
pub(crate) const MAX_EACH: usize = if cfg!(test) { 16 } else { 64 };
/// How long an upload is kept after its last byte.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long one is kept to which no byte has come.
pub(crate) const EMPTY_AGE: Duration = Duration::from_secs(10 * 60);
/// How long one that was just begun waits for its first byte before its owner's others take its place.
const SETTLE: Duration = Duration::from_secs(10);
/// How long nobody has been at one with bytes that goes for somebody else's.
const REST: Duration = Duration::from_secs(60);
/// The same for another one of its owner's: who goes on with what broke off keeps it, and who does not begins anew.
const OWN_REST: Duration = Duration::from_secs(10 * 60);
/// How long one may be without a sign that bytes come to it, where others learn that from a note alone: none goes as soon as that.
pub(crate) const SIGN: Duration =
    Duration::from_millis(if cfg!(test) { 50 } else { REST.as_millis() as u64 / 2 });
/// The same before its first.
pub(crate) const FIRST_SIGN: Duration =
    Duration::from_millis(if cfg!(test) { 20 } else { SETTLE.as_millis() as u64 / 2 });

/// An upload that is open.
pub(crate) struct Open {
    pub(crate) id: UploadId,
    /// Whose it is.
    pub(crate) owner: String,
    /// How long ago somebody was at it.
    pub(crate) age: Duration,
    /// Whether bytes have come to it, as far as is known: some may have come since.
    pub(crate) has_bytes: bool,
}

/// Those of which one must go before another one begins.
pub(crate) struct Crowd {
    /// Of whoever has most first, and of those the one left alone longest.
    of: Vec<Open>,
    /// How many each of their owners has.
    counts: HashMap<String, usize>,
    /// How many the one has who begins.
    own: usize,
    /// Whether those are too many.
    is_own: bool,
}

impl Crowd {
    /// Those without bytes that may go, or those with some, in the order in which they do; and how long each must have been left
    /// alone, which is to be looked at once more when it goes.
    pub(crate) fn going(&self, is_empty: bool) -> impl Iterator<Item = (&Open, Duration)> {
        let of = self.of.iter().filter(move |one| !(is_empty && one.has_bytes));
        let of = of.filter_map(move |one| Some((one, self.rest(one, is_empty)?)));
        of.filter(|(one, rest)| one.age >= *rest)
    }

    /// How long one must have been left alone that goes; `None`: it stays.
    fn rest(&self, one: &Open, is_empty: bool) -> Option<Duration> {
        let count = self.counts.get(&one.owner).copied().unwrap_or(0);
        match is_empty {
            // Whoever has most does not keep others out by haste.
            true if count > self.own + 1 => Some(Duration::ZERO),
            true => Some(SETTLE),
            false if self.is_own => Some(OWN_REST),
            false => (count >= self.own).then_some(REST),
        }
    }

    /// None may.
    pub(crate) fn refusal(&self) -> MirrorError {
        MirrorError::TooMany(match self.is_own {
            true => {
                format!(
                    "you have {MAX_EACH} open uploads already: finish or cancel some, or come back later"
                )
            }
            false => format!("{MAX_UPLOADS} uploads are open already: come back later"),
        })
    }
}

/// Those of which one must go before somebody begins one more; `None`: there is room. What this mirror does by itself has no name, and
/// as many as there may be.
pub(crate) fn crowd(mut open: Vec<Open>, owner: &str) -> Option<Crowd> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    open.iter().for_each(|one| *counts.entry(one.owner.clone()).or_default() += 1);
    let own = counts.get(owner).copied().unwrap_or(0);
    let is_own = !owner.is_empty() && own >= MAX_EACH;
    match is_own {
        true => open.retain(|one| one.owner == owner),
        false if open.len() < MAX_UPLOADS => return None,
        false => {}
    }
    open.sort_by_cached_key(|one| Reverse((counts.get(&one.owner).copied(), one.age)));
    Some(Crowd { of: open, counts, own, is_own })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uploads of somebody, the first of which was left alone for the longest.
    fn of(owner: &str, count: usize, seconds: u64, has_bytes: bool) -> Vec<Open> {
        let one = |n: usize| Open {
            id: UploadId::random().unwrap(),
            owner: owner.to_owned(),
            age: Duration::from_secs(seconds + (count - n) as u64),
            has_bytes,
        };
        (0..count).map(one).collect()
    }

    /// Whose goes first, and how many may.
    fn going(crowd: &Crowd, is_empty: bool) -> (Option<(&str, u64)>, usize) {
        let first = crowd.going(is_empty).next();
        (first.map(|(one, _)| (&*one.owner, one.age.as_secs())), crowd.going(is_empty).count())
    }

    #[test]
    fn one_who_has_too_many_makes_room_for_himself_alone() {
        let all = |has_bytes| {
            let all = [of("a", MAX_EACH, 10, has_bytes), of("b", 1, 100, false)];
            all.into_iter().flatten().collect::<Vec<_>>()
        };
        for other in ["b", "c", ""] {
            assert!(crowd(all(false), other).is_none(), "{other}");
        }
        let own = crowd(all(false), "a").unwrap();
        assert_eq!(going(&own, true), (Some(("a", 10 + MAX_EACH as u64)), MAX_EACH));
        assert_eq!(going(&crowd(all(true), "a").unwrap(), false), (None, 0));
        let young = crowd(of("a", MAX_EACH, 0, false), "a").unwrap();
        assert!(young.going(true).all(|(one, _)| one.age >= SETTLE), "it waits for its first byte");
        assert!(young.refusal().to_string().starts_with("you have"));
    }

    #[test]
    fn nobody_is_shut_out_by_what_broke_off_of_his() {
        let broken = crowd(of("a", MAX_EACH, 10 * 60 - 2, true), "a").unwrap();
        assert_eq!(going(&broken, true), (None, 0));
        let oldest = 10 * 60 - 2 + MAX_EACH as u64;
        assert_eq!(going(&broken, false), (Some(("a", oldest)), MAX_EACH - 1), "after a rest");
    }

    #[test]
    fn where_all_have_too_many_the_one_with_most_makes_room() {
        let all = |has_bytes| {
            let all =
                [of("a", MAX_EACH, 0, has_bytes), of("b", MAX_UPLOADS - MAX_EACH, 1000, has_bytes)];
            all.into_iter().flatten().collect()
        };
        let empty = crowd(all(false), "c").unwrap();
        assert_eq!(going(&empty, true), (Some(("a", MAX_EACH as u64)), MAX_UPLOADS));
        assert!(empty.of[..MAX_EACH].iter().all(|one| one.owner == "a"));
        let last = empty.of[MAX_EACH - 1].age;
        assert!(last < SETTLE, "whoever has most does not keep others out by haste: {last:?}");
        // Whoever has most is at his: another one is not.
        let busy = crowd(all(true), "c").unwrap();
        let oldest = 1000 + (MAX_UPLOADS - MAX_EACH) as u64;
        assert_eq!(going(&busy, false), (Some(("b", oldest)), MAX_UPLOADS - MAX_EACH));
    }

    #[test]
    fn nobodys_bytes_go_for_one_who_has_more() {
        let all = [of("a", MAX_EACH - 1, 0, true), of("b", MAX_UPLOADS - MAX_EACH + 1, 1000, true)];
        let crowd = crowd(all.into_iter().flatten().collect(), "a").unwrap();
        assert_eq!(going(&crowd, false), (None, 0));
        assert!(crowd.refusal().to_string().starts_with(&MAX_UPLOADS.to_string()));
    }
}
