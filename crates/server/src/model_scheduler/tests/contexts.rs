//! Context sizes: the model's full context, limited by memory.

use super::*;

/// A plan with 100 MB per 1024 tokens of context and `rest` GB for everything else.
fn plan_of(run: RunnerId, rest: u64, options: &LoadOptions) -> Event {
    let cache = u64::from(options.cache) / 1024 * 100 * (GB / 1000);
    Event::Planned(run, MemoryNeed { total: rest * GB + cache, cache })
}

fn with_context(tokens: u32) -> LoadOptions {
    LoadOptions { num_ctx: tokens, cache: tokens, ..options() }
}

/// Plans a runner until it is loaded or rejected. Returns its context and the last actions.
fn settle(
    b: &mut Fixture,
    run: RunnerId,
    rest: u64,
    mut options: LoadOptions,
) -> (u32, Vec<Action>) {
    loop {
        let actions = b.event(plan_of(run, rest, &options));
        match &actions[..] {
            [Action::Replan(_, less)] => options = less.clone(),
            _ => return (options.num_ctx, actions),
        }
    }
}

fn request_with(b: &mut Fixture, id: RequestId, model: &str, options: &LoadOptions) -> Vec<Action> {
    b.event(Event::Request(Request { options: options.clone(), ..request(id, model) }))
}

#[test]
fn a_model_has_its_full_context_where_twice_as_much_fits() {
    let mut b = Fixture::with_memory(64 * GB, 64 * GB);
    let all = with_context(131072);
    request_with(&mut b, 1, "a", &all);
    let (context, actions) = settle(&mut b, 1, 4, all);
    assert_eq!((context, actions), (131072, vec![Action::Load(1)]));
}

#[test]
fn long_contexts_take_at_most_half_of_the_free_memory() {
    // The full context takes 12.8 GB, half 6.4 GB, a quarter 3.2 GB.
    for (memory, expected) in [(32, 131072), (20, 65536), (10, 32768), (6, 16384), (5, 8192)] {
        let mut b = Fixture::with_memory(memory * GB, memory * GB);
        request_with(&mut b, 1, "a", &with_context(131072));
        let (context, actions) = settle(&mut b, 1, 4, with_context(131072));
        assert_eq!((context, actions), (expected, vec![Action::Load(1)]), "{memory} GB");
    }
}

#[test]
fn the_planned_context_is_that_of_a_load() {
    for rest in [1, 4, 9] {
        for memory in [5, 6, 8, 10, 14, 20, 32, 64] {
            let mut b = Fixture::with_memory(memory * GB, memory * GB);
            request_with(&mut b, 1, "a", &with_context(131072));
            let (loaded, actions) = settle(&mut b, 1, rest, with_context(131072));
            let loaded = (actions == [Action::Load(1)]).then_some(loaded);
            let total = Memory { total: memory * GB, available: memory * GB };
            let plan = |options: &LoadOptions| match plan_of(1, rest, options) {
                Event::Planned(_, need) => Some(need),
                _ => None,
            };
            let planned_size = planned_context(with_context(131072), total, 0, plan);
            assert_eq!(planned_size, loaded, "{rest} GB of weights, {memory} GB of memory");
        }
    }
}

#[test]
fn the_planned_context_counts_models_that_can_be_unloaded() {
    let plan = |options: &LoadOptions| match plan_of(1, 4, options) {
        Event::Planned(_, need) => Some(need),
        _ => None,
    };
    let planned_size = |memory: u64, others: u64| {
        let memory = Memory { total: memory * GB, available: (memory - others) * GB };
        planned_context(with_context(131072), memory, others * GB, plan)
    };
    assert_eq!(
        (planned_size(20, 8), planned_size(14, 8)),
        (Some(32768), Some(32768)),
        "as when the other one is there"
    );
    assert_eq!(planned_size(20, 0), Some(65536));
    assert_eq!(planned_size(3, 0), None, "larger than the memory");
}

#[test]
fn only_the_first_32768_tokens_of_context_evict_other_models() {
    let mut b = Fixture::with_memory(20 * GB, 20 * GB);
    b.request(1, "a");
    b.load(1, 8 * GB);
    b.finish(1);
    request_with(&mut b, 2, "b", &with_context(131072));
    assert_eq!(settle(&mut b, 2, 4, with_context(131072)), (32768, vec![Action::Load(2)]));

    let mut b = Fixture::with_memory(14 * GB, 14 * GB);
    b.request(1, "a");
    b.load(1, 8 * GB);
    b.finish(1);
    request_with(&mut b, 2, "b", &with_context(131072));
    assert_eq!(settle(&mut b, 2, 4, with_context(131072)), (32768, vec![Action::Stop(1)]));
    assert_eq!(b.exit(1), [Action::Load(2)]);
}

#[test]
fn requests_of_any_context_share_a_runner() {
    for actual in [1000, 4096, 100_000] {
        let mut b = Fixture::new(3, 512);
        let asked = with_context(8192);
        request_with(&mut b, 1, "a", &asked);
        b.event(planned(1, GB));
        assert_eq!(b.event(Event::Loaded(1, actual, GB)), [Action::Grant(1, 1)], "{actual}");
        assert_eq!(request_with(&mut b, 2, "a", &asked), [Action::Grant(2, 1)], "{actual}");
        let shown = |b: &Fixture| b.scheduler.view(b.now)[0].context;
        assert_eq!(shown(&b), actual, "what the runner says is shown");
        for (asked, context) in [(300, 300), (1_000_000, actual)] {
            let limited = Request { num_ctx: Some(asked), ..request(u64::from(asked), "a") };
            b.event(Event::Request(limited));
            assert_eq!(shown(&b), context, "or the last request's limit");
        }
    }
}

#[test]
fn a_load_out_of_memory_reduces_the_context_then_evicts_then_fails() {
    let large = with_context(262144);
    let mut b = Fixture::new(3, 512);
    b.request(9, "busy");
    b.load(1, GB);
    request_with(&mut b, 1, "a", &large);
    b.event(planned(2, GB));
    let smaller = with_context(32768);
    let again = |run| Action::Start(run, ModelKey("a".into()), smaller.clone());
    assert_eq!(b.event(Event::Exited(2, oom())), [again(3)]);
    b.event(planned(3, GB));
    assert_eq!(
        b.event(Event::Exited(3, oom())),
        [again(4)],
        "the other is planned_size to go, and still there"
    );
    assert_eq!(b.finish(9), [Action::Stop(1)]);
    b.exit(1);
    b.event(planned(4, GB));
    assert_eq!(b.event(Event::Exited(4, oom())), [Action::Refuse(1, Refusal::LoadFailed(oom()))]);
}

#[test]
fn a_first_load_out_of_memory_is_retried_with_less_context_and_then_fails() {
    let mut b = Fixture::new(3, 512);
    request_with(&mut b, 1, "a", &with_context(131072));
    b.event(planned(1, GB));
    assert_eq!(
        b.event(Event::Exited(1, oom())),
        [Action::Start(2, ModelKey("a".into()), with_context(32768))]
    );
    b.event(planned(2, GB));
    assert_eq!(b.event(Event::Exited(2, oom())), [Action::Refuse(1, Refusal::LoadFailed(oom()))]);
}

#[test]
fn a_reduced_model_serves_requests_that_wait_for_the_full_context() {
    let large = with_context(131072);
    let mut b = Fixture::new(3, 512);
    let ask = |id| Event::Request(Request { options: large.clone(), ..request(id, "a") });
    b.event(ask(1));
    b.event(ask(2));
    b.event(planned(1, GB));
    let smaller = with_context(32768);
    assert_eq!(b.event(Event::Exited(1, oom())), [Action::Start(2, ModelKey("a".into()), smaller)]);
    b.event(planned(2, GB));
    let granted = [Action::Grant(1, 2), Action::Grant(2, 2)];
    assert_eq!(b.event(Event::Loaded(2, 32768, GB)), granted);
}
