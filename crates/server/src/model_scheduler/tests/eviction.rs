//! Eviction: which model, when, and which requests may overtake.

use super::*;

/// Loads a model with this load time and ends its request.
fn load_and_finish(b: &mut Fixture, run: RunnerId, model: &str, seconds: u64) {
    b.request(1000 + run, model);
    b.load_slowly(run, GB, seconds);
    b.finish(1000 + run);
}

#[test]
fn of_equally_idle_models_the_one_that_loads_quickly_is_evicted() {
    let mut b = Fixture::new(2, 512);
    load_and_finish(&mut b, 1, "slow", 30);
    load_and_finish(&mut b, 2, "quick", 1);
    b.advance(60);
    assert_eq!(b.request(1, "new"), [Action::Stop(2)], "though it was used last");
}

#[test]
fn a_model_unused_for_long_is_evicted_even_if_it_loads_slowly() {
    let mut b = Fixture::new(2, 512);
    b.event(with_keep(9, "slow", KeepAlive::For(Duration::from_secs(10_000))));
    b.load_slowly(1, GB, 30);
    b.finish(9);
    b.advance(5000);
    load_and_finish(&mut b, 2, "quick", 1);
    b.advance(10);
    assert_eq!(b.request(1, "new"), [Action::Stop(1)]);
}

#[test]
fn a_model_with_endless_keep_alive_is_evicted_after_all_other_idle_ones() {
    let mut b = Fixture::new(2, 512);
    b.event(with_keep(9, "pinned", KeepAlive::Forever));
    b.load(1, GB);
    b.finish(9);
    b.advance(200);
    load_and_finish(&mut b, 2, "other", 5);
    b.advance(60);
    assert_eq!(b.request(1, "new"), [Action::Stop(2)]);
    b.exit(2);
    b.load(3, GB);
    assert_eq!(b.request(2, "another"), [Action::Stop(1)], "before a busy one");
}

#[test]
fn a_model_just_loaded_serves_requests_for_a_while_before_eviction() {
    let mut b = Fixture::new(1, 512);
    b.request(1, "a");
    b.load_slowly(1, GB, 2);
    assert_eq!(b.request(2, "b"), []);
    assert_eq!(b.advance(7), []);
    assert_eq!(b.request(3, "a"), [Action::Grant(3, 1)], "four times the two seconds are not over");
    let due = b.scheduler.deadline().unwrap();
    assert_eq!(due, b.now + Duration::from_secs(1));
    b.advance(1);
    assert_eq!(b.request(4, "a"), [], "now they are");
    assert_eq!([b.finish(1), b.finish(3)], [vec![], vec![Action::Stop(1)]]);
}

#[test]
fn a_model_between_two_requests_is_not_evicted_at_once() {
    let mut b = Fixture::new(1, 512);
    b.request(1, "a");
    b.load_slowly(1, GB, 2);
    b.finish(1);
    assert_eq!(b.request(2, "b"), []);
    b.now += Duration::from_millis(900);
    assert_eq!(b.request(3, "a"), [Action::Grant(3, 1)]);
    assert_eq!(b.finish(3), []);
    assert_eq!(b.advance(1), [Action::Stop(1)], "half a load's time without a request");
}

#[test]
fn a_used_model_delays_others_for_a_limited_time() {
    let mut b = Fixture::new(1, 512);
    b.request(1, "a");
    b.load_slowly(1, GB, 3600);
    assert_eq!(b.request(2, "b"), []);
    b.advance(10);
    assert_eq!(b.request(3, "a"), [], "however long it took to load");
}

#[test]
fn two_busy_models_are_not_reloaded_for_every_request() {
    let mut b = Fixture::new(1, 512);
    let (mut loads, mut granted, mut id) = (0, 0, 0);
    let mut loading: Option<(RunnerId, Instant)> = None;
    // Each of two clients sends a request 100 ms after the last response, which takes 100 ms.
    // Loading takes 2 s.
    let mut clients = [("a", None::<(RequestId, Instant)>, b.now), ("b", None, b.now)];
    for _ in 0..6000 {
        b.now += Duration::from_millis(10);
        let mut actions = b.event(Event::Tick);
        for (client, (model, running, next)) in clients.iter_mut().enumerate() {
            if let Some((request, until)) = *running
                && until <= b.now
            {
                actions.extend(b.finish(request));
                (*running, *next) = (None, b.now + Duration::from_millis(100));
            }
            if running.is_none() && *next <= b.now {
                id += 1;
                *running = Some((id, b.now + Duration::from_secs(100_000)));
                actions.extend(b.request_as(client as u64, id, model));
            }
        }
        if let Some((run, until)) = loading
            && until <= b.now
        {
            loading = None;
            actions.extend(b.event(Event::Loaded(run, 4096, GB)));
        }
        while let Some(action) = actions.pop() {
            match action {
                Action::Start(run, ..) => actions.extend(b.event(planned(run, GB))),
                Action::Load(run) => {
                    (loads, loading) = (loads + 1, Some((run, b.now + Duration::from_secs(2))))
                }
                Action::Stop(run) => actions.extend(b.exit(run)),
                Action::Grant(id, _) => {
                    granted += 1;
                    let client =
                        clients.iter_mut().find(|c| c.1.is_some_and(|(r, _)| r == id)).unwrap();
                    client.1 = Some((id, b.now + Duration::from_millis(100)));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!((5..=8).contains(&loads), "{loads} loads in a minute");
    assert!(granted > 20 * loads, "{granted} answers for {loads} loads");
}

#[test]
fn a_small_model_overtakes_a_large_one_that_waits_for_memory() {
    let mut b = Fixture::with_memory(10 * GB, 10 * GB);
    b.request(1, "a");
    b.load(1, 6 * GB);
    assert_eq!(b.request(2, "large"), [start(2, "large")]);
    assert_eq!(b.event(planned(2, 8 * GB)), [], "a is busy");
    assert_eq!(b.scheduler.view(b.now)[1].phase, Phase::Waiting);
    assert_eq!(b.request(3, "small"), [start(3, "small")]);
    assert_eq!(b.event(planned(3, GB)), [Action::Load(3)]);
    assert_eq!(b.event(Event::Loaded(3, 4096, GB)), [Action::Grant(3, 3)]);
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.exit(1), [Action::Load(2)], "beside the small one");
    assert_eq!(b.event(Event::Loaded(2, 4096, 8 * GB)), [Action::Grant(2, 2)]);
}

#[test]
fn a_model_that_does_not_fit_does_not_overtake() {
    let mut b = Fixture::with_memory(10 * GB, 10 * GB);
    b.request(1, "a");
    b.load(1, 6 * GB);
    b.request(2, "large");
    b.event(planned(2, 8 * GB));
    b.request(3, "second");
    assert_eq!(b.event(planned(3, 5 * GB)), [Action::Stop(3)]);
    assert_eq!(b.exit(3), [], "it is not tried over and over");
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.exit(1), [Action::Load(2)]);
    assert_eq!(b.event(Event::Loaded(2, 4096, 8 * GB)), [Action::Grant(2, 2), start(4, "second")]);
}

#[test]
fn a_large_model_is_overtaken_for_a_limited_time() {
    let mut b = Fixture::with_memory(10 * GB, 10 * GB);
    b.scheduler =
        Scheduler::new(Limits { max_loaded: 30, max_queue: 512, keep_alive: KeepAlive::Forever });
    b.event(Event::Memory(Memory { total: 10 * GB, available: 10 * GB }));
    b.request(1, "a");
    b.load(1, 6 * GB);
    b.request(2, "large");
    b.event(planned(2, 8 * GB));
    b.advance(14);
    assert_eq!(b.request(3, "small"), [start(3, "small")]);
    b.load(3, GB);
    b.advance(1);
    assert_eq!(b.request(4, "tiny"), []);
    b.finish(3);
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.exit(1), [Action::Load(2)]);
}

#[test]
fn an_overtaking_model_without_requests_is_stopped() {
    let mut b = Fixture::with_memory(10 * GB, 10 * GB);
    b.request(1, "a");
    b.load(1, 6 * GB);
    b.request(2, "large");
    b.event(planned(2, 8 * GB));
    b.request(3, "small");
    assert_eq!(b.finish(3), [Action::Stop(3)]);
    assert_eq!(b.finish(2), [Action::Stop(2)]);
    b.exit(2);
    b.exit(3);
    assert_eq!(b.loaded(), ["a"]);
    assert_eq!(b.request(4, "a"), [Action::Grant(4, 1)]);
}

#[test]
fn a_failed_load_fails_all_requests_with_the_same_options() {
    let mut b = Fixture::new(3, 512);
    let other = LoadOptions { num_thread: 7, ..options() };
    b.request(1, "bad");
    b.request(2, "bad");
    b.event(Event::Request(Request { options: other.clone(), ..request(3, "bad") }));
    let exit = RunnerExit { reason: "unknown architecture".into(), ..RunnerExit::default() };
    let refused = |id| Action::Refuse(id, Refusal::LoadFailed(exit.clone()));
    let again = Action::Start(2, ModelKey("bad".into()), other);
    assert_eq!(b.event(Event::Exited(1, exit.clone())), [refused(1), refused(2), again]);
}

#[test]
fn options_that_did_not_fit_are_not_tried_again_for_every_request() {
    use crate::options::speculate::DraftModelSpec;
    let mut b = Fixture::with_memory(8 * GB, 8 * GB);
    let draft = DraftModelSpec { name: "small".into(), weights: None, optional: true };
    let options = LoadOptions { draft: Some(draft), ..options() };
    let ask = |id| Event::Request(Request { options: options.clone(), ..request(id, "a") });
    b.event(ask(1));
    let without = LoadOptions { draft: None, ..options.clone() };
    assert_eq!(b.event(planned(1, 9 * GB)), [Action::Replan(1, without)]);
    assert_eq!(b.event(planned(1, 7 * GB)), [Action::Load(1)]);
    assert_eq!(b.event(Event::Loaded(1, 4096, 7 * GB)), [Action::Grant(1, 1)]);
    assert_eq!(b.event(ask(2)), [Action::Grant(2, 1)], "as if it had its draft model");
}
