//! Clients beside each other: turns, and places in a full queue.

use super::*;

/// Serves whatever is started until nothing waits: each model is loaded, its requests end at once and it is sent away for
/// the next. Returns the requests in the order in which they were granted.
fn serve(b: &mut Bench, mut actions: Vec<Action>) -> Vec<RequestId> {
    let mut granted = Vec::new();
    while let Some(action) = actions.pop() {
        let more = match action {
            Action::Start(run, ..) => b.event(planned(run, GB)),
            Action::Load(run) => b.event(Event::Loaded(run, 4096, GB)),
            Action::Stop(run) => b.gone(run),
            Action::Grant(id, _) => {
                granted.push(id);
                b.finish(id)
            }
            other => panic!("{other:?}"),
        };
        actions.splice(0..0, more);
    }
    granted
}

#[test]
fn a_client_with_fifty_requests_does_not_hold_up_another() {
    let mut b = Bench::new(1, 512);
    let mut actions = Vec::new();
    for id in 0..50 {
        actions.extend(b.ask_as(1, id, &format!("model {id}")));
    }
    actions.extend(b.ask_as(2, 100, "another"));
    let granted = serve(&mut b, actions);
    assert_eq!(granted.len(), 51);
    let place = granted.iter().position(|id| *id == 100).unwrap();
    assert!(place <= 2, "it was number {place}");
    let first: Vec<_> = granted.iter().filter(|id| **id < 50).copied().collect();
    assert_eq!(first, (0..50).collect::<Vec<_>>(), "those of a client stay in order");
}

#[test]
fn clients_take_turns_however_many_requests_they_have() {
    let mut b = Bench::new(1, 512);
    let mut actions = Vec::new();
    for id in 0..20 {
        actions.extend(b.ask_as(1, id, &format!("model {id}")));
    }
    for id in 100..105 {
        actions.extend(b.ask_as(2, id, &format!("model {id}")));
        actions.extend(b.ask_as(3, 100 + id, &format!("model {}", 100 + id)));
    }
    let granted = serve(&mut b, actions);
    let of = |client: u64| move |id: &&RequestId| **id / 100 + 1 == client;
    for served in [6, 9, 12, 15] {
        let counts = [1, 2, 3].map(|client| granted[..served].iter().filter(of(client)).count());
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most - least <= 2, "{counts:?} of the first {served}");
    }
}

#[test]
fn a_client_that_comes_late_does_not_hold_up_those_who_were_served_before() {
    let mut b = Bench::new(1, 512);
    let mut actions = Vec::new();
    for id in 0..10 {
        actions.extend(b.ask_as(1, id, &format!("model {id}")));
    }
    // Three loads later somebody comes with as many.
    for run in 1..=3 {
        actions.extend(b.load(run, GB));
        b.finish(run - 1);
        actions.extend(b.gone(run));
    }
    let started = |actions: &[Action]| matches!(actions.last(), Some(Action::Start(4, ..)));
    assert!(started(&actions), "{actions:?}");
    for id in 100..110 {
        b.ask_as(2, id, &format!("model {id}"));
    }
    let granted = serve(&mut b, vec![actions.pop().unwrap()]);
    let late = granted[..8].iter().filter(|id| **id >= 100).count();
    assert!((3..=5).contains(&late), "{granted:?}");
}

#[test]
fn a_full_queue_has_a_place_for_who_has_none_and_the_fullest_client_gives_it() {
    let mut b = Bench::new(3, 4);
    b.ask_as(1, 1, "a");
    for id in 2..=5 {
        assert_eq!(b.ask_as(1, id, "b"), []);
    }
    assert_eq!(
        b.ask_as(1, 6, "b"),
        [Action::Refuse(6, Refusal::Busy)],
        "its own are not pushed out"
    );
    assert_eq!(b.ask_as(2, 7, "c"), [Action::Refuse(5, Refusal::Busy)], "the newest makes place");
    assert_eq!(
        b.ask_as(2, 8, "c"),
        [Action::Refuse(4, Refusal::Busy)],
        "as long as the other has more"
    );
    assert_eq!(b.ask_as(2, 9, "c"), [Action::Refuse(9, Refusal::Busy)]);
    assert_eq!(b.scheduler.waiting(), 5, "four, and the one whose model is being loaded");
}

#[test]
fn the_limit_holds_whoever_asks() {
    let mut b = Bench::new(1, 8);
    for client in 0..100 {
        b.ask_as(client, client, &format!("model {client}"));
        assert!(b.scheduler.waiting() <= 9);
    }
}

#[test]
fn a_request_whose_load_is_under_way_is_not_pushed_out() {
    let mut b = Bench::new(3, 2);
    for id in 1..=3 {
        b.ask_as(1, id, "a");
    }
    assert_eq!(b.ask_as(2, 4, "b"), [Action::Refuse(3, Refusal::Busy)]);
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1), Action::Grant(2, 1), start(2, "b")]);
}
