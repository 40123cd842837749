//! A template of either language, or a built-in format in place of one.

use crate::go::GoTemplate;
use crate::jinja::JinjaTemplate;
use crate::renderers::Renderer;
use crate::thinking::{self, ThinkTags};
use crate::{Capabilities, PromptError};

/// The two languages of templates, and what needs no template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Go's `text/template`, as in a Modelfile's `TEMPLATE`.
    Go,
    /// Jinja, as in a GGUF's `tokenizer.chat_template`.
    Jinja,
    /// No template but the name of a built-in renderer, as in a Modelfile's `RENDERER`.
    BuiltIn,
}

/// A parsed template; cheap to keep, parse it once a model.
#[derive(Debug, Clone)]
pub enum Template {
    /// Go's `text/template` with Ollama's data.
    Go(GoTemplate),
    /// Jinja with the data of Hugging Face's transformers.
    Jinja(JinjaTemplate),
    /// A built-in format.
    BuiltIn(Renderer),
}

impl Template {
    /// Parses a source, or finds a built-in renderer by its name.
    pub fn parse(kind: Kind, source: &str) -> Result<Template, PromptError> {
        match kind {
            Kind::Go => GoTemplate::parse(source).map(Template::Go),
            Kind::Jinja => JinjaTemplate::parse(source).map(Template::Jinja),
            Kind::BuiltIn => Renderer::by_name(source).map(Template::BuiltIn),
        }
    }

    /// Which language a source is written in: Jinja if it has `{% … %}` or only parses as Jinja.
    pub fn detect(source: &str) -> Kind {
        if source.contains("{%") && source.contains("%}") {
            return Kind::Jinja;
        }
        match (GoTemplate::parse(source), JinjaTemplate::parse(source)) {
            (Err(_), Ok(_)) => Kind::Jinja,
            _ => Kind::Go,
        }
    }

    /// Its language.
    pub fn kind(&self) -> Kind {
        match self {
            Template::Go(_) => Kind::Go,
            Template::Jinja(_) => Kind::Jinja,
            Template::BuiltIn(_) => Kind::BuiltIn,
        }
    }

    /// The text it was parsed from, or the name of the renderer.
    pub fn source(&self) -> &str {
        match self {
            Template::Go(go) => go.source(),
            Template::Jinja(jinja) => jinja.source(),
            Template::BuiltIn(renderer) => renderer.name(),
        }
    }

    /// What a model with this template can be asked for.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(self)
    }

    /// The tags around thoughts in the model's output, if the template shows them.
    pub fn think_tags(&self) -> Option<ThinkTags> {
        match self {
            Template::Go(go) => {
                let (open, close) = go.think_tags();
                (!open.is_empty() && !close.is_empty()).then_some(ThinkTags { open, close })
            }
            Template::Jinja(jinja) => thinking::tags_in_jinja(jinja.source()),
            Template::BuiltIn(renderer) => renderer.think_tags(),
        }
    }

    /// Whether it tells the model how hard to think, where that is asked for.
    pub fn has_think_levels(&self) -> bool {
        match self {
            Template::Go(_) => self.source().contains("ThinkLevel"),
            Template::Jinja(_) => ["reasoning_effort", "thinking_budget"]
                .iter()
                .any(|name| self.source().contains(name)),
            Template::BuiltIn(renderer) => {
                let name = renderer.name();
                matches!(name, "glimmer" | "harmony" | "qwen3.8") || name.starts_with("nemotron")
            }
        }
    }

    /// The text that opens a tool call in the model's output; known for Go templates.
    pub fn tool_tag(&self) -> Option<String> {
        match self {
            Template::Go(go) => Some(go.tool_tag()),
            Template::Jinja(_) | Template::BuiltIn(_) => None,
        }
    }

    /// The text of the first token that it writes itself, if that is known; a tokenizer that puts this token in front
    /// of every text must not meet it. Empty for templates, which are given [`crate::Chat::bos`].
    pub fn leading_bos(&self) -> &'static str {
        match self {
            Template::Go(_) | Template::Jinja(_) => "",
            Template::BuiltIn(renderer) => renderer.leading_bos(),
        }
    }
}
