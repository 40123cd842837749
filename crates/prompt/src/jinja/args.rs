//! Evaluated arguments of a call.

use std::sync::Arc;

use super::value::{EvalResult, Value};
use crate::limits::Budget;

#[derive(Debug, Default, Clone)]
pub(super) struct CallArgs {
    pub(super) pos: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl CallArgs {
    pub(super) fn positional(pos: Vec<Value>) -> Self {
        CallArgs { pos, named: Vec::new() }
    }

    /// Puts the arguments in the order of `params`. Missing arguments are `None`.
    pub(super) fn bind<const N: usize>(
        &self,
        function: &str,
        params: [&str; N],
    ) -> EvalResult<[Option<Value>; N]> {
        if self.pos.len() > N {
            return Err(format!(
                "{function}() takes at most {N} arguments ({} given)",
                self.pos.len()
            )
            .into());
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(&self.pos) {
            *slot = Some(value.clone());
        }
        for (name, value) in &self.named {
            match params.iter().position(|p| **p == **name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value.clone()),
                Some(_) => {
                    return Err(
                        format!("{function}() got multiple values for argument '{name}'").into()
                    );
                }
                None => {
                    return Err(format!(
                        "{function}() got an unexpected keyword argument '{name}'"
                    )
                    .into());
                }
            }
        }
        Ok(bound)
    }

    /// The only argument. Any other number of arguments is an error.
    pub(super) fn one(&self, function: &str) -> EvalResult {
        match (&self.pos[..], &self.named[..]) {
            ([value], []) => Ok(value.clone()),
            _ => {
                Err(format!("{function}() takes exactly one argument ({} given)", self.len())
                    .into())
            }
        }
    }

    pub(super) fn none(&self, function: &str) -> EvalResult<()> {
        match self.len() {
            0 => Ok(()),
            n => Err(format!("{function}() takes no arguments ({n} given)").into()),
        }
    }

    /// Charges for reading each argument once, and for looking up named arguments.
    pub(super) fn charge(&self, budget: &mut Budget) -> EvalResult<()> {
        let named = self.named.iter().map(|(_, value)| value);
        let sizes = self.pos.iter().chain(named).map(Value::size);
        budget.charge_read(sizes.fold(self.named.len(), usize::saturating_add))?;
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.pos.len() + self.named.len()
    }
}

/// The text of a string argument.
pub(super) fn text(value: &Value) -> EvalResult<Arc<str>> {
    match value {
        Value::Str(s) => Ok(Arc::clone(s)),
        Value::Undefined(message) => Err(message.to_string().into()),
        other => Err(format!("expected str, got {}", other.type_name()).into()),
    }
}
