//! Messages of caught panics.

use std::any::Any;

/// Message of a caught panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, panic_any};

    use super::*;

    #[test]
    fn messages_of_panics_are_returned_if_they_have_one() {
        let of = |panics: fn()| panic_message(&*catch_unwind(panics).unwrap_err()).to_owned();
        assert_eq!(of(|| panic!("plain")), "plain");
        assert_eq!(of(|| panic!("number {}", std::hint::black_box(7))), "number 7");
        assert_eq!(of(|| panic_any(7)), "a panic without a message");
    }
}
