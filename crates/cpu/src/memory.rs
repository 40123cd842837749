//! Memory that the threads of a step share.
//!
//! The planner gives each value its own window of the arena, and each operation's tasks write disjoint parts of it; the
//! borrow checker sees neither, so access goes through raw pointers here and nowhere else.

use std::cell::UnsafeCell;

use puna_graph::Place;

/// A buffer of plain numbers that several threads read and write in disjoint parts.
pub struct Shared<T> {
    data: UnsafeCell<Vec<T>>,
}

// SAFETY: all access is through `slice` and `slice_mut`, whose callers keep parts disjoint and put barriers between writing
// and reading.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T: Copy + Default> Shared<T> {
    /// A buffer of `len` zeros.
    pub fn new(len: usize) -> Self {
        Self { data: UnsafeCell::new(vec![T::default(); len]) }
    }

    /// Makes room for at least `len` elements, keeping none.
    pub fn grow(&mut self, len: usize) {
        if self.data.get_mut().len() < len {
            *self.data.get_mut() = vec![T::default(); len];
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        // SAFETY: the vector itself changes only through `&mut self`.
        unsafe { (*self.data.get()).len() }
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    pub unsafe fn slice(&self, start: usize, len: usize) -> &[T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts((*self.data.get()).as_ptr().add(start), len) }
    }

    /// Elements `start .. start + len`, for writing.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the slice lives.
    #[allow(clippy::mut_from_ref)] // that is this type's purpose
    pub unsafe fn slice_mut(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds; the caller keeps others away.
        unsafe { std::slice::from_raw_parts_mut((*self.data.get()).as_mut_ptr().add(start), len) }
    }

    /// The address of `len` elements from `start` on; they are only named, not borrowed.
    pub fn address(&self, start: usize, len: usize) -> *mut T {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len()));
        // SAFETY: in bounds; no reference to elements is made.
        unsafe { (*self.data.get()).as_mut_ptr().add(start) }
    }

    /// All elements, when nobody else can have access.
    pub fn get_mut(&mut self) -> &mut [T] {
        self.data.get_mut()
    }
}

/// The values of a step.
pub type Arena = Shared<f32>;

impl Arena {
    /// Row `row` of a value.
    ///
    /// # Safety
    /// As for [`Shared::slice`].
    pub unsafe fn row(&self, place: &Place, row: usize) -> &[f32] {
        // SAFETY: passed on.
        unsafe { self.slice(place.start + row * place.stride, place.cols) }
    }

    /// Row `row` of a value, for writing.
    ///
    /// # Safety
    /// As for [`Shared::slice_mut`].
    #[allow(clippy::mut_from_ref)] // that is this type's purpose
    pub unsafe fn row_mut(&self, place: &Place, row: usize) -> &mut [f32] {
        // SAFETY: passed on.
        unsafe { self.slice_mut(place.start + row * place.stride, place.cols) }
    }
}
