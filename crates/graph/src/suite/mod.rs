//! Operation suite: runs every operation on a [`Backend`] and compares the results with references
//! in plain code.
//!
//! A [`Case`] is a small model around one operation: inputs from seeded random numbers, weights of
//! one type, some steps. The references compute in f64, follow the definitions of [`crate::Op`] and
//! share no code with any backend. Weights have the values that `puna-quant` decodes, which
//! published vectors check.
//!
//! A new backend runs [`run`] in a test of its own; `docs/howto/run-the-operation-suite.md`
//! describes how.

mod adapters;
mod attention;
mod attention_reference;
mod cache;
mod compare;
mod convolution;
mod coverage;
mod elementwise;
mod embed;
mod matmul;
mod moe;
mod moe_reference;
mod norm;
mod problem;
mod random;
mod recurrent;
mod recurrent_reference;
mod rope;
mod runner;
mod schedule;
mod sparse;
mod streams;

use std::fmt;

use problem::Problem;

pub use coverage::uncovered_operations;

use crate::backend::Backend;

/// How a backend multiplies activations with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// With f32 activations, and with sums in f32 or more.
    Full,
    /// With activations rounded to 8 bits with a scale for each 32 values, or to half precision.
    Reduced,
}

/// Largest normalized mean squared error of a result, by the precision of the backend.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tolerance {
    full: f64,
    reduced: f64,
}

impl Tolerance {
    /// The operation copies values.
    const EXACT: Self = Self::any(0.0);
    /// The operation computes in f32.
    const F32: Self = Self::any(1e-10);

    /// A tolerance with this error in full and in reduced precision.
    const fn any(error: f64) -> Self {
        Self { full: error, reduced: error }
    }

    fn of(self, precision: Precision) -> f64 {
        match precision {
            Precision::Full => self.full,
            Precision::Reduced => self.reduced,
        }
    }
}

/// One operation with one shape and one type.
pub struct Case {
    name: String,
    tolerance: Tolerance,
    problem: Box<dyn Fn() -> Problem + Send + Sync>,
}

impl Case {
    fn new(
        name: String,
        tolerance: Tolerance,
        problem: impl Fn() -> Problem + Send + Sync + 'static,
    ) -> Self {
        Self { name, tolerance, problem: Box::new(problem) }
    }

    /// The operation and its parameters, such as `matmul type=q4_k rows=7 width=768`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Largest normalized mean squared error of a row for a backend of this precision; 0 if values
    /// must be equal.
    pub fn tolerance(&self, precision: Precision) -> f64 {
        self.tolerance.of(precision)
    }

    /// Runs the case on a backend, which loses its weights, programs, cache and states.
    ///
    /// # Errors
    /// If the backend refuses the case, or a result differs from the reference.
    ///
    /// # Panics
    /// If the backend panics; the name of the case is then printed.
    pub fn run(&self, backend: &mut dyn Backend, precision: Precision) -> Result<(), CaseError> {
        runner::run(self, backend, precision)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Error of a case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// The backend has no kernel for a type of the case.
    #[error("{case}: unsupported: {reason}")]
    Unsupported {
        /// Name of the case.
        case: String,
        /// Message of the backend.
        reason: String,
    },
    /// The backend returned another error or a wrong result.
    #[error("{case}: {reason}")]
    Failed {
        /// Name of the case.
        case: String,
        /// What differs, such as `nmse 3e-2 > 2e-4`.
        reason: String,
    },
}

/// Outcome of a run of the suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of cases with right results.
    pub passed: usize,
    /// Cases whose types the backend does not support.
    pub unsupported: Vec<CaseError>,
    /// Cases with wrong results.
    pub failures: Vec<CaseError>,
}

impl Report {
    /// Whether no case failed and at least one passed.
    pub fn is_success(&self) -> bool {
        self.failures.is_empty() && self.passed > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in self.failures.iter().chain(&self.unsupported) {
            writeln!(f, "{error}")?;
        }
        let (failed, unsupported) = (self.failures.len(), self.unsupported.len());
        write!(f, "{} passed, {failed} failed, {unsupported} unsupported", self.passed)
    }
}

/// All cases, grouped by operation. Their inputs and references are computed when they run.
pub fn cases() -> Vec<Case> {
    let groups = [
        elementwise::cases(),
        norm::cases(),
        rope::cases(),
        embed::cases(),
        matmul::cases(),
        adapters::cases(),
        attention::cases(),
        cache::cases(),
        sparse::cases(),
        moe::cases(),
        convolution::cases(),
        recurrent::cases(),
        streams::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// Runs the cases whose names contain `filter` on a backend, which loses its weights, programs,
/// cache and states. An empty filter selects all cases.
///
/// # Panics
/// If the backend panics; the name of the case is then printed.
pub fn run(backend: &mut dyn Backend, precision: Precision, filter: &str) -> Report {
    let mut report = Report::default();
    for case in cases().iter().filter(|case| case.name.contains(filter)) {
        match case.run(backend, precision) {
            Ok(()) => report.passed += 1,
            Err(error @ CaseError::Unsupported { .. }) => report.unsupported.push(error),
            Err(error) => report.failures.push(error),
        }
    }
    report
}
