//! Computes pieces of a file on several threads and hands them to the caller in order. Callers
//! encode tensors with it, because a [`DataWriter`](crate::DataWriter) takes bytes in order.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Pieces of each thread that may be finished but not yet taken. This bounds the memory while one
/// slow piece delays the others.
const PIECES_AHEAD_PER_THREAD: usize = 4;

/// Runs `make` for `count` pieces on `threads` threads, and `take` for each result in order on the
/// caller's thread.
///
/// # Errors
/// The first error of `make` or `take`, which ends the work.
///
/// # Panics
/// `make` or `take` panics.
pub fn run_in_order<T: Send, E: Send>(
    threads: usize,
    count: usize,
    make: impl Fn(usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let threads = threads.clamp(1, count.max(1));
    if threads == 1 {
        return (0..count).try_for_each(|at| take(at, make(at)?));
    }
    std::thread::scope(|scope| {
        let (order, orders) = mpsc::channel();
        let (done, made) = mpsc::channel();
        // Only the threads own the receiver: it is dropped when the last thread ends.
        let orders = Arc::new(Mutex::new(orders));
        let make = &make;
        for _ in 0..threads {
            let (done, orders) = (done.clone(), orders.clone());
            scope.spawn(move || {
                loop {
                    let next = orders.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    // The sender is gone: all pieces are done, or the work has failed.
                    let Ok(at) = next else { return };
                    // The panic is passed on to the caller, who waits for this piece.
                    if done.send((at, catch_unwind(AssertUnwindSafe(|| make(at))))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(done);
        let ahead = threads * PIECES_AHEAD_PER_THREAD;
        for at in 0..ahead.min(count) {
            let _ = order.send(at);
        }
        let mut waiting = BTreeMap::new();
        for at in 0..count {
            let piece = loop {
                if let Some(piece) = waiting.remove(&at) {
                    break piece;
                }
                match made.recv() {
                    Ok((number, piece)) => drop(waiting.insert(number, piece)),
                    Err(_) => unreachable!("threads live as long as orders may come"),
                }
            };
            take(at, piece.unwrap_or_else(|panic| resume_unwind(panic))?)?;
            if at + ahead < count {
                let _ = order.send(at + ahead);
            }
        }
        Ok(())
    })
}

/// Number of threads to use; a request of 0 means one for each core.
pub fn thread_count(requested: usize) -> usize {
    match requested {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn pieces_are_delivered_in_order_and_few_are_computed_ahead() {
        let (begun, mut taken) = (AtomicUsize::new(0), Vec::new());
        let make = |at: usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            // Every tenth piece is slow.
            std::thread::sleep(Duration::from_micros(if at.is_multiple_of(10) {
                2000
            } else {
                10
            }));
            Ok::<_, ()>(at * at)
        };
        run_in_order(3, 100, make, |at, piece| {
            assert!(begun.load(Ordering::SeqCst) <= at + 3 * PIECES_AHEAD_PER_THREAD);
            taken.push(piece);
            Ok(())
        })
        .unwrap();
        assert_eq!(taken, (0..100).map(|at| at * at).collect::<Vec<_>>());
        assert_eq!(run_in_order(4, 0, |_| Err::<(), _>("none"), |_, ()| Ok(())), Ok(()));
    }

    #[test]
    fn the_first_error_ends_the_work() {
        for threads in [1, 4] {
            let made = AtomicUsize::new(0);
            let make = |at: usize| {
                made.fetch_add(1, Ordering::SeqCst);
                if at == 20 { Err("made") } else { Ok(at) }
            };
            assert_eq!(run_in_order(threads, 10_000, make, |_, _| Ok(())), Err("made"));
            assert_eq!(
                run_in_order(threads, 10_000, Ok, |at, _| if at == 5 {
                    Err("taken")
                } else {
                    Ok(())
                }),
                Err("taken")
            );
            assert!(made.into_inner() < 100);
        }
    }

    #[test]
    #[should_panic = "number 7"]
    fn a_panic_is_passed_on() {
        let make = |at: usize| if at == 7 { panic!("number {at}") } else { Ok::<_, ()>(at) };
        let _ = run_in_order(2, 20, make, |_, _| Ok(()));
    }
}
