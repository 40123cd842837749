//! Merges the options of a request, its model and the server, and chooses the draft model.

use std::path::Path;

use puna_store::{Model, ModelRef, Weights};

use super::{App, weights};
use crate::canonical::{ApiError, RunOptions};
use crate::http::record_ignored_field;
use crate::model_scheduler::LoadOptions;
use crate::models::names::Name;
use crate::options::speculate::{DraftModelSpec, SpeculateSetting};
use crate::options::{self, RequestOptions};

/// Default context, in tokens, of a model without a training context in its metadata.
const DEFAULT_CONTEXT: u32 = 4096;

/// Minimum context in tokens of a model that accepts images.
const VISION_CONTEXT: u32 = 2048;

/// KV cache tokens beyond one conversation, for several short conversations and their cached
/// prefixes.
const SHARED_CACHE_TOKENS: u32 = 16384;

impl App {
    /// Merges options: the request's override the model's, which override the server's.
    pub(crate) async fn options(
        &self,
        model: &Model,
        request: &RequestOptions,
    ) -> Result<(LoadOptions, RunOptions), ApiError> {
        let config = self.config();
        let embeds = model.gguf_info.pooling.is_some();
        let trained =
            u32::try_from(model.gguf_info.context_length).ok().filter(|tokens| *tokens > 0);
        let num_ctx = trained.unwrap_or(DEFAULT_CONTEXT);
        let mut load = LoadOptions {
            num_ctx,
            cache: if embeds { num_ctx } else { shared_cache(num_ctx, config.num_parallel) },
            num_batch: None,
            num_thread: 0,
            parallel: config.num_parallel,
            deterministic: config.deterministic,
            draft: None,
        };
        let mut run = RunOptions {
            num_predict: -1,
            num_keep: 4,
            num_ctx: config.context_length,
            ..RunOptions::default()
        };
        if let SpeculateSetting::Mode(mode) = config.speculate {
            run.speculate = mode;
        }
        let mut unknown = |name: &str| record_ignored_field(format!("options.{name}"));
        let requested = options::apply(&model.params, request, &mut load, &mut run, &mut unknown)?;
        if let Some(tokens) = &mut run.num_ctx
            && *tokens < VISION_CONTEXT
            && model.capabilities().iter().any(|capability| capability == "vision")
        {
            *tokens = VISION_CONTEXT;
        }
        if model.weights == Weights::Remote {
            run.explicit_parameters = model.params.clone();
            run.explicit_parameters.extend(request.to_map());
            run.explicit_parameters.retain(|_, value| !value.is_null());
            return Ok((load, run));
        }
        if puna_engine::is_diffusion(&model.gguf_info.architecture) {
            reject_draft(model, requested.as_deref())?;
            if request.named.contains_key("draft_num_predict") {
                record_ignored_field("options.draft_num_predict".into());
            }
            return Ok((load, run));
        }
        if !embeds && run.speculate.uses_draft_model() && run.draft_num_predict != Some(0) {
            load.draft = self.draft(model, requested).await?;
        }
        Ok((load, run))
    }

    /// Chooses the draft model: the requested one, else the model's own, else the configured one.
    async fn draft(
        &self,
        model: &Model,
        requested: Option<String>,
    ) -> Result<Option<DraftModelSpec>, ApiError> {
        let requested = requested.filter(|name| !name.is_empty());
        if let Some(name) = &requested {
            return self.stored_draft(name).await.map(Some);
        }
        if let Some(path) = &model.draft {
            let name = format!("the DRAFT of {}", model.name);
            return Ok(Some(DraftModelSpec { name, weights: Some(path.clone()), optional: false }));
        }
        let SpeculateSetting::Model(name) = &self.config().speculate else { return Ok(None) };
        if name.contains('/') && Path::new(name).is_file() {
            return Ok(Some(DraftModelSpec {
                name: name.clone(),
                weights: Some(name.into()),
                optional: true,
            }));
        }
        match self.stored_draft(name).await {
            Ok(draft) => Ok(Some(DraftModelSpec { optional: true, ..draft })
                .filter(|d| !has_same_weights(model, d))),
            Err(failure) => {
                tracing::warn!(draft = name, error = %failure, "cannot use the draft model of the setting speculate; loading without it");
                Ok(None)
            }
        }
    }

    async fn stored_draft(&self, name: &str) -> Result<DraftModelSpec, ApiError> {
        let missing = || {
            format!(
                "draft model '{name}' not found: use the name of a model, or one of {}",
                SpeculateSetting::MODES
            )
        };
        ModelRef::parse(name)
            .map_err(|error| ApiError::bad_request(format!("draft model: {error}")))?;
        let found = self.find(&Name::parse_runnable(name)?, missing).await?;
        if found.gguf_info.pooling.is_some() {
            let reason = format!("'{name}' cannot be a draft model: it is an embedding model");
            return Err(ApiError::bad_request(reason));
        }
        Ok(DraftModelSpec {
            name: found.name.to_string(),
            weights: weights(&found),
            optional: false,
        })
    }
}

/// Size of a model's KV cache in tokens when up to `parallel` conversations run at once.
fn shared_cache(num_ctx: u32, parallel: Option<u32>) -> u32 {
    parallel
        .map_or(SHARED_CACHE_TOKENS, |max| num_ctx.saturating_mul(max).min(SHARED_CACHE_TOKENS))
        .max(num_ctx)
}

/// Whether a draft model has the same weights as the model.
fn has_same_weights(model: &Model, draft: &DraftModelSpec) -> bool {
    weights(model) == draft.weights
}

/// Rejects a requested draft model for a diffusion model. A draft model of the model or of the
/// configuration is ignored.
fn reject_draft(model: &Model, requested: Option<&str>) -> Result<(), ApiError> {
    let architecture = &model.gguf_info.architecture;
    if let Some(name) = requested.filter(|name| !name.is_empty()) {
        return Err(ApiError::bad_request(format!(
            "draft_model '{name}': diffusion models (architecture {architecture}) do not support draft models: leave it out"
        )));
    }
    if model.draft.is_some() {
        tracing::warn!(model = %model.name, architecture, "diffusion models do not support draft models; DRAFT not used");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::runner::tests::{Fake, FakeLauncher};

    #[tokio::test]
    async fn vision_models_have_a_minimum_context() {
        let models = tempfile::tempdir().unwrap();
        for automatic in [None, Some(128), Some(4096)] {
            let mut config = Config::with_models(models.path());
            config.context_length = automatic;
            let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
            let mut text_model = app.0.store.resolve(&"cria".parse().unwrap()).unwrap();
            // The model's own parameters would count as well.
            text_model.params.clear();
            let mut vision_model = text_model.clone();
            let info = puna_store::GgufInfo { vision: true, ..(*vision_model.gguf_info).clone() };
            vision_model.gguf_info = info.into();
            for requested in [None, Some(128), Some(2047), Some(2048), Some(3000)] {
                let given = requested.map(|tokens| json!({"num_ctx": tokens}));
                let given =
                    RequestOptions::named(given.as_ref().and_then(|given| given.as_object()));
                let wanted = requested.or(automatic);
                let of = async |model: &Model| app.options(model, &given).await.unwrap().1.num_ctx;
                assert_eq!(of(&text_model).await, wanted);
                // A context that was not requested stays unset.
                assert_eq!(
                    of(&vision_model).await,
                    wanted.map(|tokens| tokens.max(VISION_CONTEXT))
                );
            }
        }
    }

    #[tokio::test]
    async fn a_diffusion_model_ignores_draft_models_and_rejects_requested_ones() {
        let models = tempfile::tempdir().unwrap();
        let mut config = Config::with_models(models.path());
        config.speculate = SpeculateSetting::Model("cria".into());
        let app = App::new(config, Arc::new(FakeLauncher(Arc::<Fake>::default()))).unwrap();
        let text_model = app.0.store.resolve(&"cria".parse().unwrap()).unwrap();
        let mut diffusion_model = Model { draft: Some("small.gguf".into()), ..text_model.clone() };
        let draft = async |model: &Model, name: &str| {
            let given = json!({"draft_model": name, "draft_num_predict": 4});
            app.options(model, &RequestOptions::named(given.as_object()))
                .await
                .map(|(load, _)| load.draft.map(|draft| draft.name))
        };
        assert!(
            draft(&diffusion_model, "")
                .await
                .unwrap()
                .is_some_and(|name| name.starts_with("the DRAFT of "))
        );
        diffusion_model.gguf_info = puna_store::GgufInfo {
            architecture: "dream".into(),
            ..(*diffusion_model.gguf_info).clone()
        }
        .into();
        assert_eq!(draft(&diffusion_model, "").await.unwrap(), None);
        let error = draft(&diffusion_model, "cria").await.unwrap_err().to_string();
        assert!(
            error.starts_with(
                "draft_model 'cria': diffusion models (architecture dream) do not support draft models"
            ),
            "{error}"
        );
    }
}
