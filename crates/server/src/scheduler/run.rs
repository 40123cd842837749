//! A runner as the scheduler knows it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use puna_api::KeepAlive;

use super::{LoadOptions, Request, RequestId, RunId, State, Unload};

/// A model that was just loaded is not sent away for another while it is in use, for this many times what loading it took,
/// so that two models with requests for both are not loaded in turn for every single one …
const RESIDENCE: u32 = 4;

/// … but for no longer than this.
const RESIDENCE_MAX: Duration = Duration::from_secs(10);

/// Nor is it as soon as it is idle: the next request for it may be under way. Waiting costs half of what loading it again
/// would, at most this.
const GRACE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: RunId,
    /// As it was asked for.
    pub(super) asked: LoadOptions,
    /// As it is loaded, which may be less.
    pub(super) options: LoadOptions,
    /// Tokens of one conversation; once it is loaded, what the runner says.
    pub(super) context: u32,
    /// The part of them that the last request was content with, if it said so.
    pub(super) limit: Option<u32>,
    pub(super) state: State,
    pub(super) size: u64,
    /// The part of it that contexts take.
    pub(super) cache: u64,
    pub(super) keep: KeepAlive,
    pub(super) in_flight: BTreeSet<RequestId>,
    pub(super) started: Instant,
    /// How long loading took.
    pub(super) load: Duration,
    pub(super) last_use: Instant,
    pub(super) expires: Option<Instant>,
    /// Takes no new requests: somebody waits for its room.
    pub(super) draining: bool,
    /// Why it goes, when it goes.
    pub(super) leaves: Unload,
}

impl Run {
    pub(super) fn new(
        now: Instant,
        id: RunId,
        request: &Request,
        reduced: Option<LoadOptions>,
        keep: KeepAlive,
    ) -> Self {
        let options = reduced.unwrap_or_else(|| request.options.clone());
        Self {
            id,
            asked: request.options.clone(),
            context: options.num_ctx,
            limit: request.num_ctx,
            options,
            state: State::Planning,
            size: 0,
            cache: 0,
            keep,
            in_flight: BTreeSet::new(),
            started: now,
            load: Duration::ZERO,
            last_use: now,
            expires: None,
            draining: false,
            leaves: Unload::Idle,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state == State::Ready && self.in_flight.is_empty()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state == State::Stopping || self.draining
    }

    pub(super) fn takes(&self, request: &Request) -> bool {
        self.state == State::Ready && !self.draining && self.fits(&request.options)
    }

    /// Whether it serves requests with these options: those for which it was loaded, whatever came of them, and those that
    /// name what came of them.
    fn fits(&self, wanted: &LoadOptions) -> bool {
        !self.asked.needs_reload(wanted) || !self.options.needs_reload(wanted)
    }

    /// When it may be made to leave for somebody else.
    pub(super) fn may_leave(&self) -> Instant {
        let residence = (self.load * RESIDENCE).min(RESIDENCE_MAX);
        let resided = self.started + self.load + residence;
        match self.in_flight.is_empty() {
            true => resided.min(self.last_use + (self.load / 2).min(GRACE_MAX)),
            false => resided,
        }
    }

    /// What is lost when it leaves, as far as that can be known: seconds that loading it again takes, times the odds that
    /// it is wanted soon, which fall with the time that it was not. Less is to leave first. Idle ones come before busy
    /// ones, and those that are to stay for ever last.
    pub(super) fn value(&self, now: Instant) -> (bool, bool, Worth) {
        let unused = now.duration_since(self.last_use).as_secs_f64();
        let worth = (0.1 + self.load.as_secs_f64()) / (0.1 + unused);
        (!self.is_idle(), self.keep == KeepAlive::Forever, Worth(worth))
    }

    /// A request runs on it from now on.
    pub(super) fn take(&mut self, now: Instant, request: &Request) {
        if let Some(keep) = request.keep_alive {
            self.keep = keep;
        }
        self.limit = request.num_ctx;
        self.in_flight.insert(request.id);
        self.last_use = now;
        self.expires = expiry(now, self.keep);
    }
}

/// A number with an order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Worth(f64);

impl Eq for Worth {}

impl Ord for Worth {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) fn expiry(now: Instant, keep: KeepAlive) -> Option<Instant> {
    match keep {
        KeepAlive::For(time) => now.checked_add(time),
        KeepAlive::Forever => None,
    }
}
