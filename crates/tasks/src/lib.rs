//! Starts tasks and blocking work on the tokio runtime.
//!
//! The compiler makes a copy of tokio's task code, about a thousand lines, for each type of future
//! or closure that it starts. The functions here put the work into a box first, so that all crates
//! share one copy for each function.

#![forbid(unsafe_code)]

use std::any::Any;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::{JoinError, JoinHandle};

type Boxed = Box<dyn Any + Send>;

/// Starts a task.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    spawn_boxed(Box::pin(task))
}

fn spawn_boxed(task: Pin<Box<dyn Future<Output = ()> + Send>>) -> JoinHandle<()> {
    tokio::spawn(task)
}

/// Runs a function on a thread that may wait for disks and locks.
///
/// The function begins at once, and runs to its end even if the caller drops the future.
///
/// # Panics
///
/// Outside of a tokio runtime.
pub fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Blocking<T> {
    let handle = run_boxed(Box::new(move || Box::new(work())));
    Blocking { handle, result: PhantomData }
}

/// The result of a function that runs on another thread.
///
/// It is a [`JoinError`] if the function panicked, or if the runtime stopped before the function
/// began.
#[must_use = "the function's result or panic is lost"]
pub struct Blocking<T> {
    handle: JoinHandle<Boxed>,
    result: PhantomData<fn() -> T>,
}

impl<T: 'static> Future for Blocking<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.handle).poll(context));
        Poll::Ready(result.map(|boxed| match boxed.downcast() {
            Ok(value) => *value,
            Err(_) => unreachable!("the function returns a T"),
        }))
    }
}

fn run_boxed(work: Box<dyn FnOnce() -> Boxed + Send>) -> JoinHandle<Boxed> {
    tokio::task::spawn_blocking(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_result_is_returned_with_its_type() {
        let text = String::from("a");
        assert_eq!(run_blocking(move || text + "b").await.unwrap(), "ab");
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let error = run_blocking(|| -> u8 { panic!("broken") }).await.unwrap_err();
        assert!(error.is_panic());
        assert_eq!(error.into_panic().downcast_ref(), Some(&"broken"));
    }

    #[tokio::test]
    async fn a_task_runs_without_being_awaited() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = spawn(async move { sender.send(1).unwrap() });
        assert_eq!(receiver.await, Ok(1));
        task.await.unwrap();
    }
}
