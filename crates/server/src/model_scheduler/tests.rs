//! Behaviour of Ollama's scheduler tests, and intended differences from it.

mod contexts;
mod eviction;
mod fairness;
mod memory;

use std::time::Duration;

use super::*;

const GB: u64 = 1 << 30;

struct Fixture {
    scheduler: Scheduler,
    now: Instant,
}

impl Fixture {
    fn new(max_loaded: usize, max_queue: usize) -> Self {
        let keep_alive = KeepAlive::For(Duration::from_secs(300));
        let limits = Limits { max_loaded, max_queue, keep_alive };
        Self { scheduler: Scheduler::new(limits), now: Instant::now() }
    }

    fn with_memory(total: u64, available: u64) -> Self {
        let mut fixture = Self::new(3, 512);
        fixture.event(Event::Memory(Memory { total, available }));
        fixture
    }

    fn event(&mut self, event: Event) -> Vec<Action> {
        self.scheduler.handle(self.now, event)
    }

    fn advance(&mut self, seconds: u64) -> Vec<Action> {
        self.now += Duration::from_secs(seconds);
        self.event(Event::Tick)
    }

    fn request(&mut self, id: RequestId, model: &str) -> Vec<Action> {
        self.event(Event::Request(request(id, model)))
    }

    fn finish(&mut self, id: RequestId) -> Vec<Action> {
        self.event(Event::Finished(id))
    }

    /// Plans and loads a requested model.
    fn load(&mut self, run: RunnerId, size: u64) -> Vec<Action> {
        assert_eq!(self.event(planned(run, size)), [Action::Load(run)]);
        self.event(Event::Loaded(run, 4096, size))
    }

    /// Loads a model that takes this many seconds to load.
    fn load_slowly(&mut self, run: RunnerId, size: u64, seconds: u64) -> Vec<Action> {
        assert_eq!(self.event(planned(run, size)), [Action::Load(run)]);
        self.now += Duration::from_secs(seconds);
        self.event(Event::Loaded(run, 4096, size))
    }

    /// Sends a request of a client.
    fn request_as(&mut self, client: u64, id: RequestId, model: &str) -> Vec<Action> {
        self.event(Event::Request(Request { client, ..request(id, model) }))
    }

    fn exit(&mut self, run: RunnerId) -> Vec<Action> {
        self.event(Event::Exited(run, RunnerExit::default()))
    }

    fn loaded(&self) -> Vec<String> {
        self.scheduler
            .view(self.now)
            .into_iter()
            .filter(|v| v.phase == Phase::Ready)
            .map(|v| v.key.0)
            .collect()
    }
}

fn options() -> LoadOptions {
    LoadOptions { num_ctx: 4096, cache: 4096, parallel: Some(1), ..LoadOptions::default() }
}

/// A plan of this many bytes without a KV cache.
fn planned(run: RunnerId, total: u64) -> Event {
    Event::Planned(run, MemoryNeed { total, cache: 0 })
}

fn request(id: RequestId, model: &str) -> Request {
    Request {
        id,
        client: 0,
        key: ModelKey(model.into()),
        options: options(),
        num_ctx: None,
        keep_alive: None,
    }
}

fn with_keep(id: RequestId, model: &str, keep: KeepAlive) -> Event {
    Event::Request(Request { keep_alive: Some(keep), ..request(id, model) })
}

fn of_client(client: u64, event: Event) -> Event {
    match event {
        Event::Request(request) => Event::Request(Request { client, ..request }),
        other => other,
    }
}

fn start(run: RunnerId, model: &str) -> Action {
    Action::Start(run, ModelKey(model.into()), options())
}

fn oom() -> RunnerExit {
    RunnerExit { reason: "out of memory".into(), out_of_memory: true, ..RunnerExit::default() }
}

#[test]
fn a_model_is_planned_loaded_and_granted() {
    let mut b = Fixture::new(3, 512);
    assert_eq!(b.request(1, "a"), [start(1, "a")]);
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1)]);
    let view = b.scheduler.view(b.now);
    assert_eq!(
        (view[0].size, view[0].context, view[0].in_flight, view[0].phase),
        (GB, 4096, 1, Phase::Ready)
    );
}

#[test]
fn requests_for_a_model_that_is_ready_bypass_the_queue() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    assert_eq!(b.request(2, "b"), [start(2, "b")]);
    assert_eq!(b.request(3, "a"), [Action::Grant(3, 1)]);
}

#[test]
fn requests_for_a_model_that_is_being_loaded_share_its_runner() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    assert_eq!(b.request(2, "a"), []);
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1), Action::Grant(2, 1)]);
}

#[test]
fn only_one_model_is_loaded_at_a_time() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    assert_eq!(b.request(2, "b"), []);
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1), start(2, "b")]);
}

#[test]
fn the_queue_limit_counts_waiting_requests_only() {
    let mut b = Fixture::new(3, 2);
    b.request(1, "a");
    let refused: Vec<_> = (2..=6).flat_map(|id| b.request(id, "a")).collect();
    assert_eq!(refused, [4, 5, 6].map(|id| Action::Refuse(id, Refusal::Busy)));
    assert_eq!(b.load(1, GB).len(), 3);
}

#[test]
fn changed_options_reload_the_model_after_running_requests() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    let other = Request { options: LoadOptions { num_thread: 7, ..options() }, ..request(2, "a") };
    let new_options = other.options.clone();
    assert_eq!(b.event(Event::Request(other)), []);
    assert_eq!(
        b.request(3, "a"),
        [],
        "nobody is let in any more, or the second request would wait for ever"
    );
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.exit(1), [Action::Start(2, ModelKey("a".into()), new_options)]);
}

#[test]
fn an_idle_model_is_unloaded_after_its_keep_alive_time() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    assert_eq!(b.advance(1000), []);
    assert_eq!(b.finish(1), []);
    assert_eq!(b.scheduler.deadline(), Some(b.now + Duration::from_secs(300)));
    assert_eq!(b.advance(299), []);
    assert_eq!(b.request(2, "a"), [Action::Grant(2, 1)]);
    assert_eq!(b.advance(10), []);
    b.finish(2);
    assert_eq!(b.advance(300), [Action::Stop(1)]);
    assert_eq!(b.exit(1), []);
    assert!(b.scheduler.view(b.now).is_empty());
}

#[test]
fn a_requests_keep_alive_replaces_the_current_one_unless_it_is_absent() {
    let mut b = Fixture::new(3, 512);
    b.event(with_keep(1, "a", KeepAlive::For(Duration::from_secs(10))));
    b.load(1, GB);
    b.finish(1);
    b.request(2, "a");
    b.finish(2);
    assert_eq!(b.scheduler.deadline(), Some(b.now + Duration::from_secs(10)));
    b.event(with_keep(3, "a", KeepAlive::Forever));
    b.finish(3);
    assert_eq!(b.scheduler.deadline(), None);
    assert_eq!(b.advance(1_000_000), []);
    b.event(with_keep(4, "a", KeepAlive::For(Duration::ZERO)));
    assert_eq!(b.finish(4), [Action::Stop(1)]);
}

#[test]
fn a_client_unloads_no_model_that_another_keeps() {
    let mut b = Fixture::new(3, 512);
    let key = || ModelKey("a".into());
    let minute = KeepAlive::For(Duration::from_secs(60));
    b.event(with_keep(1, "a", minute));
    b.load(1, GB);
    b.finish(1);
    // Another client asks to unload it, twice.
    b.event(of_client(2, with_keep(2, "a", KeepAlive::For(Duration::ZERO))));
    assert_eq!(b.finish(2), []);
    assert_eq!(b.event(Event::Expire(key(), Some(2))), []);
    assert_eq!(b.scheduler.deadline(), Some(b.now + Duration::from_secs(60)));
    // A shorter time of the other client changes nothing either, a longer one does.
    b.event(of_client(2, with_keep(3, "a", KeepAlive::For(Duration::from_secs(1)))));
    assert_eq!(b.finish(3), []);
    assert_eq!(b.advance(59), []);
    b.event(of_client(2, with_keep(4, "a", minute)));
    b.finish(4);
    assert_eq!(b.advance(59), []);
    assert_eq!(b.event(Event::Expire(key(), Some(2))), [Action::Stop(1)]);
}

#[test]
fn a_model_loaded_with_keep_alive_zero_serves_its_request_first() {
    let mut b = Fixture::new(3, 512);
    b.event(with_keep(1, "a", KeepAlive::For(Duration::ZERO)));
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1)]);
    assert_eq!(b.finish(1), [Action::Stop(1)]);
}

#[test]
fn an_expired_model_is_unloaded_as_soon_as_its_request_ends() {
    let mut b = Fixture::new(3, 512);
    b.event(with_keep(1, "a", KeepAlive::For(Duration::from_secs(120))));
    b.load(1, GB);
    assert_eq!(b.event(Event::Expire(ModelKey("a".into()), None)), []);
    assert_eq!(b.finish(1), [Action::Stop(1)]);
}

#[test]
fn an_idle_model_expires_at_once_and_an_absent_one_is_ignored() {
    let mut b = Fixture::new(3, 512);
    assert_eq!(b.event(Event::Expire(ModelKey("a".into()), None)), []);
    b.request(1, "a");
    b.load(1, GB);
    b.finish(1);
    assert_eq!(b.event(Event::Expire(ModelKey("a".into()), None)), [Action::Stop(1)]);
}

#[test]
fn late_and_repeated_events_are_harmless() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.finish(1);
    assert_eq!(b.finish(1), []);
    assert_eq!(b.event(planned(1, 7)), []);
    assert_eq!(b.event(Event::Loaded(9, 1, 1)), []);
    assert_eq!(b.event(Event::Exited(9, RunnerExit::default())), []);
    assert_eq!(b.loaded(), ["a"]);
}

#[test]
fn the_least_recently_used_idle_model_is_evicted() {
    let mut b = Fixture::new(2, 512);
    for (id, model) in [(1, "a"), (2, "b")] {
        b.request(id, model);
        b.load(id, GB);
        b.finish(id);
        b.advance(1);
    }
    b.request(3, "a");
    b.finish(3);
    assert_eq!(b.request(4, "c"), [Action::Stop(2)]);
    assert_eq!(b.exit(2), [start(3, "c")]);
}

#[test]
fn an_idle_model_is_evicted_before_a_busy_one() {
    let mut b = Fixture::new(2, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.finish(1);
    b.advance(1);
    b.request(2, "b");
    b.load(2, GB);
    b.advance(1);
    b.request(3, "a");
    b.advance(1);
    assert_eq!(b.request(4, "c"), [], "both are busy");
    assert_eq!(b.finish(3), [], "the least recently used one was chosen");
    assert_eq!(b.finish(2), [Action::Stop(2)]);
    assert_eq!(b.exit(2), [start(3, "c")]);
}

#[test]
fn a_draining_model_accepts_requests_again_when_its_memory_is_not_needed() {
    let mut b = Fixture::new(1, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.request(2, "b");
    assert_eq!(b.request(3, "a"), [], "a is to leave as soon as it is idle");
    assert_eq!(b.finish(2), [Action::Grant(3, 1)], "who wanted its room has gone");
    assert_eq!(b.request(4, "a"), [Action::Grant(4, 1)]);
    for id in [1, 3, 4] {
        assert_eq!(b.finish(id), [], "it stays as long as it is kept alive");
    }
    assert_eq!(b.loaded(), ["a"]);
}

#[test]
fn a_request_behind_a_cancelled_one_is_granted_if_its_model_stays() {
    let mut b = Fixture::new(1, 512);
    b.request(1, "a");
    b.load(1, GB);
    assert_eq!([b.request(2, "b"), b.request(3, "c"), b.request(4, "a")].concat(), []);
    assert_eq!(b.finish(2), [Action::Grant(4, 1)], "before c has it leave again");
    assert_eq!(b.request(5, "a"), []);
    assert_eq!([b.finish(1), b.finish(4)], [vec![], vec![Action::Stop(1)]]);
    assert_eq!(b.exit(1), [start(2, "c")]);
}

#[test]
fn models_coexist_while_memory_suffices_and_then_the_oldest_is_evicted() {
    let mut b = Fixture::with_memory(24 * GB, 24 * GB);
    for (id, model, size) in [(1, "a", GB), (2, "b", 10 * GB)] {
        b.request(id, model);
        b.load(id, size);
        b.finish(id);
        b.advance(1);
    }
    b.request(3, "c");
    assert_eq!(b.event(planned(3, 13 * GB)), [Action::Load(3)]);
    b.event(Event::Loaded(3, 4096, 13 * GB));
    assert_eq!(b.loaded(), ["a", "b", "c"]);
    b.finish(3);
    b.advance(1);
    assert_eq!(b.request(4, "d"), [Action::Stop(1)], "three models at most");
    assert_eq!(b.exit(1), [start(4, "d")]);
    assert_eq!(
        b.event(planned(4, 13 * GB)),
        [Action::Stop(3)],
        "the one that makes room enough alone"
    );
    assert_eq!(b.exit(3), [Action::Load(4)]);
    b.event(Event::Loaded(4, 4096, 13 * GB));
    assert_eq!(b.loaded(), ["b", "d"]);
}

#[test]
fn a_model_larger_than_memory_is_refused_with_the_numbers() {
    let mut b = Fixture::with_memory(8 * GB, 6 * GB);
    b.request(1, "a");
    let refusal = |available| Refusal::TooLarge { need: 9 * GB, available };
    assert_eq!(b.event(planned(1, 9 * GB)), [Action::Stop(1), Action::Refuse(1, refusal(8 * GB))]);
    b.exit(1);
    b.request(2, "b");
    let refusal = Refusal::TooLarge { need: 7 * GB, available: 6 * GB };
    assert_eq!(b.event(planned(2, 7 * GB)), [Action::Stop(2), Action::Refuse(2, refusal)]);
}

#[test]
fn a_model_larger_than_memory_evicts_no_other_model() {
    let mut b = Fixture::with_memory(8 * GB, 8 * GB);
    b.request(1, "a");
    b.load(1, GB);
    b.finish(1);
    b.request(2, "b");
    let refusal = Refusal::TooLarge { need: 9 * GB, available: 8 * GB };
    assert_eq!(b.event(planned(2, 9 * GB)), [Action::Stop(2), Action::Refuse(2, refusal)]);
    assert_eq!(b.loaded(), ["a"]);
}

#[test]
fn a_failed_load_is_the_error_of_the_request_that_caused_it() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "bad");
    b.request(2, "good");
    let exit = RunnerExit { reason: "unknown architecture".into(), ..RunnerExit::default() };
    let refused = Action::Refuse(1, Refusal::LoadFailed(exit.clone()));
    assert_eq!(b.event(Event::Exited(1, exit)), [refused, start(2, "good")]);
}

#[test]
fn a_load_out_of_memory_evicts_all_others_and_retries_once() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.finish(1);
    b.request(2, "b");
    assert_eq!(b.event(planned(2, GB)), [Action::Load(2)]);
    assert_eq!(b.event(Event::Exited(2, oom())), [Action::Stop(1), start(3, "b")]);
    b.exit(1);
    assert_eq!(b.event(planned(3, GB)), [Action::Load(3)]);
    assert_eq!(b.event(Event::Exited(3, oom())), [Action::Refuse(2, Refusal::LoadFailed(oom()))]);
}

#[test]
fn other_failures_are_not_tried_again() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.finish(1);
    b.request(2, "b");
    let exit = RunnerExit { reason: "signal: 11".into(), ..RunnerExit::default() };
    assert_eq!(
        b.event(Event::Exited(2, exit.clone())),
        [Action::Refuse(2, Refusal::LoadFailed(exit))]
    );
    assert_eq!(b.loaded(), ["a"]);
}

#[test]
fn a_runner_out_of_memory_expires_all_models() {
    let mut b = Fixture::new(3, 512);
    for (id, model) in [(1, "a"), (2, "b")] {
        b.request(id, model);
        b.load(id, GB);
    }
    b.finish(2);
    assert_eq!(b.event(Event::Exited(1, oom())), [Action::Stop(2)]);
}

#[test]
fn a_crashed_runner_is_replaced_at_the_next_request() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.exit(1);
    assert!(b.loaded().is_empty());
    assert_eq!(b.finish(1), []);
    assert_eq!(b.request(2, "a"), [start(2, "a")]);
}

#[test]
fn a_cancelled_request_neither_succeeds_nor_fails() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.request(2, "b");
    assert_eq!(b.finish(2), []);
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1)]);
    assert_eq!(b.scheduler.waiting(), 0);
}

#[test]
fn a_load_without_waiting_requests_is_stopped() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.request(2, "a");
    assert_eq!(b.finish(1), [], "another client wants it too");
    assert_eq!(b.finish(2), [Action::Stop(1)]);
    assert_eq!(b.request(3, "a"), []);
    assert_eq!(b.exit(1), [start(2, "a")]);
}

#[test]
fn a_used_model_is_listed_with_its_future_expiry() {
    let mut b = Fixture::new(3, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.advance(1000);
    assert_eq!(b.scheduler.view(b.now)[0].expires, Some(b.now + Duration::from_secs(300)));
}

#[test]
fn every_unload_has_a_reason() {
    let mut b = Fixture::new(1, 512);
    let mut leaves = |make: &dyn Fn(&mut Fixture) -> RunnerId| {
        let run = make(&mut b);
        let why = b.scheduler.unload_reason(run);
        b.exit(run);
        why
    };
    let idle = leaves(&|b| {
        b.request(1, "a");
        b.load(1, GB);
        b.finish(1);
        b.advance(300);
        1
    });
    let room = leaves(&|b| {
        b.request(2, "a");
        b.load(2, GB);
        b.request(3, "b");
        b.finish(2);
        2
    });
    // `b` is being loaded, and no request waits for it any more.
    let unwanted = leaves(&|b| {
        b.finish(3);
        3
    });
    let reload = leaves(&|b| {
        b.request(4, "a");
        b.load(4, GB);
        b.finish(4);
        let options = LoadOptions { num_thread: 7, ..options() };
        b.event(Event::Request(Request { options, ..request(5, "a") }));
        4
    });
    let all = [idle, room, reload, unwanted];
    assert_eq!(all, UnloadReason::ALL.map(Some));
}

#[test]
fn a_model_that_was_not_evicted_is_unloaded_as_idle_later() {
    let mut b = Fixture::new(1, 512);
    b.request(1, "a");
    b.load(1, GB);
    b.request(2, "b");
    b.finish(2);
    b.finish(1);
    assert_eq!(b.advance(300), [Action::Stop(1)]);
    assert_eq!(b.scheduler.unload_reason(1), Some(UnloadReason::Idle));
}
