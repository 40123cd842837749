//! Generation options: options of the request override options of the model, which override the
//! defaults.

pub(crate) mod diffusion;
pub mod speculate;

use std::collections::HashSet;

use puna_api::ollama::Think;
use serde_json::{Map, Value};

use crate::canonical::{ApiError, RunOptions};
use crate::model_scheduler::LoadOptions;
use crate::options::diffusion::Algorithm;
use crate::options::speculate::{SpeculateSetting, SpeculationMode};

/// Minimum context in tokens.
const MIN_CONTEXT: u32 = 4;

/// Generation options of one request: the `options` object with Ollama's names, which every dialect
/// accepts, and the dialect's own fields, which override it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestOptions {
    /// The `options` object.
    pub named: Map<String, Value>,
    /// Maximum tokens to generate; negative is no limit.
    pub num_predict: Option<i64>,
    /// Random seed.
    pub seed: Option<i64>,
    /// Strings that end the answer.
    pub stop: Option<Vec<String>>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling: cumulative probability to draw from.
    pub top_p: Option<f64>,
    /// Number of most probable tokens to draw from.
    pub top_k: Option<i64>,
    /// Penalty per occurrence of a token.
    pub frequency_penalty: Option<f64>,
    /// Penalty of tokens that have occurred.
    pub presence_penalty: Option<f64>,
    /// Biases by token id, in OpenAI's format.
    pub logit_bias: Option<Map<String, Value>>,
    /// Maximum reasoning tokens.
    pub think_budget: Option<i64>,
}

impl RequestOptions {
    /// Options of a request that has only the `options` object.
    pub fn named(options: Option<&Map<String, Value>>) -> Self {
        Self { named: options.cloned().unwrap_or_default(), ..Self::default() }
    }

    /// All options under Ollama's names.
    pub fn to_map(&self) -> Map<String, Value> {
        let fields = [
            ("num_predict", self.num_predict.map(Value::from)),
            ("seed", self.seed.map(Value::from)),
            ("stop", self.stop.clone().map(Value::from)),
            ("temperature", self.temperature.map(Value::from)),
            ("top_p", self.top_p.map(Value::from)),
            ("top_k", self.top_k.map(Value::from)),
            ("frequency_penalty", self.frequency_penalty.map(Value::from)),
            ("presence_penalty", self.presence_penalty.map(Value::from)),
            ("logit_bias", self.logit_bias.clone().map(Value::from)),
            ("think_budget", self.think_budget.map(Value::from)),
        ];
        let mut all = self.named.clone();
        all.extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        all
    }

    /// Applies the dialect's fields over the options so far.
    fn apply_fields(&self, run: &mut RunOptions) -> Result<(), ApiError> {
        let sampling = &mut run.sampling;
        let floats = [
            ("temperature", self.temperature, &mut sampling.temperature),
            ("top_p", self.top_p, &mut sampling.top_p),
            ("frequency_penalty", self.frequency_penalty, &mut sampling.frequency_penalty),
            ("presence_penalty", self.presence_penalty, &mut sampling.presence_penalty),
        ];
        for (name, given, option) in floats {
            if let Some(number) = given {
                *option = finite(name, number)?;
            }
        }
        if let Some(top_k) = self.top_k {
            sampling.top_k = int32("top_k", &top_k.into())?;
        }
        if let Some(bias) = &self.logit_bias {
            sampling.logit_bias = biases("logit_bias", bias)?;
        }
        sampling.seed = self.seed.unwrap_or(sampling.seed);
        run.num_predict = self.num_predict.unwrap_or(run.num_predict);
        if let Some(budget) = self.think_budget {
            run.think_budget = count("think_budget", &budget.into())?;
        }
        if let Some(stop) = &self.stop {
            (run.stop, run.has_request_stops) = (stop.clone(), true);
        }
        Ok(())
    }
}

/// Applies the parameters of a model and then the options of a request to `load` and `run`, which
/// hold the defaults. Unknown names are ignored; `unknown` receives the request's unknown names.
/// `null` counts as absent. Returns the name of the requested draft model.
pub fn apply(
    params: &Map<String, Value>,
    options: &RequestOptions,
    load: &mut LoadOptions,
    run: &mut RunOptions,
    unknown: &mut dyn FnMut(&str),
) -> Result<Option<String>, ApiError> {
    let mut draft = None;
    let asked = options.named.iter().map(|option| (option, true));
    for ((name, value), asked) in params.iter().map(|parameter| (parameter, false)).chain(asked) {
        match name.as_str() {
            _ if value.is_null() => {}
            "draft_model" => draft = Some(string(name, value)?),
            "speculate" => {
                run.speculate_explicit = true;
                match speculate_setting(name, value)? {
                    SpeculateSetting::Mode(mode) => run.speculate = mode,
                    SpeculateSetting::Model(model) => {
                        (run.speculate, draft) = (SpeculationMode::Auto, Some(model))
                    }
                }
            }
            _ if apply_option(name, value, load, run)? => {
                run.has_request_stops |= asked && name == "stop"
            }
            _ if asked => unknown(name),
            _ => tracing::debug!(parameter = name, "ignoring an unknown parameter of the model"),
        }
    }
    options.apply_fields(run)?;
    puna_sampler::check_stops(&run.stop)
        .map_err(|reason| ApiError::bad_request(format!("option \"stop\": {reason}")))?;
    run.num_ctx = run.num_ctx.map(|tokens| tokens.max(MIN_CONTEXT));
    Ok(draft)
}

/// Checks the options of a request that generates nothing; `unknown` as for [`apply`].
pub fn check(options: &RequestOptions, unknown: &mut dyn FnMut(&str)) -> Result<(), ApiError> {
    let (mut load, mut run) = (LoadOptions::default(), RunOptions::default());
    apply(&Map::new(), options, &mut load, &mut run, unknown).map(drop)
}

/// Applies one option. Returns `false` if its name is unknown.
fn apply_option(
    name: &str,
    value: &Value,
    load: &mut LoadOptions,
    run: &mut RunOptions,
) -> Result<bool, ApiError> {
    let sampling = &mut run.sampling;
    match name {
        // Values above the model's context are limited to it later.
        "num_ctx" => {
            run.num_ctx = Some(u32::try_from(integer(name, value)?.max(0)).unwrap_or(u32::MAX));
        }
        "num_batch" => load.num_batch = Some(positive(name, value)?),
        // Accepted without effect: models run on the CPU, and their files are always mapped.
        "num_gpu" | "main_gpu" => {
            integer(name, value)?;
        }
        "use_mmap" => {
            boolean(name, value)?;
        }
        "num_thread" => load.num_thread = count(name, value)?.unwrap_or(0),
        "deterministic" => load.deterministic = boolean(name, value)?,
        "num_keep" => run.num_keep = integer(name, value)?,
        "num_predict" => run.num_predict = integer(name, value)?,
        "stop" => run.stop = strings(name, value)?,
        "seed" => sampling.seed = integer(name, value)?,
        "temperature" => sampling.temperature = float(name, value)?,
        "top_k" => sampling.top_k = int32(name, value)?,
        "top_p" => sampling.top_p = float(name, value)?,
        "min_p" => sampling.min_p = float(name, value)?,
        "typical_p" => sampling.typical_p = float(name, value)?,
        "repeat_last_n" => sampling.repeat_last_n = int32(name, value)?,
        "repeat_penalty" => sampling.repeat_penalty = float(name, value)?,
        "presence_penalty" => sampling.presence_penalty = float(name, value)?,
        "frequency_penalty" => sampling.frequency_penalty = float(name, value)?,
        "logit_bias" => {
            sampling.logit_bias =
                biases(name, value.as_object().ok_or_else(|| wrong(name, "object"))?)?;
        }
        // Not in Ollama; llama.cpp's server calls it `lora`.
        "adapters" => run.adapters = Some(adapters(name, value)?),
        // A negative value is automatic, like an absent one; 0 disables speculation.
        "draft_num_predict" => run.draft_num_predict = count(name, value)?,
        // Not in Ollama. A negative value is no limit, like an absent one.
        "think_budget" => run.think_budget = count(name, value)?,
        // Not in Ollama; for diffusion models only. A negative value is the model's default, like
        // an absent one.
        "diffusion_steps" => run.diffusion.steps = count(name, value)?,
        "diffusion_block_length" => run.diffusion.block_length = count(name, value)?,
        "diffusion_algorithm" => run.diffusion.algorithm = Some(algorithm(name, value)?),
        // Not in Ollama; named as in llama.cpp's server.
        "dry_multiplier" => sampling.dry_multiplier = float(name, value)?,
        "dry_base" => sampling.dry_base = float(name, value)?,
        "dry_allowed_length" => sampling.dry_allowed_length = int32(name, value)?,
        "dry_penalty_last_n" => sampling.dry_penalty_last_n = int32(name, value)?,
        "dry_sequence_breakers" => sampling.dry_sequence_breakers = strings(name, value)?,
        "xtc_probability" => sampling.xtc_probability = float(name, value)?,
        "xtc_threshold" => sampling.xtc_threshold = float(name, value)?,
        "top_n_sigma" => sampling.top_n_sigma = float(name, value)?,
        "dynatemp_range" => sampling.dynatemp_range = float(name, value)?,
        "dynatemp_exponent" => sampling.dynatemp_exponent = float(name, value)?,
        "ignore_eos" => sampling.ignore_eos = boolean(name, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn wrong(name: &str, kind: &str) -> ApiError {
    ApiError::bad_request(format!("option \"{name}\" must be of type {kind}"))
}

fn boolean(name: &str, value: &Value) -> Result<bool, ApiError> {
    value.as_bool().ok_or_else(|| wrong(name, "boolean"))
}

/// Reads an integer. Fractions are truncated, because JSON numbers are doubles in Ollama.
fn integer(name: &str, value: &Value) -> Result<i64, ApiError> {
    integer_in_range(name, value, i64::MIN, i64::MAX)
}

/// Reads an integer from `min` to `max`.
fn integer_in_range(name: &str, value: &Value, min: i64, max: i64) -> Result<i64, ApiError> {
    let whole = |x: f64| Some(x as i128).and_then(|n| i64::try_from(n).ok());
    let number = match value.as_i64() {
        Some(n) => Some(n),
        None => whole(value.as_f64().ok_or_else(|| wrong(name, "integer"))?),
    };
    number.filter(|n| (min..=max).contains(n)).ok_or_else(|| {
        let text =
            format!("option \"{name}\" is out of range: {value} is not between {min} and {max}");
        ApiError::bad_request(text)
    })
}

fn int32(name: &str, value: &Value) -> Result<i32, ApiError> {
    integer_in_range(name, value, i32::MIN.into(), i32::MAX.into()).map(|n| n as i32)
}

/// Reads a count; negative is `None`.
fn count(name: &str, value: &Value) -> Result<Option<u32>, ApiError> {
    integer_in_range(name, value, i32::MIN.into(), u32::MAX.into()).map(|n| u32::try_from(n).ok())
}

fn positive(name: &str, value: &Value) -> Result<u32, ApiError> {
    integer_in_range(name, value, 1, u32::MAX.into()).map(|n| n as u32)
}

fn float(name: &str, value: &Value) -> Result<f32, ApiError> {
    finite(name, value.as_f64().ok_or_else(|| wrong(name, "float32"))?)
}

fn finite(name: &str, number: f64) -> Result<f32, ApiError> {
    Some(number as f32).filter(|x| x.is_finite()).ok_or_else(|| {
        ApiError::bad_request(format!(
            "option \"{name}\" is out of range: {number:e} is beyond ±3.4e38"
        ))
    })
}

fn string(name: &str, value: &Value) -> Result<String, ApiError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(name, "string"))
}

/// Reads a speculation mode or the name of a draft model.
fn speculate_setting(name: &str, value: &Value) -> Result<SpeculateSetting, ApiError> {
    match value {
        Value::Bool(on) => Ok(SpeculateSetting::Mode(if *on {
            SpeculationMode::Auto
        } else {
            SpeculationMode::Off
        })),
        _ => string(name, value).map(|text| SpeculateSetting::parse(&text)),
    }
}

/// Reads which masked positions of a diffusion model are unmasked first.
fn algorithm(name: &str, value: &Value) -> Result<Algorithm, ApiError> {
    Algorithm::parse(&string(name, value)?)
        .map_err(|problem| ApiError::bad_request(format!("option \"{name}\": {problem}")))
}

fn strings(name: &str, value: &Value) -> Result<Vec<String>, ApiError> {
    let list = value.as_array().ok_or_else(|| wrong(name, "array"))?;
    let strings = list.iter().map(|v| v.as_str().map(str::to_owned)).collect::<Option<_>>();
    strings.ok_or_else(|| {
        ApiError::bad_request(format!("option \"{name}\" must be of an array of strings"))
    })
}

/// Reads biases in OpenAI's format: an object from token id to bias.
fn biases(name: &str, map: &Map<String, Value>) -> Result<Vec<(u32, f32)>, ApiError> {
    let one = |(token, bias): (&String, &Value)| {
        Some((token.parse().ok()?, (bias.as_f64()? as f32).clamp(f32::MIN, f32::MAX)))
    };
    let list = map.iter().map(one).collect::<Option<_>>();
    list.ok_or_else(|| {
        ApiError::bad_request(format!(
            "option \"{name}\" must be an object of token ids and biases"
        ))
    })
}

/// Reads adapter indices and scales; each index once.
fn adapters(name: &str, value: &Value) -> Result<Vec<(u32, f32)>, ApiError> {
    let wanted = || {
        let form = "an array of objects {\"id\": NUMBER, \"scale\": NUMBER}, each id once";
        ApiError::bad_request(format!("option \"{name}\" must be {form}"))
    };
    let one = |entry: &Value| {
        let fields =
            entry.as_object().filter(|fields| fields.keys().all(|k| k == "id" || k == "scale"))?;
        let id = u32::try_from(fields.get("id")?.as_u64()?).ok()?;
        let scale = fields.get("scale")?.as_f64()? as f32;
        scale.is_finite().then_some((id, scale))
    };
    let list = value.as_array().ok_or_else(|| wrong(name, "array"))?;
    let list: Vec<(u32, f32)> = list.iter().map(one).collect::<Option<_>>().ok_or_else(wanted)?;
    let distinct: HashSet<u32> = list.iter().map(|(id, _)| *id).collect();
    if distinct.len() == list.len() { Ok(list) } else { Err(wanted()) }
}

/// Converts OpenAI's `reasoning_effort` to a reasoning level.
pub fn effort(effort: &str) -> Result<Option<Think>, ApiError> {
    Ok(match effort {
        "" => None,
        "none" => Some(Think::Off),
        "minimal" | "low" => Some(Think::Low),
        "medium" => Some(Think::Medium),
        "high" => Some(Think::High),
        "max" | "xhigh" | "ultra" => Some(Think::Max),
        other => {
            return Err(ApiError::bad_request(format!(
                "invalid reasoning value: {other:?} (must be \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\", \"ultra\", \"max\", or \"none\")"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(params: Value, options: Value) -> Result<(LoadOptions, RunOptions), String> {
        let (mut load, mut run) =
            (LoadOptions { num_ctx: 4096, ..LoadOptions::default() }, RunOptions::default());
        let options = RequestOptions::named(options.as_object());
        apply(params.as_object().unwrap(), &options, &mut load, &mut run, &mut |_| {})
            .map_err(|e| e.message)?;
        Ok((load, run))
    }

    #[test]
    fn request_options_override_the_model_and_null_is_absent() {
        let (load, run) = read(
            json!({"temperature": 0.1, "top_k": 20, "stop": ["END"], "num_ctx": 8192}),
            json!({"temperature": 0.5, "top_k": null, "stop": ["X"], "num_predict": 2.9, "bogus": 1, "mirostat_x": 2}),
        )
        .unwrap();
        assert_eq!((run.sampling.temperature, run.sampling.top_k, run.num_predict), (0.5, 20, 2));
        assert_eq!(run.stop, ["X"], "the request's list replaces the model's");
        assert_eq!(
            (run.num_ctx, load.num_ctx),
            (Some(8192), 4096),
            "a limit of the request, and no reason to load"
        );
    }

    #[test]
    fn dialect_fields_override_the_options_object() {
        let named = json!({"temperature": 0.5, "top_k": 3, "stop": ["X"]});
        let fields = RequestOptions {
            temperature: Some(0.25),
            top_k: Some(9),
            stop: Some(vec!["Y".into()]),
            ..RequestOptions::named(named.as_object())
        };
        let (mut load, mut run) = (LoadOptions::default(), RunOptions::default());
        apply(&Map::new(), &fields, &mut load, &mut run, &mut |_| {}).unwrap();
        assert_eq!((run.sampling.temperature, run.sampling.top_k), (0.25, 9));
        assert_eq!((run.stop, run.has_request_stops), (vec!["Y".to_owned()], true));
        assert_eq!(
            Value::Object(fields.to_map()),
            json!({"temperature": 0.25, "top_k": 9, "stop": ["Y"]})
        );
        let large = RequestOptions { temperature: Some(1e308), ..RequestOptions::default() };
        let error = apply(&Map::new(), &large, &mut load, &mut RunOptions::default(), &mut |_| {})
            .unwrap_err();
        assert_eq!(
            error.message,
            "option \"temperature\" is out of range: 1e308 is beyond ±3.4e38"
        );
    }

    #[test]
    fn options_without_effect_are_accepted_and_do_not_reload_the_model() {
        let (without, _) = read(json!({}), json!({})).unwrap();
        let (with, _) =
            read(json!({"num_gpu": 99}), json!({"main_gpu": 1, "use_mmap": false})).unwrap();
        assert_eq!(with, without);
    }

    #[test]
    fn options_of_the_wrong_type_are_named() {
        let error = |options| read(json!({}), options).unwrap_err();
        assert_eq!(
            error(json!({"temperature": "x"})),
            "option \"temperature\" must be of type float32"
        );
        assert_eq!(
            error(json!({"temperature": 1e308})),
            "option \"temperature\" is out of range: 1e308 is beyond ±3.4e38"
        );
        assert_eq!(error(json!({"num_ctx": "x"})), "option \"num_ctx\" must be of type integer");
        assert_eq!(error(json!({"num_gpu": "x"})), "option \"num_gpu\" must be of type integer");
        assert_eq!(error(json!({"main_gpu": true})), "option \"main_gpu\" must be of type integer");
        assert_eq!(error(json!({"use_mmap": 1})), "option \"use_mmap\" must be of type boolean");
        assert_eq!(error(json!({"stop": "x"})), "option \"stop\" must be of type array");
        assert_eq!(error(json!({"stop": [1]})), "option \"stop\" must be of an array of strings");
        assert_eq!(
            error(json!({"stop": ["a".repeat(2000)]})),
            "option \"stop\": a stop string of 2000 bytes: use at most 1024"
        );
    }

    #[test]
    fn sizes_out_of_range_are_errors_with_the_range() {
        let (load, run) = read(json!({}), json!({"num_ctx": -5, "num_thread": -1})).unwrap();
        assert_eq!((run.num_ctx, load.num_thread), (Some(4), 0));
        let (_, run) = read(json!({}), json!({"num_ctx": 1_u64 << 40, "seed": i64::MAX})).unwrap();
        assert_eq!((run.num_ctx, run.sampling.seed), (Some(u32::MAX), i64::MAX));
        for (name, value, shown, range) in [
            (
                "num_ctx",
                json!(f64::MAX),
                "1.7976931348623157e+308",
                "-9223372036854775808 and 9223372036854775807",
            ),
            ("num_thread", json!(1e300), "1e+300", "-2147483648 and 4294967295"),
            (
                "draft_num_predict",
                json!(4_294_967_296_u64),
                "4294967296",
                "-2147483648 and 4294967295",
            ),
            ("num_predict", json!(1e19), "1e+19", "-9223372036854775808 and 9223372036854775807"),
            (
                "seed",
                json!(u64::MAX),
                "18446744073709551615",
                "-9223372036854775808 and 9223372036854775807",
            ),
            ("top_k", json!(-2_147_483_649_i64), "-2147483649", "-2147483648 and 2147483647"),
            ("num_batch", json!(4_294_967_296_u64), "4294967296", "1 and 4294967295"),
            ("num_batch", json!(0), "0", "1 and 4294967295"),
        ] {
            let error = read(json!({}), json!({ name: value })).unwrap_err();
            assert_eq!(
                error,
                format!("option \"{name}\" is out of range: {shown} is not between {range}")
            );
        }
    }

    #[test]
    fn diffusion_options_are_read_and_negative_ones_are_unset() {
        let params = json!({"diffusion_steps": 64, "diffusion_block_length": 32, "diffusion_algorithm": "origin"});
        let options = json!({"diffusion_block_length": -1, "diffusion_algorithm": "Margin"});
        let diffusion = read(params, options).unwrap().1.diffusion;
        assert_eq!((diffusion.steps, diffusion.block_length), (Some(64), None));
        assert_eq!(diffusion.algorithm, Some(Algorithm::Margin));
        let error = read(json!({}), json!({"diffusion_algorithm": "best"})).unwrap_err();
        assert!(
            error.starts_with(
                "option \"diffusion_algorithm\": unknown value \"best\": use one of confidence"
            ),
            "{error}"
        );
    }

    #[test]
    fn speculation_is_set_by_mode_model_or_length() {
        let of = |options: Value| {
            let (mut load, mut run) = (LoadOptions::default(), RunOptions::default());
            let params = json!({"draft_num_predict": 3});
            let options = RequestOptions::named(options.as_object());
            let draft =
                apply(params.as_object().unwrap(), &options, &mut load, &mut run, &mut |_| {})
                    .unwrap();
            (draft, run.speculate, run.draft_num_predict)
        };
        assert_eq!(of(json!({})), (None, SpeculationMode::Auto, Some(3)));
        assert_eq!(of(json!({"speculate": "off"})), (None, SpeculationMode::Off, Some(3)));
        assert_eq!(
            of(json!({"speculate": false, "draft_num_predict": -1})),
            (None, SpeculationMode::Off, None)
        );
        assert_eq!(
            of(json!({"speculate": "smol"})),
            (Some("smol".into()), SpeculationMode::Auto, Some(3))
        );
        assert_eq!(
            of(json!({"draft_model": "smol"})),
            (Some("smol".into()), SpeculationMode::Auto, Some(3))
        );
        let error = read(json!({}), json!({"draft_model": 5})).unwrap_err();
        assert_eq!(error, "option \"draft_model\" must be of type string");
    }

    #[test]
    fn adapters_have_unique_indices() {
        let (_, run) =
            read(json!({}), json!({"adapters": [{"id": 1, "scale": 0.5}, {"id": 0, "scale": -2}]}))
                .unwrap();
        assert_eq!(run.adapters, Some(vec![(1, 0.5), (0, -2.0)]));
        assert_eq!(read(json!({}), json!({})).unwrap().1.adapters, None);
        assert_eq!(read(json!({}), json!({"adapters": []})).unwrap().1.adapters, Some(vec![]));
        let error = |value: Value| read(json!({}), json!({ "adapters": value })).unwrap_err();
        assert_eq!(error(json!({"id": 0})), "option \"adapters\" must be of type array");
        let form = "option \"adapters\" must be an array of objects {\"id\": NUMBER, \"scale\": NUMBER}, each id once";
        for wrong in [
            json!([5]),
            json!([{"id": 0}]),
            json!([{"scale": 1}]),
            json!([{"id": -1, "scale": 1}]),
            json!([{"id": 0.5, "scale": 1}]),
            json!([{"id": 4_294_967_296_u64, "scale": 1}]),
            json!([{"id": 0, "scale": "x"}]),
            json!([{"id": 0, "scale": 1e300}]),
            json!([{"id": 0, "scale": 1, "path": "/etc"}]),
            json!([{"id": 0, "scale": 1}, {"id": 0, "scale": 2}]),
        ] {
            assert_eq!(error(wrong.clone()), form, "{wrong}");
        }
    }

    #[test]
    fn reasoning_efforts_map_to_thinking_levels() {
        assert_eq!(effort("none").unwrap(), Some(Think::Off));
        assert_eq!(effort("minimal").unwrap(), Some(Think::Low));
        assert_eq!(effort("ultra").unwrap(), Some(Think::Max));
        assert!(
            effort("zz")
                .unwrap_err()
                .message
                .starts_with("invalid reasoning value: \"zz\" (must be \"minimal\"")
        );
    }
}
