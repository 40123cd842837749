//! What the caller of the current request may do with models.
//!
//! [`Caller::may`] applies the rule of [`puna_mirror::Grant::may`], as `/v2` does. Routes get model
//! names from [`crate::models::names`], which calls it.

use std::sync::Arc;

use puna_mirror::{Grant, Permission, Resource};
use puna_store::{DEFAULT_HOST, ModelName};

use crate::canonical::ApiError;

tokio::task_local! {
    static CALLER: Caller;
}

/// What a request does with a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Runs, shows or lists it.
    Use,
    /// Creates, replaces, pulls, pushes, verifies or deletes it.
    Change,
}

impl From<Action> for puna_mirror::Action {
    fn from(action: Action) -> Self {
        match action {
            Action::Use => Self::Use,
            Action::Change => Self::Registry(Permission::Write),
        }
    }
}

/// What a route does with models. Every route states it; a test tries each with a confined key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelAccess {
    /// Uses no model.
    None,
    /// Uses the model that the request names.
    Use,
    /// Lists models; others than the caller may use are left out.
    List,
    /// Changes the model that the request names.
    Change,
    /// Acts on the whole server.
    Server,
}

/// Sender of a request, limited to the namespaces of its API key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    /// Patterns of namespaces, `name` or `name*`; empty permits all.
    namespaces: Arc<[String]>,
}

impl Caller {
    /// A caller with these namespaces; none permit all.
    pub(crate) fn new(namespaces: &[String]) -> Self {
        Self { namespaces: namespaces.into() }
    }

    /// The caller of the current request. Work that serves no request may do everything.
    pub(crate) fn current() -> Self {
        CALLER.try_with(Clone::clone).unwrap_or_default()
    }

    /// Awaits `answer` with this caller as the current one.
    pub(crate) async fn run_as<T>(self, answer: impl Future<Output = T>) -> T {
        CALLER.scope(self, answer).await
    }

    /// Patterns of the caller's namespaces; empty permits all.
    pub(crate) fn namespaces(&self) -> Arc<[String]> {
        self.namespaces.clone()
    }

    /// Whether the caller is limited to namespaces.
    pub(crate) fn is_confined(&self) -> bool {
        !self.namespaces.is_empty()
    }

    /// Whether the caller may do this with a model. Callers may change models of their namespaces,
    /// and use these and models without a namespace. The result does not reveal whether the model
    /// exists.
    pub(crate) fn may(&self, action: Action, model: &ModelName) -> bool {
        let namespace = match model.host().eq_ignore_ascii_case(DEFAULT_HOST) {
            true => model.namespace().to_owned(),
            false => format!("{}/{}", model.host(), model.namespace()),
        };
        self.grant().may(action.into(), Resource::Namespace(&namespace))
    }

    /// What the caller's key permits on a route for which it has the scope.
    fn grant(&self) -> Grant<'_> {
        Grant { permission: Permission::Admin, namespaces: &self.namespaces }
    }

    /// Permits a change of a model.
    ///
    /// # Errors
    /// Status 403 with the same text whether or not the model exists.
    pub(crate) fn check_change(&self, model: &ModelName) -> Result<(), ApiError> {
        match self.may(Action::Change, model) {
            true => Ok(()),
            false => Err(self.denied(&format!("may not change {model}"))),
        }
    }

    /// Permits an action on the whole server.
    ///
    /// # Errors
    /// Status 403 for callers that are limited to namespaces.
    pub(crate) fn check_server(&self) -> Result<(), ApiError> {
        match self.grant().may(Action::Change.into(), Resource::Server) {
            true => Ok(()),
            false => Err(self.denied("may not act on the models of all namespaces")),
        }
    }

    fn denied(&self, what: &str) -> ApiError {
        let own = self.namespaces.join(", ");
        ApiError::new(403, format!("the API key {what}: it is limited to the namespaces {own}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_caller_changes_its_namespaces_and_uses_common_models() {
        let may = |namespaces: &[&str], action, model: &str| {
            let namespaces: Vec<_> = namespaces.iter().map(|&text| text.to_owned()).collect();
            Caller::new(&namespaces).may(action, &model.parse().unwrap())
        };
        use Action::{Change, Use};
        for (namespaces, model, uses, changes) in [
            (&[][..], "anna/m", true, true),
            (&["bob"], "bob/m", true, true),
            (&["bob"], "BOB/m", true, true),
            (&["bob"], "anna/m", false, false),
            (&["bob"], "bobby/m", false, false),
            (&["bob*", "x"], "bobby/m:1b", true, true),
            (&["bob"], "llama3.2", true, false),
            (&["library"], "llama3.2", true, true),
            (&["bob"], "hf.co/bob/m", false, false),
            (&["bob"], "hf.co/library/m", false, false),
            (&["hf.co/bob"], "hf.co/bob/m", true, true),
            (&["hf.co/*"], "hf.co/anna/m", true, true),
        ] {
            assert_eq!(may(namespaces, Use, model), uses, "{namespaces:?} uses {model}");
            assert_eq!(may(namespaces, Change, model), changes, "{namespaces:?} changes {model}");
        }
    }
}
