//! How many uploads may be open, so that nobody keeps others from pushing: so many of one who pushes, and so many of all.
//!
//! Beginning an upload costs nothing, so one that has no bytes is worth nothing: where one more has no room, the one left alone
//! longest goes, of whoever has most. Bytes that have come stay until their owner has too many by himself, when he is refused, or
//! all together have, when those go that nobody has been at for a while.

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

/// An upload that is open.
pub(crate) struct Open {
    pub(crate) id: UploadId,
    /// Whose it is.
    pub(crate) owner: String,
    /// How long ago somebody was at it.
    pub(crate) age: Duration,
}

/// Those of which one must go before another one begins.
pub(crate) struct Crowd {
    /// The one left alone longest first.
    pub(crate) of: Vec<Open>,
    /// Whether somebody has too many by himself.
    is_own: bool,
    /// How long an empty one must have been left alone.
    rest: Duration,
}

impl Crowd {
    /// Whether one without bytes may go, or one with some.
    pub(crate) fn may_go(&self, one: &Open, is_empty: bool) -> bool {
        match is_empty {
            true => one.age >= self.rest,
            false => !self.is_own && one.age >= REST,
        }
    }

    /// None may.
    pub(crate) fn refusal(&self) -> MirrorError {
        MirrorError::TooMany(match self.is_own {
            true => {
                format!("you have {MAX_EACH} open uploads already: finish or cancel some, or come back later")
            }
            false => format!("{MAX_UPLOADS} uploads are open already: come back later"),
        })
    }
}

/// Those of which one must go before somebody begins one more; `None`: there is room. What this mirror does by itself has no name, and
/// as many as there may be.
pub(crate) fn crowd(open: Vec<Open>, owner: &str) -> Option<Crowd> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    open.iter().for_each(|one| *counts.entry(&one.owner).or_default() += 1);
    let own = counts.get(owner).copied().unwrap_or(0);
    let is_own = !owner.is_empty() && own >= MAX_EACH;
    let (whose, count) = match is_own {
        true => (owner.to_owned(), own),
        false if open.len() < MAX_UPLOADS => return None,
        false => counts
            .iter()
            .max_by_key(|(of, count)| (**count, **of))
            .map(|(of, count)| ((*of).to_owned(), *count))?,
    };
    let rest = if count > own + 1 { Duration::ZERO } else { SETTLE };
    let mut of: Vec<Open> = open.into_iter().filter(|one| one.owner == whose).collect();
    of.sort_by_key(|one| std::cmp::Reverse(one.age));
    Some(Crowd { of, is_own, rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uploads of somebody, the first of which was left alone for the longest.
    fn of(owner: &str, count: usize, seconds: u64) -> Vec<Open> {
        let one = |n: usize| Open {
            id: UploadId::random().unwrap(),
            owner: owner.to_owned(),
            age: Duration::from_secs(seconds + (count - n) as u64),
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn one_who_has_too_many_makes_room_for_himself_alone() {
        let all = || [of("a", MAX_EACH, 10), of("b", 1, 100)].into_iter().flatten().collect::<Vec<_>>();
        assert!(crowd(all(), "b").is_none() && crowd(all(), "c").is_none() && crowd(all(), "").is_none());
        let own = crowd(all(), "a").unwrap();
        assert!(own.of.iter().all(|one| one.owner == "a"));
        assert_eq!(own.of[0].age.as_secs(), 10 + MAX_EACH as u64);
        assert!(own.may_go(&own.of[0], true) && !own.may_go(&own.of[0], false));
        let young = crowd(of("a", MAX_EACH, 0), "a").unwrap();
        assert!(!young.may_go(young.of.last().unwrap(), true), "it waits for its first byte");
        assert!(young.refusal().to_string().starts_with("you have"));
    }

    #[test]
    fn where_all_have_too_many_the_one_with_most_makes_room() {
        let all =
            [of("a", MAX_EACH, 0), of("b", MAX_UPLOADS - MAX_EACH, 1000)].into_iter().flatten().collect();
        let crowd = crowd(all, "c").unwrap();
        assert!(crowd.of.iter().all(|one| one.owner == "a"));
        assert!(
            crowd.may_go(crowd.of.last().unwrap(), true),
            "whoever has most does not keep others out by haste"
        );
        assert!(!crowd.may_go(crowd.of.last().unwrap(), false));
    }
}
