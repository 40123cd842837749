//! Through which mirrors a request has come (`Via`; RFC 9110, 7.6.3), so that one that asks itself, over whichever others, notices
//! it at once instead of waiting for itself.

use axum::http::{HeaderMap, header};

use crate::error::MirrorError;
use crate::id::UploadId;

/// How the names of mirrors begin.
const PREFIX: &str = "puna-";
/// Letters of such a name at most.
const MAX_NAME: usize = 64;
/// Mirrors that may stand one behind the other.
const MAX_MIRRORS: usize = 8;

tokio::task_local! {
    /// The mirrors that the request which is being answered has come through; this one is the last.
    static WAY: String;
}

/// The name of a mirror, which no other has.
pub(crate) struct Me(String);

impl Me {
    pub(crate) fn new() -> Result<Self, MirrorError> {
        Ok(Self(format!("{PREFIX}{}", UploadId::random()?)))
    }

    /// The way of a request up to here.
    ///
    /// # Errors
    /// It has been here before, or has come through too many.
    pub(crate) fn way(&self, headers: &HeaderMap) -> Result<Way, MirrorError> {
        let all = headers.get_all(header::VIA).iter().filter_map(|value| value.to_str().ok());
        let names =
            all.flat_map(|all| all.split(',')).filter_map(|entry| entry.split_whitespace().nth(1));
        // Other proxies ask nobody by themselves.
        let mut mirrors: Vec<&str> =
            names.filter(|name| name.starts_with(PREFIX) && name.len() <= MAX_NAME).collect();
        if mirrors.contains(&self.0.as_str()) {
            return Err(MirrorError::Loop(
                "this registry has been asked by itself: it is its own upstream, or that of one of its upstreams; mend mirror.upstreams, registry.default and registry.mirrors there and here".into(),
            ));
        }
        if mirrors.len() >= MAX_MIRRORS {
            return Err(MirrorError::Loop(format!(
                "more than {MAX_MIRRORS} mirrors stand one behind the other: name one nearer to the source in mirror.upstreams, registry.default or registry.mirrors"
            )));
        }
        mirrors.push(&self.0);
        let entries: Vec<_> = mirrors.iter().map(|name| format!("1.1 {name}")).collect();
        Ok(Way(entries.join(", ")))
    }
}

/// The way of a request.
pub(crate) struct Way(String);

impl Way {
    /// Answers the request: those who are asked for its sake are told the way.
    pub(crate) async fn answer<T>(self, answer: impl Future<Output = T>) -> T {
        WAY.scope(self.0, answer).await
    }
}

/// What upstreams are told of the request that is being answered.
pub(crate) fn told() -> Option<String> {
    WAY.try_with(Clone::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[&str]) -> HeaderMap {
        all.iter().map(|value| (header::VIA, value.parse().unwrap())).collect()
    }

    #[tokio::test]
    async fn the_mirrors_on_the_way_are_passed_on_and_this_one_with_them() {
        let (me, other) = (Me::new().unwrap(), Me::new().unwrap());
        let way = async |of: &Me, via: &[&str]| {
            of.way(&headers(via)).unwrap().answer(async { told() }).await
        };
        let own = format!("1.1 {}", me.0);
        assert_eq!(way(&me, &[]).await.as_deref(), Some(own.as_str()));
        assert_eq!(
            way(&me, &["1.0 fred, 1.1 nginx (a, b)", "?"]).await.as_deref(),
            Some(own.as_str())
        );
        let both = format!("{own}, 1.1 {}", other.0);
        assert_eq!(way(&other, &[&own, "1.1 nginx"]).await.as_deref(), Some(both.as_str()));
        assert_eq!(told(), None);
    }

    #[test]
    fn who_is_asked_by_itself_says_so() {
        let (me, other) = (Me::new().unwrap(), Me::new().unwrap());
        let way = format!("1.1 {},1.1 {} (Puna)", me.0, other.0);
        for of in [&me, &other] {
            let Err(refused) = of.way(&headers(&["1.1 nginx", &way])) else {
                panic!("it goes in a circle")
            };
            assert_eq!(refused.code().0, 508, "{refused}");
            assert!(refused.to_string().contains("asked by itself"), "{refused}");
        }
    }

    #[test]
    fn who_stands_behind_too_many_is_not_taken_for_one_who_asks_himself() {
        let me = Me::new().unwrap();
        let mut others: Vec<String> =
            (0..MAX_MIRRORS).map(|n| format!("1.1 {PREFIX}{n}")).collect();
        assert!(me.way(&headers(&[&others[1..].join(", ")])).is_ok());
        let refusal = |way: &[String]| me.way(&headers(&[&way.join(", ")])).map(drop).unwrap_err();
        let refused = refusal(&others);
        assert_eq!(refused.code().0, 508, "{refused}");
        let said = refused.to_string();
        assert!(said.contains("more than 8 mirrors") && !said.contains("itself"), "{said}");
        // However long the way was.
        others[0] = format!("1.1 {}", me.0);
        assert!(refusal(&others).to_string().contains("asked by itself"));
    }
}
