//! `GET /api/ps`: the loaded models.

use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use puna_api::ollama::{ProcessResponse, RunningModel};

use crate::api::rfc3339;
use crate::app::App;
use crate::auth::caller::{Action, Caller};
use crate::http::json;
use crate::model_scheduler::Phase;

/// Time from now that stands for "never", about 292 years.
const NEVER: Duration = Duration::from_nanos(i64::MAX as u64);

pub(crate) async fn ps(State(app): State<App>) -> Response {
    let never = SystemTime::now() + NEVER;
    let mut running = app.models().list().await;
    let caller = Caller::current();
    let may_use = |name: &String| name.parse().is_ok_and(|name| caller.may(Action::Use, &name));
    running.retain(|model| may_use(&model.listing.name));
    running.sort_by_key(|model| std::cmp::Reverse(model.expires.unwrap_or(never)));
    let one = |model: crate::models::manager::ResidentModel| RunningModel {
        name: model.listing.name.clone(),
        model: model.listing.name,
        size: model.size,
        digest: model.listing.digest,
        details: model.listing.details,
        expires_at: rfc3339(model.expires.unwrap_or(never)),
        size_vram: 0,
        context_length: model.context.into(),
        also: model.aliases.into_iter().filter(|alias| may_use(alias)).collect(),
        sandbox: model.sandbox,
        state: (model.phase != Phase::Ready).then(|| model.phase.name().to_owned()),
    };
    json(StatusCode::OK, &ProcessResponse { models: running.into_iter().map(one).collect() })
}
