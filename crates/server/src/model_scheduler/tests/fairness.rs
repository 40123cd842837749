//! Fairness between clients, in the order of loads and in a full queue.

use super::*;

/// Serves all requests: each model is loaded, its requests end at once, and it is evicted for the
/// next. Returns the requests in the order of their grants.
fn serve(b: &mut Fixture, mut actions: Vec<Action>) -> Vec<RequestId> {
    let mut granted = Vec::new();
    while let Some(action) = actions.pop() {
        let more = match action {
            Action::Start(run, ..) => b.event(planned(run, GB)),
            Action::Load(run) => b.event(Event::Loaded(run, 4096, GB)),
            Action::Stop(run) => b.exit(run),
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
fn a_client_with_fifty_requests_does_not_delay_another() {
    let mut b = Fixture::new(1, 512);
    let mut actions = Vec::new();
    for id in 0..50 {
        actions.extend(b.request_as(1, id, &format!("model {id}")));
    }
    actions.extend(b.request_as(2, 100, "another"));
    let granted = serve(&mut b, actions);
    assert_eq!(granted.len(), 51);
    let place = granted.iter().position(|id| *id == 100).unwrap();
    assert!(place <= 2, "it was number {place}");
    let first: Vec<_> = granted.iter().filter(|id| **id < 50).copied().collect();
    assert_eq!(first, (0..50).collect::<Vec<_>>(), "those of a client stay in order");
}

#[test]
fn clients_are_served_equally_regardless_of_their_number_of_requests() {
    let mut b = Fixture::new(1, 512);
    let mut actions = Vec::new();
    for id in 0..20 {
        actions.extend(b.request_as(1, id, &format!("model {id}")));
    }
    for id in 100..105 {
        actions.extend(b.request_as(2, id, &format!("model {id}")));
        actions.extend(b.request_as(3, 100 + id, &format!("model {}", 100 + id)));
    }
    let granted = serve(&mut b, actions);
    let of = |client: u64| move |id: &&RequestId| **id / 100 + 1 == client;
    for served in [6, 9, 12, 15] {
        let counts = [1, 2, 3].map(|client| granted[..served].iter().filter(of(client)).count());
        let (min, max) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(max - min <= 2, "{counts:?} of the first {served}");
    }
}

#[test]
fn a_late_client_does_not_delay_earlier_ones() {
    let mut b = Fixture::new(1, 512);
    let mut actions = Vec::new();
    for id in 0..10 {
        actions.extend(b.request_as(1, id, &format!("model {id}")));
    }
    // After three loads a second client sends as many requests.
    for run in 1..=3 {
        actions.extend(b.load(run, GB));
        b.finish(run - 1);
        actions.extend(b.exit(run));
    }
    let started = |actions: &[Action]| matches!(actions.last(), Some(Action::Start(4, ..)));
    assert!(started(&actions), "{actions:?}");
    for id in 100..110 {
        b.request_as(2, id, &format!("model {id}"));
    }
    let granted = serve(&mut b, vec![actions.pop().unwrap()]);
    let late = granted[..8].iter().filter(|id| **id >= 100).count();
    assert!((3..=5).contains(&late), "{granted:?}");
}

#[test]
fn a_full_queue_displaces_a_request_of_the_busiest_client_for_a_new_client() {
    let mut b = Fixture::new(3, 4);
    b.request_as(1, 1, "a");
    for id in 2..=5 {
        assert_eq!(b.request_as(1, id, "b"), []);
    }
    assert_eq!(
        b.request_as(1, 6, "b"),
        [Action::Refuse(6, Refusal::Busy)],
        "its own are not pushed out"
    );
    assert_eq!(
        b.request_as(2, 7, "c"),
        [Action::Refuse(5, Refusal::Busy)],
        "the newest makes place"
    );
    assert_eq!(
        b.request_as(2, 8, "c"),
        [Action::Refuse(4, Refusal::Busy)],
        "as long as the other has more"
    );
    assert_eq!(b.request_as(2, 9, "c"), [Action::Refuse(9, Refusal::Busy)]);
    assert_eq!(b.scheduler.waiting(), 5, "four, and the one whose model is being loaded");
}

#[test]
fn the_queue_limit_holds_for_all_clients_together() {
    let mut b = Fixture::new(1, 8);
    for client in 0..100 {
        b.request_as(client, client, &format!("model {client}"));
        assert!(b.scheduler.waiting() <= 9);
    }
}

#[test]
fn a_request_for_a_loading_model_is_not_displaced() {
    let mut b = Fixture::new(3, 2);
    for id in 1..=3 {
        b.request_as(1, id, "a");
    }
    assert_eq!(b.request_as(2, 4, "b"), [Action::Refuse(3, Refusal::Busy)]);
    assert_eq!(b.load(1, GB), [Action::Grant(1, 1), Action::Grant(2, 1), start(2, "b")]);
}
