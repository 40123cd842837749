//! Block formats: there and back, and against recorded values.

mod roundtrip;
mod vectors;
