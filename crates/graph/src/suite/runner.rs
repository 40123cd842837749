//! Runs a case on a backend.

use std::collections::HashMap;

use super::compare::{Expected, mismatch};
use super::problem::{Command, Model};
use super::{Case, CaseError, Precision};
use crate::backend::{Backend, BackendError, ProgramId, StepInput};
use crate::graph::Graph;
use crate::plan::{Capacity, Plan};

/// See [`Case::run`].
pub(super) fn run(
    case: &Case,
    backend: &mut dyn Backend,
    precision: Precision,
) -> Result<(), CaseError> {
    let _notice = PanicNotice(&case.name);
    let Model { graph, weights, ropes, cache, states, commands } = (case.problem)().finish();
    let refused = |error: BackendError| refusal(case, &error);
    backend.load_weights(weights, ropes).map_err(refused)?;
    if let Some(cache) = cache {
        backend.create_cache(cache).map_err(refused)?;
    }
    backend.create_states(states).map_err(refused)?;
    let mut programs = Programs { graph, compiled: HashMap::new() };
    let steps = commands.iter().filter(|command| matches!(command, Command::Run { .. })).count();
    let mut step = 0;
    for command in &commands {
        match command {
            Command::Run { input, expected, extra } => {
                step += 1;
                let program = programs.program(backend, input).map_err(refused)?;
                backend.run(program, input);
                let (cols, tolerance) = (programs.cols(), case.tolerance(precision));
                if let Some(reason) = wrong_result(backend, (expected, extra), cols, tolerance) {
                    let at = if steps > 1 { format!("step {step}: ") } else { String::new() };
                    let (case, reason) = (case.name.clone(), format!("{at}{reason}"));
                    return Err(CaseError::Failed { case, reason });
                }
            }
            Command::CopyPage { from, to } => backend.copy_page(*from, *to),
            Command::CopyWindowPage { from, to } => backend.copy_window_page(*from, *to),
            Command::CopyState { from, to } => backend.copy_state(*from, *to),
        }
    }
    Ok(())
}

/// Why the result of `cols` columns or an extra output of the last step is wrong.
fn wrong_result(
    backend: &dyn Backend,
    (expected, extra): (&Expected, &[Expected]),
    cols: usize,
    tolerance: f64,
) -> Option<String> {
    let wrong_extra = |(i, expected): (usize, &Expected)| {
        let reason = mismatch(backend.extra_output(i), expected, 1, 0.0)?;
        Some(format!("extra output {i}: {reason}"))
    };
    mismatch(backend.result(), expected, cols, tolerance)
        .or_else(|| extra.iter().enumerate().find_map(wrong_extra))
}

fn refusal(case: &Case, error: &BackendError) -> CaseError {
    let (case, reason) = (case.name.clone(), error.to_string());
    match error {
        BackendError::UnsupportedType { .. } | BackendError::CacheType { .. } => {
            CaseError::Unsupported { case, reason }
        }
        _ => CaseError::Failed { case, reason },
    }
}

/// Programs of the size classes of a case.
struct Programs {
    graph: Graph,
    compiled: HashMap<Capacity, ProgramId>,
}

impl Programs {
    /// Columns of the result.
    fn cols(&self) -> usize {
        self.graph.value(self.graph.result().expect("a case has a result")).cols
    }

    fn program(
        &mut self,
        backend: &mut dyn Backend,
        input: &StepInput,
    ) -> Result<ProgramId, BackendError> {
        let capacity = Capacity::class(input.tokens.len(), input.outputs.len());
        if let Some(&program) = self.compiled.get(&capacity) {
            return Ok(program);
        }
        let program = backend.compile(Plan::new(self.graph.clone(), capacity))?;
        self.compiled.insert(capacity, program);
        Ok(program)
    }
}

/// Prints the name of the case if the backend panics.
struct PanicNotice<'a>(&'a str);

impl Drop for PanicNotice<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("panic in the case: {}", self.0);
        }
    }
}
