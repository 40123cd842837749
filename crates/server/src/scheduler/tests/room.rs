//! Who makes room, when, and who may pass meanwhile.

use super::*;

/// Brings a model into memory that takes that many seconds to load; its request is over.
fn bring(b: &mut Bench, run: RunId, model: &str, seconds: u64) {
    b.ask(1000 + run, model);
    b.load_slowly(run, GB, seconds);
    b.finish(1000 + run);
}

#[test]
fn of_models_that_rest_equally_long_the_one_that_is_quick_to_load_goes() {
    let mut b = Bench::new(2, 512);
    bring(&mut b, 1, "slow", 30);
    bring(&mut b, 2, "quick", 1);
    b.pass(60);
    assert_eq!(b.ask(1, "new"), [Action::Stop(2)], "though it was used last");
}

#[test]
fn a_model_that_was_not_used_for_long_goes_however_slowly_it_loads() {
    let mut b = Bench::new(2, 512);
    b.event(with_keep(9, "slow", KeepAlive::For(Duration::from_secs(10_000))));
    b.load_slowly(1, GB, 30);
    b.finish(9);
    b.pass(5000);
    bring(&mut b, 2, "quick", 1);
    b.pass(10);
    assert_eq!(b.ask(1, "new"), [Action::Stop(1)]);
}

#[test]
fn a_model_that_is_to_stay_for_ever_goes_after_all_other_idle_ones() {
    let mut b = Bench::new(2, 512);
    b.event(with_keep(9, "pinned", KeepAlive::Forever));
    b.load(1, GB);
    b.finish(9);
    b.pass(200);
    bring(&mut b, 2, "other", 5);
    b.pass(60);
    assert_eq!(b.ask(1, "new"), [Action::Stop(2)]);
    b.gone(2);
    b.load(3, GB);
    assert_eq!(b.ask(2, "another"), [Action::Stop(1)], "before a busy one");
}

#[test]
fn a_model_just_loaded_serves_its_requests_for_a_while_before_it_makes_room() {
    let mut b = Bench::new(1, 512);
    b.ask(1, "a");
    b.load_slowly(1, GB, 2);
    assert_eq!(b.ask(2, "b"), []);
    assert_eq!(b.pass(7), []);
    assert_eq!(b.ask(3, "a"), [Action::Grant(3, 1)], "four times the two seconds are not over");
    let due = b.scheduler.deadline().unwrap();
    assert_eq!(due, b.now + Duration::from_secs(1));
    b.pass(1);
    assert_eq!(b.ask(4, "a"), [], "now they are");
    assert_eq!([b.finish(1), b.finish(3)], [vec![], vec![Action::Stop(1)]]);
}

#[test]
fn a_model_between_two_requests_is_not_sent_away_at_once() {
    let mut b = Bench::new(1, 512);
    b.ask(1, "a");
    b.load_slowly(1, GB, 2);
    b.finish(1);
    assert_eq!(b.ask(2, "b"), []);
    b.now += Duration::from_millis(900);
    assert_eq!(b.ask(3, "a"), [Action::Grant(3, 1)]);
    assert_eq!(b.finish(3), []);
    assert_eq!(b.pass(1), [Action::Stop(1)], "half a load's time without a request");
}

#[test]
fn nobody_waits_long_for_a_model_that_is_in_use_to_be_of_use() {
    let mut b = Bench::new(1, 512);
    b.ask(1, "a");
    b.load_slowly(1, GB, 3600);
    assert_eq!(b.ask(2, "b"), []);
    b.pass(10);
    assert_eq!(b.ask(3, "a"), [], "however long it took to load");
}

#[test]
fn two_models_with_requests_for_both_are_loaded_a_few_times_and_not_for_every_request() {
    let mut b = Bench::new(1, 512);
    let (mut loads, mut granted, mut id) = (0, 0, 0);
    let mut loading: Option<(RunId, Instant)> = None;
    // Two clients: each asks again 100 ms after an answer, which takes 100 ms. Loading takes 2 s.
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
                actions.extend(b.ask_as(client as u64, id, model));
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
                Action::Stop(run) => actions.extend(b.gone(run)),
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
fn a_small_model_passes_a_large_one_that_waits_for_room() {
    let mut b = Bench::with_memory(10 * GB, 10 * GB);
    b.ask(1, "a");
    b.load(1, 6 * GB);
    assert_eq!(b.ask(2, "large"), [start(2, "large")]);
    assert_eq!(b.event(planned(2, 8 * GB)), [], "a is busy");
    assert_eq!(b.scheduler.view(b.now)[1].phase, Phase::Waiting);
    assert_eq!(b.ask(3, "small"), [start(3, "small")]);
    assert_eq!(b.event(planned(3, GB)), [Action::Load(3)]);
    assert_eq!(b.event(Event::Loaded(3, 4096, GB)), [Action::Grant(3, 3)]);
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.gone(1), [Action::Load(2)], "beside the small one");
    assert_eq!(b.event(Event::Loaded(2, 4096, 8 * GB)), [Action::Grant(2, 2)]);
}

#[test]
fn who_does_not_fit_beside_the_others_does_not_pass_and_is_served_in_turn() {
    let mut b = Bench::with_memory(10 * GB, 10 * GB);
    b.ask(1, "a");
    b.load(1, 6 * GB);
    b.ask(2, "large");
    b.event(planned(2, 8 * GB));
    b.ask(3, "second");
    assert_eq!(b.event(planned(3, 5 * GB)), [Action::Stop(3)]);
    assert_eq!(b.gone(3), [], "it is not tried over and over");
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.gone(1), [Action::Load(2)]);
    assert_eq!(b.event(Event::Loaded(2, 4096, 8 * GB)), [Action::Grant(2, 2), start(4, "second")]);
}

#[test]
fn a_large_model_is_passed_for_a_while_only() {
    let mut b = Bench::with_memory(10 * GB, 10 * GB);
    b.scheduler =
        Scheduler::new(Limits { max_loaded: 30, max_queue: 512, keep_alive: KeepAlive::Forever });
    b.event(Event::Memory(Memory { total: 10 * GB, available: 10 * GB }));
    b.ask(1, "a");
    b.load(1, 6 * GB);
    b.ask(2, "large");
    b.event(planned(2, 8 * GB));
    b.pass(14);
    assert_eq!(b.ask(3, "small"), [start(3, "small")]);
    b.load(3, GB);
    b.pass(1);
    assert_eq!(b.ask(4, "tiny"), []);
    b.finish(3);
    assert_eq!(b.finish(1), [Action::Stop(1)]);
    assert_eq!(b.gone(1), [Action::Load(2)]);
}

#[test]
fn a_passing_model_that_nobody_waits_for_any_more_is_stopped() {
    let mut b = Bench::with_memory(10 * GB, 10 * GB);
    b.ask(1, "a");
    b.load(1, 6 * GB);
    b.ask(2, "large");
    b.event(planned(2, 8 * GB));
    b.ask(3, "small");
    assert_eq!(b.finish(3), [Action::Stop(3)]);
    assert_eq!(b.finish(2), [Action::Stop(2)]);
    b.gone(2);
    b.gone(3);
    assert_eq!(b.loaded(), ["a"]);
    assert_eq!(b.ask(4, "a"), [Action::Grant(4, 1)]);
}

#[test]
fn a_load_that_fails_is_the_error_of_all_that_wait_for_the_same() {
    let mut b = Bench::new(3, 512);
    let other = LoadOptions { num_thread: 7, ..options() };
    b.ask(1, "bad");
    b.ask(2, "bad");
    b.event(Event::Request(Request { options: other.clone(), ..request(3, "bad") }));
    let exit = Exit { reason: "unknown architecture".into(), out_of_memory: false };
    let refused = |id| Action::Refuse(id, Refusal::LoadFailed(exit.clone()));
    let again = Action::Start(2, Key("bad".into()), other);
    assert_eq!(b.event(Event::Exited(1, exit.clone())), [refused(1), refused(2), again]);
}

#[test]
fn what_memory_was_too_small_for_is_not_asked_for_again_with_every_request() {
    use crate::speculate::Draft;
    let mut b = Bench::with_memory(8 * GB, 8 * GB);
    let draft = Draft { name: "small".into(), weights: None, optional: true };
    let options = LoadOptions { draft: Some(draft), ..options() };
    let ask = |id| Event::Request(Request { options: options.clone(), ..request(id, "a") });
    b.event(ask(1));
    let without = LoadOptions { draft: None, ..options.clone() };
    assert_eq!(b.event(planned(1, 9 * GB)), [Action::Replan(1, without)]);
    assert_eq!(b.event(planned(1, 7 * GB)), [Action::Load(1)]);
    assert_eq!(b.event(Event::Loaded(1, 4096, 7 * GB)), [Action::Grant(1, 1)]);
    assert_eq!(b.event(ask(2)), [Action::Grant(2, 1)], "as if it had its draft model");
}
