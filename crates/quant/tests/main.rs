//! Tests of block formats: round trips, and comparison with recorded values.

mod roundtrip;
mod vectors;
