//! `puna debug render`: renders a request to a prompt.

use anyhow::{Context, Result, anyhow, bail};
use puna_prompt::{
    Adaptation, Adaptations, Chat, Message, MessageRules, Renderer, Template, TemplateFormat,
    Think, conversation, fit, generate_conversation, mark_untrusted, prefer_jinja, render_insert,
    split_at_marks, without_marks,
};
use puna_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::cli::{RenderArgs, TemplateKind};
use crate::local::ModelFile;
use crate::{out, usage};

pub fn run(args: &RenderArgs) -> Result<()> {
    let shown = args.request.display();
    let text = crate::local::read_text(&args.request)?;
    let request: Value =
        serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
    if !request.is_object() {
        bail!("{shown} is not a request: it must be a JSON object, as for /api/chat");
    }
    let file = args.model.as_ref().map(|model| ModelFile::open(model)).transpose()?;
    let tokenizer = file.as_ref().map(ModelFile::tokenizer).transpose()?;
    let template = template(args, file.as_ref())?;
    let rendered = match (request.get("raw"), request.get("prompt").and_then(Value::as_str)) {
        (Some(Value::Bool(true)), Some(prompt)) => {
            Rendered::without_messages(prompt.to_owned(), "")
        }
        _ => render(&template, &request, file.as_ref(), tokenizer.as_ref())
            .with_context(|| shown.to_string())?,
    };
    let parts = parts(&rendered.prompt, rendered.may_be_marked);
    let tokens = tokenizer.map(|t| t.encode_prompt_parts(&parts, rendered.leading_bos));
    let rendered = rendered.for_display();
    let adapted: Vec<&str> = rendered.adaptations.iter().map(|kind| kind.as_str()).collect();
    if args.json {
        return out::json(
            &json!({"prompt": rendered.prompt, "tokens": tokens, "truncated": rendered.truncated, "adapted": adapted}),
        );
    }
    if args.explain {
        let line = |kind: &Adaptation| format!("{kind}: {}\n", kind.description());
        let lines: String = rendered.adaptations.iter().map(line).collect();
        let lines =
            if lines.is_empty() { "the conversation is unchanged\n".to_owned() } else { lines };
        return out::text(&format!("{lines}\n{}", rendered.prompt));
    }
    out::text(&rendered.prompt)
}

/// Selects the given renderer or template, else that of the stored model, else that of the file.
fn template(args: &RenderArgs, file: Option<&ModelFile>) -> Result<Template> {
    if let Some(name) = &args.renderer {
        return Template::parse(TemplateFormat::BuiltIn, name).map_err(|e| {
            anyhow!("{e}: use one of {}", Renderer::names().collect::<Vec<_>>().join(", "))
        });
    }
    if let Some(path) = &args.template {
        let source = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.extension().unwrap_or_default().to_string_lossy();
        let kind = match args.kind {
            Some(TemplateKind::Jinja) => TemplateFormat::Jinja,
            Some(TemplateKind::Go) => TemplateFormat::Go,
            None if matches!(&*name, "jinja" | "jinja2" | "j2") => TemplateFormat::Jinja,
            None if matches!(&*name, "gotmpl" | "tmpl" | "go") => TemplateFormat::Go,
            None => {
                return Err(usage::error(format!(
                    "{}: unknown template language, use --kind jinja or --kind go",
                    path.display()
                )));
            }
        };
        return Template::parse(kind, &source).with_context(|| path.display().to_string());
    }
    let file = file.context("name a model, --template or --renderer")?;
    let renderer = file
        .stored
        .as_ref()
        .filter(|model| args.kind.is_none() && !model.config.renderer.is_empty());
    if let Some(model) = renderer {
        let size = model.details().parameter_size;
        let name = Renderer::resolve(&model.config.renderer, &model.name.to_string(), &size);
        return Ok(Template::parse(TemplateFormat::BuiltIn, name)?);
    }
    let go = file.stored.as_ref().and_then(|model| model.template.as_deref());
    let info = puna_store::GgufInfo::of(&file.gguf);
    let (kind, source) = match (go, info.chat_template.as_deref(), args.kind) {
        (Some(go), Some(jinja), None) => return preferred_template(go, jinja),
        (Some(go), _, None | Some(TemplateKind::Go)) => (TemplateFormat::Go, go),
        (_, Some(jinja), None | Some(TemplateKind::Jinja)) => (TemplateFormat::Jinja, jinja),
        (_, _, None) => (TemplateFormat::Go, "{{ .Prompt }}"),
        (_, _, Some(_)) => bail!("{} has no template of this kind", file.display_name),
    };
    Ok(Template::parse(kind, source)?)
}

/// Selects the template that a server would use.
fn preferred_template(go: &str, jinja: &str) -> Result<Template> {
    let parsed =
        (Template::parse(TemplateFormat::Go, go), Template::parse(TemplateFormat::Jinja, jinja));
    match (puna_server::Config::from_env()?.go_template, parsed) {
        (Some(true), (go, _)) => Ok(go?),
        (Some(false), (_, jinja)) => Ok(jinja?),
        (None, (Ok(go), Ok(jinja))) if prefer_jinja(&jinja, &go) => Ok(jinja),
        (None, (go, _)) => Ok(go?),
    }
}

/// A prompt, and whether messages were cut from it.
struct Rendered<'a> {
    prompt: String,
    /// Text that the template writes for the first token, if the template rendered this prompt.
    leading_bos: &'a str,
    /// Whether marks in the prompt delimit users' text. They do in a conversation, and not in a raw
    /// prompt.
    may_be_marked: bool,
    truncated: bool,
    /// Adaptations of the conversation to the template.
    adaptations: Adaptations,
}

impl<'a> Rendered<'a> {
    /// A prompt without messages.
    fn without_messages(prompt: String, leading_bos: &'a str) -> Self {
        let (may_be_marked, truncated, adaptations) = (false, false, Adaptations::new());
        Self { prompt, leading_bos, may_be_marked, truncated, adaptations }
    }

    /// Removes the marks for display.
    fn for_display(self) -> Self {
        let prompt = if self.may_be_marked { without_marks(&self.prompt) } else { self.prompt };
        Self { prompt, ..self }
    }
}

/// Splits a prompt into parts, each with whether its control tokens are parsed.
fn parts(prompt: &str, may_be_marked: bool) -> Vec<(&str, bool)> {
    if may_be_marked { split_at_marks(prompt) } else { vec![(prompt, true)] }
}

fn render<'a>(
    template: &'a Template,
    request: &Value,
    file: Option<&ModelFile>,
    tokenizer: Option<&Tokenizer>,
) -> Result<Rendered<'a>> {
    let text = |key: &str| request.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let think: Option<Think> = field(request, "think")?;
    if let Some(suffix) = text("suffix") {
        let prompt =
            render_insert(template, text("prompt").unwrap_or_default(), suffix, think.as_ref())?;
        return Ok(Rendered::without_messages(prompt, template.leading_bos()));
    }
    let stored = file.and_then(|file| file.stored.as_ref());
    let system = stored.and_then(|model| model.system.as_deref());
    let own = stored.map_or(Value::Null, |model| Value::Array(model.messages.clone()));
    let own: Option<Vec<Message>> = serde_json::from_value(own).context("the model's messages")?;
    let own = own.unwrap_or_default();
    let mut tools: Vec<Value> = field(request, "tools")?;
    let may_be_marked = request.get("messages").is_some();
    let all = if may_be_marked {
        let mut all = conversation(system, &own, &field::<Vec<Message>>(request, "messages")?);
        let controls_in = |text: &str| tokenizer.map_or_else(Vec::new, |t| t.controls_in(text));
        mark_untrusted(&mut all, &mut tools, controls_in);
        all
    } else {
        generate_conversation(
            text("system").or(system),
            &own,
            text("prompt").unwrap_or_default(),
            &[],
        )
    };
    let piece = |id: Option<u32>| {
        let bytes = id.zip(tokenizer).map(|(id, tokenizer)| tokenizer.piece(id).to_vec());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    let (bos, eos) =
        (piece(tokenizer.and_then(Tokenizer::bos)), piece(tokenizer.and_then(Tokenizer::eos)));
    let rules = may_be_marked.then(|| MessageRules::probe(template));
    let chat = Chat { tools: &tools, think, bos: &bos, eos: &eos, rules, ..Chat::new(&all) };
    // Without a vocabulary the length cannot be limited.
    let limit = request
        .pointer("/options/num_ctx")
        .and_then(Value::as_u64)
        .map_or(usize::MAX, |n| n as usize);
    let leading_bos = template.leading_bos();
    let mut count = |text: &str| {
        Ok(tokenizer
            .map_or(0, |t| t.encode_prompt_parts(&parts(text, may_be_marked), leading_bos).len()))
    };
    let fitted = fit(template, &chat, limit, &mut count)?;
    let (truncated, adaptations) = (fitted.truncated(), fitted.adaptations);
    Ok(Rendered { truncated, prompt: fitted.prompt, leading_bos, may_be_marked, adaptations })
}

/// Reads a field of the request according to the API.
fn field<T: serde::de::DeserializeOwned + Default>(request: &Value, key: &str) -> Result<T> {
    match request.get(key) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => serde_json::from_value(value.clone()).with_context(|| format!("`{key}`")),
    }
}
