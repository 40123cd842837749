//! The tests of the crate that read recorded data: one program.

mod cases;
mod common;
mod hostile;
mod model_pixels;
mod resize;
mod speed;
