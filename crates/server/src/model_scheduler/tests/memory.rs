//! When decisions depend on the machine's memory.

use super::*;

/// A deterministic pseudo-random generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Draws the next event after these actions, preferably one of a runner or request.
fn next(
    random: &mut Random,
    pending: &mut Vec<Action>,
    running: &mut Vec<RequestId>,
    id: RequestId,
) -> Event {
    while !pending.is_empty() && random.below(3) > 0 {
        match pending.swap_remove(random.below(pending.len() as u64) as usize) {
            Action::Start(run, ..) | Action::Replan(run, _) => {
                let cache = random.below(4) * GB;
                return Event::Planned(
                    run,
                    MemoryNeed { total: cache + (1 + random.below(12)) * GB, cache },
                );
            }
            Action::Load(run) if random.below(8) == 0 => return Event::Exited(run, oom()),
            Action::Load(run) => return Event::Loaded(run, 4096, (1 + random.below(12)) * GB),
            Action::Stop(run) => return Event::Exited(run, RunnerExit::default()),
            Action::Grant(id, _) => running.push(id),
            Action::Refuse(..) => {}
        }
    }
    match random.below(6) {
        0 | 1 if !running.is_empty() => {
            Event::Finished(running.swap_remove(random.below(running.len() as u64) as usize))
        }
        5 => Event::Tick,
        _ => {
            let model = format!("model {}", random.below(5));
            Event::Request(Request { client: random.below(3), ..request(id, &model) })
        }
    }
}

#[test]
fn memory_readings_without_a_waiting_plan_change_no_decision() {
    for seed in 0..200 {
        let (mut always, mut sparing) = (Fixture::new(3, 8), Fixture::new(3, 8));
        let (mut random, mut pending, mut running, mut spared) =
            (Random(seed), Vec::new(), Vec::new(), 0);
        for id in 0..300 {
            let event = next(&mut random, &mut pending, &mut running, id);
            let memory = Memory { total: 24 * GB, available: random.below(24) * GB };
            if matches!(event, Event::Request(_) | Event::Planned(..) | Event::Exited(..)) {
                let weighed =
                    matches!(event, Event::Planned(..)) || sparing.scheduler.needs_memory_reading();
                spared += usize::from(!weighed);
                let memory = Event::Memory(memory);
                let decided = always.event(memory.clone());
                let also = if weighed { sparing.event(memory) } else { sparing.event(Event::Tick) };
                assert_eq!(decided, also, "seed {seed}, event {id}");
                pending.extend(decided);
            }
            let decided = always.event(event.clone());
            assert_eq!(decided, sparing.event(event), "seed {seed}, event {id}");
            pending.extend(decided);
            let passed = Duration::from_millis(random.below(3000));
            (always.now, sparing.now) = (always.now + passed, sparing.now + passed);
        }
        assert!(spared > 30, "only {spared} readings are spared");
    }
}
