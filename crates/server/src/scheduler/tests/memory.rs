//! When the machine's memory matters.

use super::*;

/// Numbers that look drawn, the same each time.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What happens next to a scheduler that has said these actions: those of runners and requests first.
fn next(
    drawn: &mut Drawn,
    said: &mut Vec<Action>,
    running: &mut Vec<RequestId>,
    id: RequestId,
) -> Event {
    while !said.is_empty() && drawn.below(3) > 0 {
        match said.swap_remove(drawn.below(said.len() as u64) as usize) {
            Action::Start(run, ..) | Action::Replan(run, _) => {
                let cache = drawn.below(4) * GB;
                return Event::Planned(
                    run,
                    Need { total: cache + (1 + drawn.below(12)) * GB, cache },
                );
            }
            Action::Load(run) if drawn.below(8) == 0 => return Event::Exited(run, oom()),
            Action::Load(run) => return Event::Loaded(run, 4096, (1 + drawn.below(12)) * GB),
            Action::Stop(run) => return Event::Exited(run, Exit::default()),
            Action::Grant(id, _) => running.push(id),
            Action::Refuse(..) => {}
        }
    }
    match drawn.below(6) {
        0 | 1 if !running.is_empty() => {
            Event::Finished(running.swap_remove(drawn.below(running.len() as u64) as usize))
        }
        5 => Event::Tick,
        _ => {
            let model = format!("model {}", drawn.below(5));
            Event::Request(Request { client: drawn.below(3), ..request(id, &model) })
        }
    }
}

#[test]
fn nothing_is_decided_by_memory_that_was_read_while_no_plan_was_weighed() {
    for seed in 0..200 {
        let (mut always, mut sparing) = (Bench::new(3, 8), Bench::new(3, 8));
        let (mut drawn, mut said, mut running, mut spared) =
            (Drawn(seed), Vec::new(), Vec::new(), 0);
        for id in 0..300 {
            let event = next(&mut drawn, &mut said, &mut running, id);
            let memory = Memory { total: 24 * GB, available: drawn.below(24) * GB };
            if matches!(event, Event::Request(_) | Event::Planned(..) | Event::Exited(..)) {
                let weighed =
                    matches!(event, Event::Planned(..)) || sparing.scheduler.weighs_memory();
                spared += usize::from(!weighed);
                let memory = Event::Memory(memory);
                let decided = always.event(memory.clone());
                let also = if weighed { sparing.event(memory) } else { sparing.event(Event::Tick) };
                assert_eq!(decided, also, "seed {seed}, event {id}");
                said.extend(decided);
            }
            let decided = always.event(event.clone());
            assert_eq!(decided, sparing.event(event), "seed {seed}, event {id}");
            said.extend(decided);
            let passed = Duration::from_millis(drawn.below(3000));
            (always.now, sparing.now) = (always.now + passed, sparing.now + passed);
        }
        assert!(spared > 50, "{spared}");
    }
}
